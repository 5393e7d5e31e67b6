//! The arguments of `doctor`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{KeyArgs, TableOutput};
use crate::config::Span;

/// What `--help` says after the options.
pub(super) const AFTER_HELP: &str = "\
Without --config and --engine it checks the kvplane at --server, or the local one. For a kvplane on this machine it also checks
the engines, at the addresses that the kvplane lists.

It changes nothing: it subscribes to events, sends each replay socket one request, and reads HTTP pages. It never drains TensorRT-LLM's
events, because other readers would lose them. If no process listens at a local event address, the doctor listens there for at most one
second to see whether an engine connects; an engine cannot bind that address meanwhile. At addresses of `bind:` engines it listens for
the time of --listen, unless a kvplane has them already.

Exit code: 0 if nothing is wrong, 1 if there is an error (with --strict also for a warning), 2 for wrong usage.

Examples:
  kvplane doctor
  kvplane doctor --config kvplane.toml
  kvplane doctor --engine vllm=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,model=llama
  kvplane doctor --config kvplane.toml --server http://127.0.0.1:8090 --strict -o json | jq -r '.findings[].code'";

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Check this configuration and its engines
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check this engine, described as for serve; repeatable
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Vec<String>,
    /// Check the kvplane at this HTTP address [default: `KVPLANE_SERVER` or the local one, if nothing else is
    /// checked]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Check the running kvplane only, not its engines
    #[arg(long, conflicts_with = "engines")]
    pub(crate) plane_only: bool,
    /// Check the engines of the running kvplane even if it runs on another machine
    #[arg(long)]
    pub(crate) engines: bool,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// How long to listen to engines; ends earlier once they have published enough
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub(crate) listen: Span,
    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = TableOutput::Table)]
    pub(crate) output: TableOutput,
}
