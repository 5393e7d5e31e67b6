//! All reports of a plane: engines that come and go, reports that change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::EngineId;
use kvplane_ingest::{Endpoint, EngineSpec, Origin, Plane, PlaneOptions, Published, Source};
use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_report::{Credentials, ReportSpec, Reports, ReportsChanged, ServerAddress};
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};

use crate::script::{DEADLINE, Script, State};

/// Tokens of a block, as simulated engines have them.
const BLOCK: usize = 16;

pub(crate) fn engine() -> SimHandle {
    SimEngine::start(SimConfig { blocks: 64, ..SimConfig::default() }).unwrap()
}

/// The number of whole blocks that are held afterwards and were not before.
pub(crate) fn compute(sim: &SimHandle, first: u32, blocks: usize) {
    let prompt: Vec<u32> = (first..).take(blocks * BLOCK).collect();
    sim.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
}

pub(crate) fn spec_of(sim: &SimHandle, id: &str) -> EngineSpec {
    let events = Endpoint::Connect(sim.event_endpoints().remove(0));
    let replay = sim.replay_endpoints().remove(0);
    let source = Source::Published(Published::at_ports(&events, replay.as_deref(), 1).unwrap());
    EngineSpec::new(EngineId::new(id), sim.config().profile.engine(), "sim", source)
}

fn to(script: &Script) -> ReportSpec {
    let mut spec =
        ReportSpec::new(ServerAddress::new(&script.address.to_string(), Credentials::default()).unwrap());
    spec.reporter.outbox.window = Duration::from_millis(20);
    spec
}

pub(crate) fn planed(sim: &SimHandle) -> Arc<Plane> {
    Plane::start(vec![spec_of(sim, "a")], &PlaneOptions::default()).unwrap()
}

