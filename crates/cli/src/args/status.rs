//! The arguments of `status`.

use clap::{Args as ClapArgs, ValueEnum};

use super::ServerArgs;
use crate::config::Span;

#[derive(Debug, ClapArgs)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = StatusOutput::Table)]
    pub(crate) output: StatusOutput,
    /// Refresh until interrupted, every 2s unless another interval is given
    #[arg(long, short, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// One screen: health, problems with their remedy, the streams that need attention first
    Table,
    /// Every stream, with more columns
    Wide,
    /// One JSON document
    Json,
}
