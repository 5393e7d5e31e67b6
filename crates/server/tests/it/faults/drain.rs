//! Rows of the fault matrix for engines that are drained over HTTP.

use std::collections::BTreeSet;
use std::time::Duration;

use kvplane_core::{Continuity, Reason, Tier, Trouble, Trust};
use kvplane_ingest::{Drained, PlaneOptions, SharedRanks, Source, Stream, StreamStatus};
use kvplane_sim::trtllm::{TrtAnswer, TrtFault, TrtRestart};
use kvplane_wire::trtllm::encode::{HashAlgo, TrtHash};
use serde_json::json;

use crate::rig::{DrainedEngine, Rig, call};

/// What a rank holds: window, tier and hash.
fn truth(server: &DrainedEngine, rank: usize) -> BTreeSet<(u32, Tier, u64)> {
    let pools = server.sim.state().remove(rank).pools;
    let blocks = pools.into_iter().flat_map(|pool| {
        let held = move |(hash, block): (TrtHash, _)| {
            let kvplane_sim::trtllm::TrtBlockState { level, .. } = block;
            (pool.layer_group_id.unwrap_or(pool.window_size), [Tier::Device, Tier::Host][level], bits(&hash))
        };
        pool.blocks.into_iter().map(held)
    });
    blocks.collect()
}

fn bits(hash: &TrtHash) -> u64 {
    match hash {
        TrtHash::Number(number) => *number,
        TrtHash::Digest(digits) => u64::from_str_radix(&digits[..16], 16).unwrap(),
    }
}

async fn held(stream: &Stream) -> BTreeSet<(u32, Tier, u64)> {
    let snapshot = stream.snapshot().await;
    let places = &snapshot.image.places;
    let blocks = snapshot.image.blocks.iter().flat_map(|block| {
        block.holdings.iter().map(|holding| {
            let place = &places[usize::from(holding.place)];
            (place.group.unwrap(), place.tier, block.hash)
        })
    });
    blocks.collect()
}

/// Waits until every rank has heard its last event, and compares.
async fn caught_up(rig: &Rig, server: &DrainedEngine) -> Vec<StreamStatus> {
    let mut all = Vec::new();
    for rank in server.sim.state() {
        let last = rank.next_event_id.checked_sub(1);
        let at = rank.rank as usize;
        let status = rig
            .until_rank(0, at, "caught up", |s| s.continuity == Continuity::Live && s.engine_sequence == last)
            .await;
        let stream = rig.plane.engines()[0].streams[at].clone();
        let (ours, truth) = (held(&stream).await, truth(server, at));
        match status.trust.level() {
            Trust::Exact => assert_eq!(ours, truth, "exact"),
            Trust::Lower => assert!(ours.is_subset(&truth), "phantoms"),
            other => panic!("unexpected trust {other}"),
        }
        all.push(status);
    }
    all
}

async fn exact(rig: &Rig, server: &DrainedEngine) -> Vec<StreamStatus> {
    let all = caught_up(rig, server).await;
    for status in &all {
        assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
    }
    all
}

/// More polls than a test makes: a state that the test waits for must not pass before it looks.
const UNTIL_HEALED: u32 = 1_000_000;

