//! `kvplane sim --profile trtllm-http`: a simulated engine that is drained.

use anyhow::{Context as _, bail};
use kvplane_sim::Conduct;
use kvplane_sim::load::Turn;
use kvplane_sim::trtllm::{TrtConfig, TrtFaultRequest, TrtSim};
use kvplane_wire::trtllm::encode::HashAlgo;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sim::{fault, until_stopped};
use super::{Failure, usage};
use crate::args::{SimArgs, SimHash};

pub(super) async fn run(args: SimArgs, stop: CancellationToken) -> Result<(), Failure> {
    let config = config(&args).map_err(usage)?;
    let server = tokio::task::spawn_blocking(move || TrtSim::start(config)).await.context("the simulator")?;
    let server = server.context("cannot start the simulated engine")?;
    info!(address = %server.http_address(), "http");
    let served = server.clone();
    let complete = move |turn: &Turn| {
        let result = served.complete(&turn.prompt, turn.max_tokens, &turn.options);
        result.ok().map(|result| result.output)
    };
    until_stopped(&args, stop, complete, move || server.stop()).await
}

fn config(args: &SimArgs) -> anyhow::Result<TrtConfig> {
    let mut faults = Vec::new();
    let mut conduct = Conduct::default();
    for text in &args.fault {
        let request: TrtFaultRequest = fault(text)?;
        faults.extend(request.faults());
        conduct = request.operations.unwrap_or(conduct);
    }
    Ok(TrtConfig {
        block_size: args.block_size as usize,
        levels: vec![args.blocks as usize, args.host_blocks as usize],
        ranks: args.ranks,
        event_buffer: args.buffer_steps,
        hash_algo: match args.hashes {
            SimHash::Unsigned => None,
            SimHash::Bytes32 => Some(HashAlgo::V2Sha256),
            SimHash::Signed | SimHash::Bytes16 => {
                bail!("trtllm-http has unsigned or bytes32 hashes: choose one of these")
            }
        },
        seed: args.seed,
        http: args.http,
        faults,
        conduct,
        ..TrtConfig::default()
    })
}
