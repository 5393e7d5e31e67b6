//! The arguments of `kvplane route-sim`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use kvplane_route::Policy;

use super::Output;

#[derive(Debug, ClapArgs)]
pub(crate) struct RouteSimArgs {
    /// Mooncake traces (JSON lines) to run instead of the synthetic populations
    #[arg(value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Only these policies [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policies: Vec<Policy>,
    /// Only populations whose names begin with this [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) populations: Vec<String>,
    /// Random seed
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Length of the populations: 1 is two minutes
    #[arg(long, default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Speed up a trace by this factor
    #[arg(long, default_value_t = 1.5)]
    pub(crate) speed: f64,
    /// Number of engines that serve a trace
    #[arg(long, default_value_t = 8)]
    pub(crate) engines: usize,
    /// KV capacity of each engine that serves a trace, in tokens
    #[arg(long, default_value_t = 400_000)]
    pub(crate) capacity: u64,
    /// Use at most this many requests of a trace
    #[arg(long, value_name = "REQUESTS")]
    pub(crate) limit: Option<usize>,
    /// Price of prefilling tokens that are cached elsewhere, for `work` [default: the router's]
    #[arg(long)]
    pub(crate) alpha: Option<f64>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}