/// An engine whose five blocks were reported to a server.
async fn reported() -> (Script, SimHandle, Arc<Plane>, Reports) {
    let (script, sim) = (Script::start(), engine());
    compute(&sim, 1, 5);
    let plane = planed(&sim);
    let reports = Reports::default();
    reports.set(&plane, vec![to(&script)]);
    script.until("it is told", |state| state.entries.len() == 5).await;
    (script, sim, plane, reports)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_reported_as_long_as_it_is_there() {
    let (script, sim) = (Script::start(), engine());
    compute(&sim, 1, 5);
    let plane = planed(&sim);
    let reports = Reports::default();
    let changed = reports.set(&plane, vec![to(&script)]);
    assert_eq!(changed, ReportsChanged { begun: 1, ended: 0, unchanged: 0 });
    script.until("it is told", |state| state.entries.len() == 5).await;
    {
        let state = script.shared.state.lock();
        let update = state.updates()[0];
        let names = (update.tenant_id.as_str(), update.model_id.as_str(), update.replica_id.as_str());
        assert_eq!((names, update.hash_scheme.as_str()), (("default", "sim", "a"), "vllm"));
        // Along the whole chain, not within an event.
        let mut tokens: Vec<i32> = state.entries.values().map(|(tokens, _, _)| *tokens).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [16, 32, 48, 64, 80]);
    }
    let removed = plane.clone();
    tokio::task::spawn_blocking(move || removed.remove("a").map(drop)).await.unwrap().unwrap();
    script.until_holds(&[]).await;
    // It comes back under its name: what is withdrawn of the one before does not hit it.
    compute(&sim, 10_000, 2);
    let (added, spec) = (plane.clone(), spec_of(&sim, "a"));
    tokio::task::spawn_blocking(move || added.add(vec![spec], Origin::Api)).await.unwrap().unwrap();
    script.until("it is told again", |state| state.entries.len() == 7).await;
    compute(&sim, 20_000, 3);
    script.until("the rest is told", |state| state.entries.len() == 10).await;
    tokio::time::timeout(DEADLINE, reports.shutdown()).await.unwrap();
    assert_eq!(script.shared.state.lock().entries.len(), 10, "a plane that stops withdraws nothing");
    sim.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_change_while_they_run() {
    let (script, sim, plane, reports) = reported().await;
    let clears = |script: &Script| {
        let state = script.shared.state.lock();
        state.events().iter().filter(|event| event.r#type() == Type::AllCleared).count()
    };
    let (before, unchanged) = (clears(&script), reports.set(&plane, vec![to(&script)]));
    assert_eq!(unchanged, ReportsChanged { begun: 0, ended: 0, unchanged: 1 });
    // Another tenant: reports of the first are withdrawn.
    let other = ReportSpec { tenant: Some("other".to_owned()), ..to(&script) };
    let changed = reports.set(&plane, vec![other]);
    assert_eq!(changed, ReportsChanged { begun: 1, ended: 1, unchanged: 0 });
    script.until("the other is told", |state| state.updates().last().unwrap().tenant_id == "other").await;
    script
        .until("the first is withdrawn", |state| {
            let cleared = |event: &&kvplane_proto::inferencecache::CacheEvent| {
                event.r#type() == Type::AllCleared && event.tenant_id == "default"
            };
            state.events().into_iter().filter(cleared).count() == before + 1
        })
        .await;
    // Engines that are not named are not reported.
    let nobody = ReportSpec { engines: Some(vec!["b".to_owned()]), ..to(&script) };
    reports.set(&plane, vec![nobody]);
    script.until_holds(&[]).await;
    tokio::time::timeout(DEADLINE, reports.shutdown()).await.unwrap();
    assert!(reports.replicas().is_empty());
    sim.stop();
}

/// Waits without letting any task of the test's own thread run.
fn until_recorded(plane: &Plane, blocks: u64) {
    let stream = plane.streams().next().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while stream.status().blocks.iter().sum::<u64>() != blocks {
        assert!(Instant::now() < deadline, "the journal has {:?}", stream.status().blocks);
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_stop_tells_what_only_the_journal_has() {
    let (script, sim, plane, reports) = reported().await;
    compute(&sim, 10_000, 3);
    until_recorded(&plane, 8);
    tokio::time::timeout(DEADLINE, reports.shutdown()).await.unwrap();
    assert_eq!(script.shared.state.lock().entries.len(), 8);
    sim.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_takes_no_longer_for_reports_that_wait_for_others() {
    let (script, sim, plane, reports) = reported().await;
    script.hold(true);
    // Each has to wait until the reports of the one before are withdrawn, and nothing is.
    for window in 21..25 {
        let mut spec = to(&script);
        spec.reporter.outbox.window = Duration::from_millis(window);
        assert_eq!(reports.set(&plane, vec![spec]).begun, 1);
    }
    let at = Instant::now();
    reports.shutdown().await;
    assert!(at.elapsed() < Duration::from_secs(12), "{:?}", at.elapsed());
    assert!(reports.replicas().is_empty());
    script.hold(false);
    sim.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_reported_by_one_report_and_the_other_says_so() {
    let (script, sim, plane, reports) = reported().await;
    let named = ReportSpec { scheme: Some("other".to_owned()), ..to(&script) };
    reports.set(&plane, vec![to(&script), named.clone()]);
    // The feed of the second asks by itself.
    let both = async {
        while reports.replicas().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, both).await.unwrap();
    let duplicates = || reports.replicas().iter().filter(|report| report.state() == "duplicate").count();
    assert_eq!(duplicates(), 1);
    compute(&sim, 10_000, 2);
    script.until("the first goes on", |state| state.entries.len() == 7).await;
    assert!(script.shared.state.lock().updates().iter().all(|update| update.hash_scheme == "vllm"));
    // When the first is gone, it is the other's turn.
    reports.set(&plane, vec![named]);
    let others = |state: &State| {
        let reported = state.updates().into_iter().filter(|update| update.hash_scheme == "other");
        reported.map(|update| update.prefixes.len()).sum::<usize>() == 7
    };
    script.until("the second tells", others).await;
    assert_eq!((duplicates(), script.shared.state.lock().entries.len()), (0, 7));
    tokio::time::timeout(DEADLINE, reports.shutdown()).await.unwrap();
    sim.stop();
}
