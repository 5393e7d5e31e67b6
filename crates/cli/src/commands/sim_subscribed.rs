//! `kvplane sim --profile grpc`: a simulated server of events that is subscribed to.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use kvplane_sim::fault::FaultRequest;
use kvplane_sim::load::Turn;
use kvplane_sim::{Conduct, RelayConfig, RelayService, RelayStyle, SimRelay};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sim::until_stopped;
use super::{Failure, usage};
use crate::args::{SimArgs, SimService};

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
    let mut conduct = Conduct::default();
    for text in &args.fault {
        let request: FaultRequest = serde_json::from_str(text).with_context(|| format!("--fault {text}"))?;
        if !request.faults().is_empty() {
            bail!("--fault {text}: of a server that is subscribed to only operations go wrong");
        }
        conduct = request.operations.unwrap_or(conduct);
    }
    let address = args.events.strip_prefix("tcp://").or_else(|| args.events.strip_prefix("grpc://"));
    let address = address.unwrap_or(&args.events).parse();
    Ok(RelayConfig {
        address: address.with_context(|| format!("--events {}: write grpc://ADDRESS:PORT", args.events))?,
        service: match args.service.unwrap_or(SimService::Vllm) {
            SimService::Vllm => RelayService::Vllm,
            SimService::Sglang => RelayService::Sglang,
            SimService::Tokenspeed => RelayService::Tokenspeed,
            SimService::Trtllm => RelayService::Trtllm,
            SimService::Mlx => RelayService::Mlx,
        },
        style,
        ranks: args.ranks,
        history: args.buffer_steps,
        block_size: args.block_size as usize,
        blocks: args.blocks as usize,
        seed: args.seed,
        conduct,
        ..RelayConfig::default()
    })
}
