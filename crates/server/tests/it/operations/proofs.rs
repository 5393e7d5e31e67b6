//! What streams show of flushes, through the whole stack.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvplane_core::{Continuity, Reason, Tier};
use kvplane_ingest::{Endpoint, PlaneOptions, Published, PublishedRank, Source, StreamStatus};
use kvplane_sim::{CompletionOptions, Conduct, HostEvents, HostOptions};
use serde_json::{Value, json};

use crate::every_engine;
use crate::operations::talk::{RankResult, flush_over_grpc, flush_over_http};
use crate::rig::{DEADLINE, Engine, Rig, call, soon_down};

/// Whole blocks, and a token that is never cached.
const TOKENS: u32 = 97;
const WHOLE: u64 = 96;

fn prompt(number: u32) -> Vec<u32> {
    (0..TOKENS).map(|token| number * 1_000 + token).collect()
}

fn complete(engine: &Engine, number: u32) {
    engine.sim.complete(&prompt(number), 1, &CompletionOptions::default()).unwrap();
    engine.sim.state();
}

async fn credited(rig: &Rig, number: u32) -> u64 {
    let question = json!({"model": "sim", "token_ids": prompt(number)});
    let (_, answer) = call(rig.http, "POST", "/v1/query", &question).await;
    answer["matches"][0]["tokens"].as_u64().unwrap_or(0)
}

