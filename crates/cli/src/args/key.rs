//! What client commands prove themselves with.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Who asks, and who is believed to answer.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyArgs {
    /// File with the bearer token that the server wants [default: the environment's `KVPLANE_TOKEN`]
    #[arg(long, global = true, env = "KVPLANE_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for an https address, instead of the public ones
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate (PEM) to show at an https address
    #[arg(long, global = true, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}