async fn rig(server: &DrainedEngine) -> Rig {
    Rig::of_specs(vec![server.spec("e0")], PlaneOptions::default()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_moves_and_partial_blocks_under_every_hash() {
    let algorithms =
        [None, Some(HashAlgo::V1BlockKey), Some(HashAlgo::V2Sha256), Some(HashAlgo::V2Sha256Short)];
    for hash_algo in algorithms {
        let mut server = DrainedEngine::start(|config| config.hash_algo = hash_algo);
        server.work(10);
        let rig = rig(&server).await;
        exact(&rig, &server).await;
        for _ in 0..5 {
            server.work(8);
            exact(&rig, &server).await;
        }
        let truth = truth(&server, 0);
        assert!(truth.iter().any(|(_, tier, _)| *tier == Tier::Host), "nothing was offloaded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attention_rank_is_a_stream_of_its_own_also_one_that_nobody_configured() {
    let mut server = DrainedEngine::start(|config| config.ranks = 3);
    server.work(6);
    let mut spec = server.spec("e0");
    let Source::Drained(drained) = &mut spec.source else { panic!("{:?}", spec.source) };
    drained.ranks = SharedRanks::first(1);
    let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
    server.work(9);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while rig.plane.engines()[0].streams.len() < 3 {
        assert!(tokio::time::Instant::now() < deadline, "the ranks never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    exact(&rig, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_predicted_is_what_the_engine_reuses() {
    let mut server = DrainedEngine::start(|config| config.partial_reuse = false);
    server.work(4);
    let rig = rig(&server).await;
    let mut hits = 0;
    for _ in 0..40 {
        exact(&rig, &server).await;
        let turn = server.load.clone().next_turn();
        let question = json!({"model": "sim", "token_ids": turn.prompt, "all": true});
        let (code, answer) = call(rig.http, "POST", "/v1/query", &question).await;
        assert_eq!(code, 200, "{answer}");
        let predicted = answer["matches"][0]["cached_tokens"].as_u64().unwrap();
        let (prompt, result) = server.turn();
        assert_eq!(prompt, turn.prompt);
        assert_eq!(predicted, result.cached_tokens as u64);
        hits += u64::from(predicted > 0);
    }
    assert!(hits > 20, "{hits} of 40");
}

/// The engine dies and comes back, having published this many events before it is reached.
async fn restart_is_survived(ahead: impl Fn(u64) -> u64) {
    let mut server = DrainedEngine::start(|_| {});
    server.work(10);
    let rig = rig(&server).await;
    let before = exact(&rig, &server).await.remove(0);
    let first_event_id = ahead(server.sim.state()[0].next_event_id);
    server.sim.fault(None, TrtFault::Restart(TrtRestart { first_event_id, same_content: true }));
    let after = rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    assert!(after.epoch > before.epoch);
    server.work(3);
    exact(&rig, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_restarted_below_our_ids() {
    restart_is_survived(|_| 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_restarted_at_our_ids() {
    restart_is_survived(|next| next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_restarted_above_our_ids() {
    restart_is_survived(|next| next + 7).await;
}

/// Answers that hold nothing of the engine's: nothing is lost, and the trouble has a name meanwhile.
async fn trouble_passes(answer: TrtAnswer, word: &str) {
    let mut server = DrainedEngine::start(|_| {});
    server.work(10);
    let rig = rig(&server).await;
    let before = exact(&rig, &server).await.remove(0);
    server.sim.fault(None, TrtFault::Answer { answer, polls: UNTIL_HEALED });
    let during = rig.until(0, "in trouble", |status| status.trouble.is_some()).await;
    assert_eq!(during.trouble.map(Trouble::as_str), Some(word));
    assert_eq!((during.continuity, during.trust.level()), (Continuity::Recovering, Trust::Exact));
    assert_eq!(during.blocks, before.blocks, "what is known stays known");
    server.work(3);
    server.sim.fault(None, TrtFault::Heal);
    rig.until(0, "out of it", |status| status.trouble.is_none()).await;
    let after = exact(&rig, &server).await.remove(0);
    assert_eq!(after.epoch, before.epoch);
    assert_eq!(after.troubles, [(during.trouble.unwrap(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_errors() {
    trouble_passes(TrtAnswer::Unavailable, "http_server_error").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_page() {
    trouble_passes(TrtAnswer::Html, "not_json").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_is_not_a_list() {
    trouble_passes(TrtAnswer::Object, "not_a_list").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_of_nothing_behind_the_list() {
    let mut server = DrainedEngine::start(|_| {});
    let rig = rig(&server).await;
    exact(&rig, &server).await;
    server.sim.fault(None, TrtFault::Answer { answer: TrtAnswer::Huge, polls: 1 });
    server.work(5);
    exact(&rig, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_answer_is_a_gap_and_no_theft() {
    let mut server = DrainedEngine::start(|_| {});
    server.work(5);
    let rig = rig(&server).await;
    exact(&rig, &server).await;
    server.sim.fault(None, TrtFault::Answer { answer: TrtAnswer::Truncated, polls: UNTIL_HEALED });
    server.work(5);
    // An answer that was cut short took the events with it.
    let taken = || server.sim.state()[0].waiting_events == 0;
    rig.until(0, "in trouble", |status| status.trouble.is_some() && taken()).await;
    server.sim.fault(None, TrtFault::Heal);
    rig.until(0, "answered again", |status| status.trouble.is_none()).await;
    server.work(5);
    let status = caught_up(&rig, &server).await.remove(0);
    assert_eq!(status.trust.worst().unwrap().reason, Reason::Gap);
    // A new life is known from its start: exact again.
    server.sim.fault(None, TrtFault::Restart(TrtRestart::default()));
    server.work(2);
    exact(&rig, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_lost_between_are_a_stolen_drain() {
    let mut server = DrainedEngine::start(|_| {});
    server.work(5);
    let rig = rig(&server).await;
    exact(&rig, &server).await;
    server.sim.fault(None, TrtFault::Lose(2));
    server.work(3);
    let status = caught_up(&rig, &server).await.remove(0);
    assert_eq!(status.trust.worst().unwrap().reason, Reason::StolenDrain);
    assert!(status.counters.gaps_unfilled > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_that_overflows_is_suspected() {
    let mut server = DrainedEngine::start(|config| config.event_buffer = 4);
    let rig = rig(&server).await;
    rig.live(0).await;
    // Many requests between two polls, so that only the last events are left.
    let status = loop {
        server.work(20);
        let status = caught_up(&rig, &server).await.remove(0);
        if status.counters.gaps > 0 {
            break status;
        }
    };
    assert_eq!(status.trust.worst().unwrap().reason, Reason::SuspectedDrain);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_off_have_a_name() {
    let mut server = DrainedEngine::start(|config| config.event_buffer = 0);
    server.work(3);
    let rig = rig(&server).await;
    let status = rig
        .until(0, "named", |status| status.trust.active().iter().any(|d| d.reason == Reason::EventsDisabled))
        .await;
    assert_eq!((status.continuity, status.trust.level()), (Continuity::Live, Trust::Lower));
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_reach_is_down_and_the_same_life_keeps_everything() {
    let mut server = DrainedEngine::start(|_| {});
    server.work(5);
    let options = PlaneOptions { down_after: Duration::from_millis(300), ..PlaneOptions::default() };
    let rig = Rig::of_specs(vec![server.spec("e0")], options).await;
    let before = exact(&rig, &server).await.remove(0);
    server.sim.fault(None, TrtFault::Answer { answer: TrtAnswer::Unavailable, polls: UNTIL_HEALED });
    rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
    server.work(2);
    server.sim.fault(None, TrtFault::Heal);
    let after = exact(&rig, &server).await.remove(0);
    assert_eq!(after.epoch, before.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn kvplane_restarted_knows_what_comes_and_says_so() {
    let mut server = DrainedEngine::start(|_| {});
    server.work(5);
    let first = rig(&server).await;
    exact(&first, &server).await;
    first.stop().await;
    let second = rig(&server).await;
    let status = second.live(0).await;
    assert_eq!(status.trust.worst().unwrap().reason, Reason::History, "what was drained before is gone");
    server.work(3);
    let status = caught_up(&second, &server).await.remove(0);
    assert_eq!(status.trust.level(), Trust::Lower);
    assert!(status.known_from > Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_later_is_heard_from_its_start() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    drop(taken);
    let url = format!("http://{address}");
    let mut spec = DrainedEngine::start(|_| {}).spec("e0");
    spec.source = Source::Drained(Drained { url, buffer: None, ranks: SharedRanks::first(1) });
    let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
    let status = rig.until(0, "in trouble", |status| status.trouble.is_some()).await;
    assert_eq!((status.trouble, status.continuity), (Some(Trouble::Unreachable), Continuity::Connecting));
    let mut server = DrainedEngine::start(|config| config.http = address);
    server.work(3);
    exact(&rig, &server).await;
}
