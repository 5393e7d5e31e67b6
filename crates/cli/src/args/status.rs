//! The arguments of `status`.

use clap::{Args as ClapArgs, ValueEnum};

use super::ServerArgs;
use crate::config::Span;

#[derive(Debug, ClapArgs)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Output format
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

#[derive(Debug, ClapArgs)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Time between two refreshes
    #[arg(long, value_name = "INTERVAL", default_value = "2s")]
    pub(crate) interval: Span,
    /// Sort by this column; `s` changes it
    #[arg(long, value_enum, default_value_t = TopSort::Trouble)]
    pub(crate) sort: TopSort,
    /// Show only streams whose engine, model, state or trust contains this text; `/` changes it
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    /// Streams that need attention first
    Trouble,
    /// By name
    Engine,
    /// Most blocks first
    Blocks,
    /// Fullest cache first
    Full,
    /// Most events per second first
    Rate,
}
