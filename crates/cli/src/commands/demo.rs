//! `kvplane demo`: three simulated engines, load, faults, and what kvplane makes of them.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kvplane_core::{EngineId, EngineKind, default_worker_id};
use kvplane_ingest::{
    CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, EngineSpec, Events, Plane, PlaneOptions, RankSpec, Stream,
};
use kvplane_server::{Options, Service};
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{CompletionOptions, Fault, Restart, SimConfig, SimEngine, SimHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::demo_view::{Story, frame};
use super::{Failure, stop_signal};
use crate::args::DemoArgs;

const ENGINES: usize = 3;
const REFRESH: Duration = Duration::from_millis(250);
/// Requests a second on each engine: enough to see blocks come and go.
const RATE: f64 = 12.0;

pub(crate) async fn run(args: DemoArgs) -> Result<(), Failure> {
    let stop = stop_signal(args.seconds)?;
    let engines = tokio::task::spawn_blocking(start_engines).await.context("the simulator")??;
    let specs =
        engines.iter().enumerate().map(|(at, engine)| spec(at, engine)).collect::<anyhow::Result<_>>()?;
    let plane = Plane::start(specs, &PlaneOptions::default())
        .map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    let http = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
    let grpc = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
    let addresses = format!(
        "status http://{}/v1/status   follow it: kvplane tail --plane http://{}",
        http.local_addr().context("http")?,
        grpc.local_addr().context("grpc")?
    );
    let serving = tokio::spawn(Service::new(plane.clone(), Options::default()).run(http, grpc, stop.clone()));

    // Load and faults end before the check, so that there is a moment at which both sides can be compared.
    let busy = stop.child_token();
    let load: Vec<_> = engines
        .iter()
        .enumerate()
        .map(|(at, engine)| {
            let (engine, busy, seed) = (engine.clone(), busy.clone(), args.seed + at as u64);
            std::thread::spawn(move || generate_load(&engine, seed, &busy))
        })
        .collect();
    let live_view = !args.plain && std::io::stdout().is_terminal();
    watch(&plane, &engines, &stop, live_view, &addresses).await;

    let verdict = tokio::task::spawn_blocking({
        let (engines, plane) = (engines.clone(), plane.clone());
        move || {
            for thread in load {
                let _ = thread.join();
            }
            compare(&plane, &engines)
        }
    });
    let verdict = verdict.await.context("the comparison")?;
    let _ = serving.await;
    tokio::task::spawn_blocking(move || {
        plane.shutdown();
        for engine in &engines {
            engine.stop();
        }
    })
    .await
    .context("the simulator")?;
    let _ = writeln!(std::io::stdout(), "{}", verdict.text);
    if verdict.equal { Ok(()) } else { Err(anyhow::anyhow!("kvplane and the engines do not agree").into()) }
}

fn start_engines() -> anyhow::Result<Vec<SimHandle>> {
    let mut engines = Vec::new();
    for seed in 0..ENGINES as u64 {
        let config = SimConfig {
            seed,
            blocks: 512,
            http: Some(([127, 0, 0, 1], 0).into()),
            // The second one speaks like an old engine: tagged arrays, no topic in replies.
            profile: if seed == 1 {
                kvplane_wire::encode::Profile::Vllm0_22
            } else {
                SimConfig::default().profile
            },
            ..SimConfig::default()
        };
        engines.push(SimEngine::start(config).context("cannot start a simulated engine")?);
    }
    Ok(engines)
}

fn spec(at: usize, engine: &SimHandle) -> anyhow::Result<EngineSpec> {
    let id = EngineId::new(&format!("vllm-{at}"));
    let events = Events::Connect(engine.event_endpoints().into_iter().next().context("no events")?);
    let replay = engine.replay_endpoints().into_iter().next().flatten();
    Ok(EngineSpec {
        worker_id: default_worker_id(&id),
        id,
        kind: EngineKind::Vllm,
        model: "sim".to_owned(),
        routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
        tenant: None,
        ranks: RankSpec::at_ports(&events, replay.as_deref(), 1)?,
        feed: kvplane_ingest::Feed::Published,
        topic: String::new(),
        block_size: None,
        cache: CacheSpec::default(),
        http: engine.http_address().map(|address| format!("http://{address}")),
        control: ControlSpec::default(),
    })
}

fn generate_load(engine: &SimHandle, seed: u64, busy: &CancellationToken) {
    let config = LoadConfig { seed, system_tokens: 128, conversations: 8, ..LoadConfig::default() };
    let mut workload = Workload::new(config);
    while !busy.is_cancelled() {
        let turn = workload.next_turn();
        // A restart may end a request under way; the next one goes on.
        if let Ok(result) = engine.complete(&turn.prompt, turn.max_tokens, &CompletionOptions::default()) {
            workload.replied(turn.conversation, &result.output);
        }
        std::thread::sleep(Duration::from_secs_f64(1.0 / RATE));
    }
}

/// What goes wrong, and when, over and over.
const SCRIPT: [(u64, usize, &str); 5] = [
    (3, 0, "vllm-0: one frame is lost on the way"),
    (6, 1, "vllm-1: killed and restarted; its sequence has overtaken ours before we are connected again"),
    (10, 2, "vllm-2: the connection drops and comes back, same process"),
    (13, 0, "vllm-0: a damaged frame"),
    (16, 2, "vllm-2: killed and restarted from sequence 0"),
];
const SCRIPT_SECONDS: u64 = 19;

fn inject(act: usize, engine: &SimHandle) {
    match act {
        0 => engine.fault(None, Fault::Drop(1)),
        1 => {
            let ahead = engine.state().first().map_or(0, |rank| rank.next_sequence) + 5;
            engine.fault(None, Fault::Restart(Restart { first_sequence: ahead, same_content: true }));
        }
        2 => engine.fault(None, Fault::Disconnect),
        3 => engine.fault(None, Fault::Garbage(1)),
        _ => engine.fault(None, Fault::Restart(Restart::default())),
    }
}

async fn watch(
    plane: &Plane,
    engines: &[SimHandle],
    stop: &CancellationToken,
    live_view: bool,
    addresses: &str,
) {
    let begun = Instant::now();
    let mut story = Story::new(plane);
    let mut next_step = 0;
    let mut out = std::io::stdout();
    if live_view {
        let _ = write!(out, "\x1b[?25l");
    } else {
        let _ = writeln!(out, "{addresses}");
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(REFRESH) => {}
        }
        let elapsed = begun.elapsed();
        let (round, act) = (next_step / SCRIPT.len(), next_step % SCRIPT.len());
        let (second, engine, words) = SCRIPT[act];
        if elapsed.as_secs() >= round as u64 * SCRIPT_SECONDS + second {
            next_step += 1;
            story.fault(elapsed, words);
            let engine = engines[engine].clone();
            let _ = tokio::task::spawn_blocking(move || inject(act, &engine)).await;
        }
        let news = story.observe(elapsed, plane);
        if live_view {
            let _ = write!(out, "\x1b[H\x1b[J{}", frame(&story, elapsed, addresses));
            let _ = out.flush();
        } else {
            for line in news {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    if live_view {
        let _ = writeln!(out, "\x1b[?25h");
    }
}

struct Verdict {
    equal: bool,
    text: String,
}

/// Whether kvplane holds exactly what the engines hold, copies included, once the last batch has arrived.
fn compare(plane: &Plane, engines: &[SimHandle]) -> Verdict {
    let mut lines = Vec::new();
    let mut equal = true;
    for (stream, engine) in plane.streams().zip(engines) {
        let truth: BTreeMap<u64, u64> = engine
            .state()
            .into_iter()
            .flat_map(|rank| rank.blocks)
            .map(|(hash, copies)| (hash, copies as u64))
            .collect();
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut ours = held(&stream);
        while ours != truth && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            ours = held(&stream);
        }
        equal &= ours == truth;
        let status = stream.status();
        lines.push(format!(
            "{}: {} blocks, the engine holds {}: {}; survived {} restarts, {} gaps ({} unfilled), {} reconnects",
            stream.id(),
            ours.len(),
            truth.len(),
            if ours == truth { "equal" } else { "DIFFERENT" },
            status.counters.restarts,
            status.counters.gaps,
            status.counters.gaps_unfilled,
            status.counters.disconnects,
        ));
    }
    Verdict { equal, text: lines.join("\n") }
}

fn held(stream: &Arc<Stream>) -> BTreeMap<u64, u64> {
    let snapshot = tokio::runtime::Handle::current().block_on(stream.snapshot());
    let blocks = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
    blocks.map(|block| (block.hash, block.holdings.iter().map(|h| u64::from(h.copies)).sum())).collect()
}
