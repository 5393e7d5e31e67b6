//! The arguments of `kvplane demo`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, value_parser};

use super::Output;

#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// Approximate length in seconds; every step runs, however short it is
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = value_parser!(u64).range(..=86_400))]
    pub(crate) seconds: u64,
    /// Replay recorded requests instead of synthetic conversations: a Mooncake trace (JSON lines with timestamp,
    /// `input_length`, `output_length` and `hash_ids`)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Wait for Enter before each step
    #[arg(long)]
    pub(crate) pause: bool,
    /// Keep kvplane, the engines and the load running at the end, until Ctrl-C
    #[arg(long)]
    pub(crate) stay: bool,
    /// Print plain lines instead of the full-screen view (also when the output is not a terminal)
    #[arg(long)]
    pub(crate) plain: bool,
    /// Random seed of the synthetic conversations
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Output format; JSON is the summary only
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}
