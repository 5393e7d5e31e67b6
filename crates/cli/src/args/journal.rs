//! `kvplane journal`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::Output;

/// Looks at a durable journal, whoever has it.
#[derive(Debug, ClapArgs)]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    pub(crate) command: JournalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Read it back as a start does: every checksum, every step and where it leads
    #[command(
        after_help = "Exit code: 0 every stream is whole, 1 one is not.\n\nExample:\n  kvplane journal verify /var/lib/kvplane/journal"
    )]
    Verify(JournalDir),
    /// List its files and streams
    #[command(visible_alias = "list", after_help = "Example:\n  kvplane journal ls /var/lib/kvplane/journal")]
    Ls(JournalDir),
    /// Print its records, one per line, without tokens
    #[command(
        after_help = "Example:\n  kvplane journal cat /var/lib/kvplane/journal --engine vllm-0 -o json | jq .step"
    )]
    Cat {
        #[command(flatten)]
        dir: JournalDir,
        /// Only records of this engine
        #[arg(long, value_name = "ID")]
        engine: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct JournalDir {
    /// The directory: `journal.dir`
    pub(crate) dir: PathBuf,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}
