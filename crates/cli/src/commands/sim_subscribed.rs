//! `kvplane sim --profile grpc`: a simulated server of events that is subscribed to.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use kvplane_sim::load::Turn;
use kvplane_sim::{RelayConfig, RelayStyle, SimRelay};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sim::until_stopped;
use super::{Failure, usage};
use crate::args::SimArgs;

pub(super) async fn run(args: SimArgs, style: RelayStyle, stop: CancellationToken) -> Result<(), Failure> {
    let config = config(&args, style).map_err(usage)?;
    let server = SimRelay::start(config).context("cannot start the simulated server")?;
    info!(address = %server.address(), "grpc");
    let server = Arc::new(server);
    let served = server.clone();
    let ranks = args.ranks.max(1);
    let complete = move |turn: &Turn| {
        let result = served.complete(turn.conversation as u32 % ranks, &turn.prompt, turn.max_tokens);
        result.ok().map(|result| result.output)
    };
    until_stopped(&args, stop, complete, move || server.stop()).await
}

fn config(args: &SimArgs, style: RelayStyle) -> anyhow::Result<RelayConfig> {
    if !args.fault.is_empty() {
        bail!("a server that is subscribed to takes no --fault");
    }
    let address = args.events.strip_prefix("tcp://").or_else(|| args.events.strip_prefix("grpc://"));
    let address = address.unwrap_or(&args.events).parse();
    Ok(RelayConfig {
        address: address.with_context(|| format!("--events {}: write grpc://ADDRESS:PORT", args.events))?,
        style,
        ranks: args.ranks,
        history: args.buffer_steps,
        block_size: args.block_size as usize,
        blocks: args.blocks as usize,
        seed: args.seed,
        ..RelayConfig::default()
    })
}
