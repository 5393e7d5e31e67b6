//! Logs: to standard error, one line per state change.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::args::{LogArgs, LogFormat};

/// Sends logs where the arguments say.
pub(crate) fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(&args.log).with_context(|| {
        format!("--log {:?} is not a level or filter (try info, or kvplane=debug)", args.log)
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
