//! `kvplane sim`: a simulated engine.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use kvplane_core::EngineKind;
use kvplane_sim::fault::FaultRequest;
use kvplane_sim::load::{LoadConfig, Turn, Workload};
use kvplane_sim::{
    Conduct, HashForm, HostEvents, HostOptions, Pace, SglangOptions, SimConfig, SimEngine, SimError,
    VllmOptions, Without,
};
use kvplane_socket::Endpoint;
use kvplane_wire::encode::Profile;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Failure, sim_drained, sim_subscribed, stop_signal, usage};
use crate::args::{SimArgs, SimHash, SimHostEvents, SimProfile, SimWithout};
use crate::logging;

pub(crate) async fn run(args: SimArgs) -> Result<(), Failure> {
    logging::start(&args.log).map_err(usage)?;
    check(&args).map_err(usage)?;
    let stop = stop_signal(args.seconds)?;
    match args.profile {
        SimProfile::Published(profile) => published(args, profile, stop).await,
        SimProfile::Drained => sim_drained::run(args, stop).await,
        SimProfile::Subscribed(style) => sim_subscribed::run(args, style, stop).await,
    }
}

/// Whether the options are ones that the engine has.
fn check(args: &SimArgs) -> anyhow::Result<()> {
    let is_published = matches!(args.profile, SimProfile::Published(_));
    if args.grpc.is_some() && !is_published {
        bail!("--grpc: this profile has no gRPC server beside its own: leave it out");
    }
    if args.api_key.is_some() && !is_published {
        bail!("--api-key: this profile asks for none: leave it out");
    }
    if args.model.is_some() && !is_published {
        bail!("--model: this engine takes any: leave it out");
    }
    if args.service.is_some() && !matches!(args.profile, SimProfile::Subscribed(_)) {
        bail!(
            "--service: only grpc and grpc-live take one: leave it out, or choose one of these with --profile"
        );
    }
    let is_vllm =
        matches!(args.profile, SimProfile::Published(profile) if profile.engine() == EngineKind::Vllm);
    if !args.without.is_empty() && !is_vllm {
        bail!("--without: is for vLLM's profiles: leave it out, or choose one with --profile");
    }
    Ok(())
}

async fn published(args: SimArgs, profile: Profile, stop: CancellationToken) -> Result<(), Failure> {
    let config = config(&args, profile).map_err(usage)?;
    let engine =
        tokio::task::spawn_blocking(move || SimEngine::start(config)).await.context("the simulator")?;
    if let Err(SimError::Config(cause)) = engine {
        return Err(usage(anyhow!(cause)));
    }
    let engine = engine.context("cannot start the simulated engine")?;
    for (rank, (events, replay)) in engine.event_endpoints().iter().zip(engine.replay_endpoints()).enumerate()
    {
        let replay = replay.as_deref().unwrap_or("off").to_owned();
        info!(rank, events, replay, "publishing");
    }
    if let Some(address) = engine.http_address() {
        info!(%address, "http");
    }
    if let Some(address) = engine.grpc_address() {
        info!(%address, "grpc");
    }
    let served = engine.clone();
    let complete = move |turn: &Turn| {
        let result = served.complete(&turn.prompt, turn.max_tokens, &turn.options);
        result.ok().map(|result| result.output)
    };
    until_stopped(&args, stop, complete, move || engine.stop()).await
}

/// Sends an engine load, if that was asked for, until it is to stop; then ends it.
pub(super) async fn until_stopped(
    args: &SimArgs,
    stop: CancellationToken,
    complete: impl Fn(&Turn) -> Option<Vec<u32>> + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    let (rate, config) = (args.load, load_config(args));
    let token = stop.clone();
    let load =
        (rate > 0.0).then(|| std::thread::spawn(move || generate_load(complete, rate, config, &token)));
    stop.cancelled().await;
    let ended = tokio::task::spawn_blocking(move || {
        if let Some(load) = load {
            let _ = load.join();
        }
        end();
    });
    ended.await.context("the simulator")?;
    Ok(())
}

/// What `--fault` asks for.
pub(super) fn fault<T: serde::de::DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let error = kvplane_core::in_plain_words(&error.to_string());
        anyhow::anyhow!("--fault {text}: {error}; write JSON such as {{\"drop\":1}}: docs/reference/simulator.md lists the faults")
    })
}

