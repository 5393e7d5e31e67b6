//! `kvplane sim --profile grpc`: a simulated server of events that is subscribed to.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use kvplane_sim::load::Turn;
use kvplane_sim::{RelayConfig, RelayStyle, SimRelay};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sim::generate_load;
use super::{Failure, usage};
use crate::args::SimArgs;

pub(super) async fn run(args: SimArgs, style: RelayStyle, stop: CancellationToken) -> Result<(), Failure> {
    let config = config(&args, style).map_err(usage)?;
    let server = SimRelay::start(config).context("cannot start the simulated server")?;
    info!(address = %server.address(), "grpc");
    let server = Arc::new(server);
    let load = (args.load > 0.0).then(|| {
        let (server, stop) = (server.clone(), stop.clone());
        let complete = move |turn: &Turn| {
            let rank = turn.conversation as u32 % args.ranks.max(1);
            let result = server.complete(rank, &turn.prompt, turn.max_tokens);
            result.ok().map(|result| result.output)
        };
        std::thread::spawn(move || generate_load(complete, args.load, args.seed, &stop))
    });
    stop.cancelled().await;
    tokio::task::spawn_blocking(move || {
        if let Some(load) = load {
            let _ = load.join();
        }
        server.stop();
    })
    .await
    .context("the simulator")?;
    Ok(())
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
