//! Engines that come and go for a long time leave nothing behind. Alone in its process: it counts what the
//! process has.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use kvplane_core::Continuity;
use kvplane_ingest::{Origin, Plane, PlaneOptions};
use kvplane_server::{EngineConfig, Options, Service};
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine};
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(50);
const TIMES: usize = 200;
/// Before this many the allocator and the blocking pool still grow to their usual size.
const WARM: usize = 40;

#[derive(Debug, Clone, Copy)]
struct Usage {
    descriptors: usize,
    threads: usize,
    resident_kib: usize,
}

fn usage() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    Usage { descriptors, threads: field("Threads:"), resident_kib: field("VmRSS:") }
}

/// Waits until it is so: sockets close on threads of their own.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never {what}: {:?}", usage());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_come_and_go_leave_no_sockets_threads_or_memory() {
    // Four thousand blocks: what one engine holds in the plane is a few megabytes, so that two hundred left
    // behind show.
    let config = SimConfig { blocks: 4096, http: None, ..SimConfig::default() };
    let sim = SimEngine::start(config).unwrap();
    for prompt in 0..16u32 {
        let tokens: Vec<u32> = (0..4000).map(|at| prompt * 10_000 + at).collect();
        sim.complete(&tokens, 1, &CompletionOptions::default()).unwrap();
    }
    let last = sim.state()[0].next_sequence - 1;
    let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    let service = Service::new(plane.clone(), Options::default());
    let fleet = service.fleet();
    let engine = json!({
        "id": "guest", "kind": "vllm", "events": sim.event_endpoints()[0], "replay": sim.replay_endpoints()[0],
        "republish": {"events": "tcp://127.0.0.1:0", "replay": "tcp://127.0.0.1:0"},
        "grpc": "http://127.0.0.1:9", "front": "127.0.0.1:0",
    });
    let mut warm = usage();
    for at in 0..TIMES {
        let config: EngineConfig = serde_json::from_value(engine.clone()).unwrap();
        fleet.add(vec![config.plan().unwrap()], Origin::Api).await.unwrap();
        let stream = plane.engine("guest").unwrap().streams[0].clone();
        until("caught up", || {
            let status = stream.status();
            status.continuity == Continuity::Live && status.engine_sequence == Some(last)
        })
        .await;
        drop(stream);
        fleet.remove("guest").await.unwrap();
        if at + 1 == WARM {
            warm = usage();
        }
    }
    until("as few descriptors and threads as before", || {
        let now = usage();
        // One engine's worth may still be closing.
        now.descriptors <= warm.descriptors && now.threads <= warm.threads
    })
    .await;
    let now = usage();
    let grown = now.resident_kib.saturating_sub(warm.resident_kib);
    assert!(grown < 48 << 10, "{grown} KiB more after {TIMES} engines: {warm:?} {now:?}");
    fleet.shutdown();
    tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
    sim.stop();
}