async fn until_credited(rig: &Rig, number: u32) {
    let found = async {
        while credited(rig, number).await != WHOLE {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("a fresh block was lost");
}

async fn one(rig: &Rig, body: Value) -> (u16, RankResult) {
    let (status, mut ranks) = flush_over_http(rig, body).await;
    (status, ranks.remove(&("e0".to_owned(), 0)).unwrap())
}

every_engine! {
    #[only(vllm, sglang, tokenspeed)]
    async fn a_flush_is_proven_and_races_with_stores() {
        const ROUNDS: u32 = 4;
        let engine = Arc::new(Engine::start(|config| config.blocks = 2_048));
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        complete(&engine, 999);
        let epoch = rig.exact(0, &engine).await.epoch;
        // Somebody who never stops asking for the same few prompts: also what makes a vLLM publish.
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, stopped) = (engine.clone(), stop.clone());
        let requests = std::thread::spawn(move || {
            for number in (0..20).cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                complete(&asked, number);
            }
        });
        for round in 0..ROUNDS {
            let (old, fresh) = (1_000 + round, 2_000 + round);
            complete(&engine, old);
            until_credited(&rig, old).await;
            // A busy engine is asked again.
            let body = json!({"engine": "e0", "timeout_s": 20.0});
            let (status, ranks) = if round % 2 == 0 {
                flush_over_http(&rig, body).await
            } else {
                flush_over_grpc(&rig, body).await
            };
            let reported = &ranks[&("e0".to_owned(), 0)];
            assert_eq!((status, reported.verdict.as_str()), (200, "proven"), "{reported:?}");
            assert!(reported.cleared.contains(&"device".to_owned()) && reported.remaining.is_empty(), "{reported:?}");
            assert_eq!(credited(&rig, old).await, 0, "flushed, and credited");
            complete(&engine, fresh);
            until_credited(&rig, fresh).await;
        }
        stop.store(true, Ordering::Relaxed);
        requests.join().unwrap();
        let status = rig.exact(0, &engine).await;
        assert_eq!(status.epoch, epoch, "no flush begins a life");
        assert_eq!((status.journal.flushes_proven, status.journal.flushes_unproven), (u64::from(ROUNDS), 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_vllm_is_proven_by_a_nudge_and_not_without() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    complete(&engine, 1);
    rig.exact(0, &engine).await;
    let (status, reported) = one(&rig, json!({"proof_timeout_s": 0.05})).await;
    assert_eq!((status, reported.verdict.as_str()), (502, "timeout"), "{reported:?}");
    assert!(reported.why.contains("publishes with its next step: use nudge"), "{}", reported.why);
    assert!(rig.status(0).trust.has(Reason::UnprovenFlush));
    let (status, reported) = one(&rig, json!({"nudge": true})).await;
    assert_eq!((status, reported.verdict.as_str()), (200, "proven"), "{reported:?}");
    rig.exact(0, &engine).await;
}

/// Waits until an engine was asked this many more times.
async fn until_asked(engine: &Engine, times: usize) {
    let wanted = engine.sim.asked().len() + times;
    let asked = async {
        while engine.sim.asked().len() < wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, asked).await.expect("it is not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_that_comes_before_the_flush_is_accepted_does_not_prove_it() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    complete(&engine, 1);
    rig.exact(0, &engine).await;
    // Its clear is published with the next step.
    let (_, reported) = one(&rig, json!({"proof_timeout_s": 0.0})).await;
    assert_eq!(reported.verdict, "timeout", "{reported:?}");
    engine.sim.conduct(Conduct { busy: true, ..Conduct::default() });
    let flushed = one(&rig, json!({"timeout_s": 600.0, "proof_timeout_s": 0.5}));
    let meanwhile = async {
        until_asked(&engine, 1).await;
        complete(&engine, 2);
        rig.caught_up(0, &engine).await;
        // The second of these began after that clear was heard.
        until_asked(&engine, 2).await;
        engine.sim.conduct(Conduct::default());
    };
    let ((status, reported), ()) = tokio::join!(flushed, meanwhile);
    assert_eq!((status, reported.verdict.as_str()), (502, "timeout"), "{reported:?}");
    assert!(rig.status(0).trust.has(Reason::UnprovenFlush));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_idle_rank_is_nudged() {
    const RANKS: u32 = 3;
    let engine = Engine::start(|config| config.ranks = RANKS);
    let mut spec = engine.spec("e0");
    // Every rank has a free port of its own.
    let (events, replays) = (engine.sim.event_endpoints(), engine.sim.replay_endpoints());
    let ranks = (0..RANKS).zip(events.into_iter().map(Endpoint::Connect)).zip(&replays);
    let ranks =
        ranks.map(|((rank, events), replay)| PublishedRank::at(rank, &events, replay.as_deref()).unwrap());
    spec.source = Source::Published(Published { ranks: ranks.collect() });
    let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
    for rank in 0..RANKS {
        let live = |status: &StreamStatus| status.continuity == Continuity::Live;
        rig.until_rank(0, rank as usize, "live", live).await;
        let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
        engine.sim.complete(&prompt(rank), 1, &options).unwrap();
        rig.until_rank(0, rank as usize, "heard", |status| status.blocks[Tier::Device.index()] > 0).await;
    }
    let (status, ranks) = flush_over_http(&rig, json!({"nudge": true})).await;
    assert!(
        ranks.len() == RANKS as usize && ranks.values().all(|reported| reported.verdict == "proven"),
        "{ranks:?}"
    );
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_tier_that_is_still_resident_is_named() {
    let mut engine = Engine::start(|config| {
        config.blocks = 48;
        config.vllm.host =
            HostOptions { blocks: 160, chunk: Some(16), events: HostEvents::default(), storage_blocks: 0 };
    });
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    engine.work(20);
    rig.until(0, "offloaded", |status| status.blocks[Tier::Host.index()] > 0).await;
    let (status, reported) = one(&rig, json!({"nudge": true})).await;
    assert_eq!((status, reported.verdict.as_str()), (502, "unknown"), "{reported:?}");
    assert!(reported.cleared.contains(&"device".to_owned()), "{reported:?}");
    let (tier, blocks) = &reported.remaining[0];
    assert!(tier == "host" && blocks.is_none_or(|blocks| blocks > 0), "{reported:?}");
    assert!(reported.why.contains("only the device was flushed: host"), "{}", reported.why);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_down_proves_nothing() {
    let engine = Engine::plain();
    let mut spec = engine.spec("e0");
    let scripted = crate::operations::scripted::Scripted::new(|_| {
        crate::operations::scripted::Act::Say(200, r#"{"success": true}"#)
    })
    .await;
    spec.http = Some(scripted.url("e0"));
    let rig = Rig::of_specs(vec![spec], soon_down()).await;
    rig.live(0).await;
    complete(&engine, 1);
    engine.sim.stop();
    rig.until(0, "down", |status| status.continuity == kvplane_core::Continuity::Down).await;
    let (status, reported) = one(&rig, json!({"proof_timeout_s": 0.05})).await;
    assert_eq!((status, reported.verdict.as_str()), (200, "done"), "{reported:?}");
    assert!(reported.why.contains("its stream is not live (down)"), "{}", reported.why);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_another_plane_are_asked_there() {
    let engine = Engine::plain();
    let there = Rig::over(&[&engine]).await;
    there.live(0).await;
    let here = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
    here.follow("there", &there).await;
    let mut engines = here.plane.watch();
    engines.wait_for(|engines| engines.iter().any(|engine| !engine.streams.is_empty())).await.unwrap();
    let (status, ranks) = flush_over_http(&here, json!({"kind": "kvplane"})).await;
    let reported = &ranks[&("there/e0".to_owned(), 0)];
    assert_eq!((status, reported.verdict.as_str()), (502, "unsupported"), "{reported:?}");
    assert!(reported.why.contains("ask that one"), "{}", reported.why);
    // The link itself is no engine.
    let (status, answer) = call(here.http, "POST", "/flush_cache?engine=there", &Value::Null).await;
    assert_eq!(status, 404, "{answer}");
}