fn config(args: &SimArgs, profile: Profile) -> anyhow::Result<SimConfig> {
    let mut faults = Vec::new();
    let mut conduct = Conduct::default();
    for text in &args.fault {
        let request: FaultRequest = fault(text)?;
        faults.extend(request.faults());
        conduct = request.operations.unwrap_or(conduct);
    }
    let is_vllm = profile.engine() == EngineKind::Vllm;
    Ok(SimConfig {
        profile,
        model: args.model.clone().unwrap_or_else(|| SimConfig::default().model),
        block_size: args.block_size as usize,
        blocks: args.blocks as usize,
        loras: args.loras.clone(),
        ranks: args.ranks,
        events: match args.events.strip_prefix("connect:") {
            Some(address) => Endpoint::Connect(address.to_owned()),
            None => Endpoint::Bind(args.events.clone()),
        },
        replay: replay_address(args),
        topic: args.topic.clone(),
        buffer_steps: args.buffer_steps,
        seed: args.seed,
        hash_form: match args.hashes {
            SimHash::Unsigned => HashForm::Unsigned,
            SimHash::Signed => HashForm::Signed,
            SimHash::Bytes16 => HashForm::Bytes16,
            SimHash::Bytes32 => HashForm::Bytes32,
        },
        vllm: vllm_options(args, is_vllm),
        sglang: SglangOptions {
            eagle: args.eagle,
            host_pages: args.host_blocks as usize,
            dynamo_format: args.dynamo_format,
        },
        http: Some(args.http),
        api_key: args.api_key.clone(),
        grpc: args.grpc,
        faults,
        conduct,
        pace: pace(args)?,
        ..SimConfig::default()
    })
}

/// How fast it is, and how much it takes.
fn pace(args: &SimArgs) -> anyhow::Result<Pace> {
    let prefill = args.prefill_rate.unwrap_or(0.0);
    if !(prefill.is_finite() && prefill >= 0.0) {
        bail!("--prefill-rate {prefill}: is not a number of tokens in a second: 0 or more");
    }
    let milliseconds = args.token_ms.unwrap_or(0.0);
    let token = Duration::try_from_secs_f64(milliseconds / 1e3)
        .map_err(|_| anyhow!("--token-ms {milliseconds}: is not a number of milliseconds: 0 or more"))?;
    Ok(Pace { prefill, token, max_requests: args.max_requests })
}

/// Options that other engines have too are theirs then; the rest is refused by them.
fn vllm_options(args: &SimArgs, is_vllm: bool) -> VllmOptions {
    VllmOptions {
        groups: args.groups.clone(),
        eagle: is_vllm && args.eagle,
        host: HostOptions {
            blocks: if is_vllm { args.host_blocks as usize } else { 0 },
            chunk: args.host_chunk.map(|tokens| tokens as usize),
            events: match args.host_events {
                SimHostEvents::Placeholder => HostEvents::Placeholder,
                SimHostEvents::SelfDescribing => HostEvents::SelfDescribing,
                SimHostEvents::None => HostEvents::None,
            },
            storage_blocks: args.storage_blocks as usize,
        },
        without: Without {
            dev_mode: args.without.contains(&SimWithout::DevMode),
            profiler: args.without.contains(&SimWithout::Profiler),
            load_tracking: args.without.contains(&SimWithout::LoadTracking),
        },
    }
}

/// Where replay is served: as given, or at the port after the last rank's events.
fn replay_address(args: &SimArgs) -> Option<String> {
    match args.replay.as_deref() {
        Some("off") => None,
        Some(address) => Some(address.to_owned()),
        None => {
            let (host, port) =
                args.events.strip_prefix("connect:").unwrap_or(&args.events).rsplit_once(':')?;
            let port: u32 = port.parse().ok()?;
            let host = if args.events.starts_with("connect:") { "tcp://127.0.0.1" } else { host };
            Some(format!("{host}:{}", if port == 0 { 0 } else { port + args.ranks.max(1) }))
        }
    }
}

/// What the load looks like. An engine runs what it knows of it.
fn load_config(args: &SimArgs) -> LoadConfig {
    let plain = LoadConfig { seed: args.seed, ..LoadConfig::default() };
    if !args.mixed {
        return plain;
    }
    LoadConfig {
        adapters: args.loras.clone(),
        salts: ["tenant-a", "tenant-b"].map(str::to_owned).to_vec(),
        images: 8,
        report_every: 16,
        ..plain
    }
}

/// Sends seeded conversations to an engine, `rate` requests a second. `complete` runs a turn and says what
/// was generated.
fn generate_load(
    complete: impl Fn(&Turn) -> Option<Vec<u32>>,
    rate: f64,
    config: LoadConfig,
    stop: &CancellationToken,
) {
    let mut workload = Workload::new(config);
    while !stop.is_cancelled() {
        let turn = workload.next_turn();
        if let Some(output) = complete(&turn) {
            workload.replied(turn.conversation, &output);
        }
        std::thread::sleep(Duration::from_secs_f64(1.0 / rate));
    }
}
