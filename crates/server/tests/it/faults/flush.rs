//! Flushes raced with requests: from the engine's answer on nothing is answered that it flushed, and nothing
//! is lost that came after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvplane_core::{Reason, Tier, Trust};
use kvplane_sim::{CompletionOptions, SimHandle};
use kvplane_stream::{FlushError, FlushOutcome, FlushSign};
use serde_json::{Value, json};

use crate::every_engine;
use crate::faults::query::ask;
use crate::rig::{DEADLINE, Engine, Rig, call};

/// Whole blocks, and a token that is never cached.
const TOKENS: u32 = 97;
const WHOLE: u64 = 96;

/// A prompt that no other has anything in common with.
fn prompt(number: u32) -> Vec<u32> {
    (0..TOKENS).map(|token| number * 1_000 + token).collect()
}

fn complete(sim: &SimHandle, number: u32) {
    sim.complete(&prompt(number), 1, &CompletionOptions::default()).unwrap();
    // Publishing is the publisher's thread's business; wait until it is done.
    sim.state();
}

/// Somebody who never stops asking for the same few prompts.
struct Requests {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Requests {
    fn to(sim: &SimHandle) -> Self {
        let (sim, stop) = (sim.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for number in (0..20).cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                complete(&sim, number);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// Tokens that are credited, and why none are, of a prompt.
async fn credited(rig: &Rig, number: u32) -> (u64, Value) {
    let answer = rig.query(&ask(&prompt(number))).await;
    let tokens = answer["matches"][0]["tokens"].as_u64().unwrap_or(0);
    (tokens, answer["not_credited"][0]["reason"].clone())
}

async fn until_credited(rig: &Rig, number: u32) {
    let found = async {
        while credited(rig, number).await.0 != WHOLE {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("a fresh block was lost");
}

every_engine! {
    async fn raced_with_stores() {
        const ROUNDS: u32 = 12;
        let engine = Engine::start(|config| config.blocks = 2_048);
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        complete(&engine.sim, 999);
        let epoch = rig.exact(0, &engine).await.epoch;
        let requests = Requests::to(&engine.sim);
        for round in 0..ROUNDS {
            let (old, fresh) = (1_000 + round, 2_000 + round);
            complete(&engine.sim, old);
            until_credited(&rig, old).await;
            let watch = rig.stream(0).begin_flush().unwrap();
            while !engine.sim.reset_prefix_cache() {}
            watch.accepted();
            let outcome = tokio::spawn(watch.outcome(DEADLINE));
            // While the fence is up, and when it falls.
            loop {
                let is_over = outcome.is_finished();
                assert_eq!(credited(&rig, old).await.0, 0, "round {round}: flushed, and credited");
                if is_over {
                    break;
                }
            }
            let outcome = outcome.await.unwrap();
            assert!(matches!(outcome, FlushOutcome::Proven { .. }), "round {round}: {outcome:?}");
            complete(&engine.sim, fresh);
            until_credited(&rig, fresh).await;
            assert_eq!(credited(&rig, old).await.0, 0);
        }
        drop(requests);
        let status = rig.exact(0, &engine).await;
        assert_eq!(status.epoch, epoch, "no flush begins a life");
        assert_eq!((status.journal.flushes_proven, status.journal.flushes_unproven), (u64::from(ROUNDS), 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engine_is_fenced_until_its_next_step() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    complete(&engine.sim, 1);
    let before = rig.exact(0, &engine).await;
    let watch = rig.stream(0).begin_flush().unwrap();
    assert!(engine.sim.reset_prefix_cache());
    watch.accepted();
    assert_eq!(credited(&rig, 1).await, (0, json!("flushing")));
    let (_, recovered) = call(rig.http, "GET", "/kv_recover", &Value::Null).await;
    assert!(recovered["Error"].as_str().unwrap().contains("flushing"), "{recovered}");
    complete(&engine.sim, 2);
    let FlushOutcome::Proven { sign, reach } = watch.outcome(DEADLINE).await else { panic!() };
    assert_eq!((sign, reach.cleared, reach.remaining), (FlushSign::Clear, vec![Tier::Device], vec![]));
    let after = rig.exact(0, &engine).await;
    assert_eq!((after.epoch, after.known_from), (before.epoch, before.known_from));
    assert_eq!((credited(&rig, 1).await.0, credited(&rig, 2).await.0), (0, WHOLE));

    // No step, no sign. What comes of it when there is one is as good as ever.
    let watch = rig.stream(0).begin_flush().unwrap();
    assert!(engine.sim.reset_prefix_cache());
    assert_eq!(watch.outcome(Duration::ZERO).await, FlushOutcome::Unproven);
    let status = rig.status(0);
    assert_eq!(status.trust.worst().unwrap().reason, Reason::UnprovenFlush);
    assert_eq!((status.trust.level(), status.blocks[Tier::Device.index()]), (Trust::Lower, 0));
    assert_eq!((status.journal.flushes_proven, status.journal.flushes_unproven), (1, 1));
    assert_eq!(credited(&rig, 2).await, (0, Value::Null), "credited, and empty");
    complete(&engine.sim, 3);
    assert_eq!(rig.exact(0, &engine).await.epoch, before.epoch);
    assert_eq!(credited(&rig, 3).await.0, WHOLE);
}

every_engine! {
    async fn refused_or_given_up() {
        let engine = Engine::plain();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        complete(&engine.sim, 1);
        rig.exact(0, &engine).await;
        rig.stream(0).begin_flush().unwrap().refused();
        assert_eq!(credited(&rig, 1).await.0, WHOLE, "nothing was flushed");
        // The caller disconnects: this counts as a timeout.
        let watch = rig.stream(0).begin_flush().unwrap();
        watch.accepted();
        assert_eq!(credited(&rig, 1).await, (0, json!("flushing")));
        drop(watch);
        assert!(rig.status(0).trust.has(Reason::UnprovenFlush));
        assert_eq!(credited(&rig, 1).await, (0, Value::Null));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_a_removal_end_the_wait() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    complete(&engine.sim, 1);
    rig.exact(0, &engine).await;
    let stream = rig.stream(0);
    let watch = stream.begin_flush().unwrap();
    watch.accepted();
    engine.sim.fault(None, kvplane_sim::Fault::Restart(kvplane_sim::Restart::default()));
    let FlushOutcome::Restarted { reach } = watch.outcome(DEADLINE).await else { panic!() };
    assert_eq!((reach.cleared, reach.remaining), (vec![Tier::Device, Tier::Host], vec![]));
    complete(&engine.sim, 2);
    rig.exact(0, &engine).await;

    let watch = stream.begin_flush().unwrap();
    watch.accepted();
    let outcome = tokio::spawn(watch.outcome(DEADLINE));
    rig.until(0, "fenced", |status| status.trust.has(Reason::Flushing)).await;
    rig.plane.remove("e0").unwrap();
    assert_eq!(outcome.await.unwrap(), FlushOutcome::Lost);
    assert_eq!(stream.begin_flush().unwrap_err(), FlushError::Removed);
}
