//! What client commands prove themselves with.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::CONNECTION;

/// Who asks, and who is believed to answer.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyArgs {
    /// File with the bearer token [default: the value of `KVPLANE_TOKEN`]
    #[arg(help_heading = CONNECTION, long, global = true, env = "KVPLANE_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// CA certificates (PEM) to trust for https, instead of the public ones
    #[arg(help_heading = CONNECTION, long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate (PEM) for https
    #[arg(help_heading = CONNECTION, long, global = true, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(help_heading = CONNECTION, long, global = true, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}
