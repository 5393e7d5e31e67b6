//! `kvplane config`.

use clap::{Args as ClapArgs, Subcommand};

/// What there is to configure.
#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the JSON Schema of the configuration file: every key, its type, default and meaning
    Schema,
}
