//! Planes that follow other planes.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod bookings;
mod loops;
mod secured;

use crate::rig::{Engine, Rig, call, config, hasty, held, until};
use kvplane_core::{Continuity, EngineKind, LinkTrouble, Reason, Trust};
use kvplane_ingest::{Origin, PlaneOptions};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::ResetReason;
use kvplane_sim::{Fault, Restart};
use serde_json::Value;

/// A prompt that the engine has computed: the tokens of its longest chain.
async fn prompt_of(site: &Rig, id: &str) -> Vec<u32> {
    let snapshot = site.stream(id).snapshot().await;
    let chains = snapshot.image.blocks.iter().filter_map(|block| Some((block.hash, block.attached_chain()?)));
    let chains: std::collections::HashMap<u64, _> = chains.collect();
    let tokens = |mut hash: u64| {
        let mut line = Vec::new();
        while let Some(chain) = chains.get(&hash) {
            line.push(chain.tokens.clone());
            match chain.parent() {
                kvplane_stream::Parent::Block(parent) => hash = parent,
                kvplane_stream::Parent::Root => break,
            }
        }
        line.iter().rev().flat_map(kvplane_stream::Tokens::to_vec).collect::<Vec<u32>>()
    };
    chains.keys().map(|&hash| tokens(hash)).max_by_key(Vec::len).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_plane_has_all_and_goes_on_and_so_does_the_next() {
    let mut engine = Engine::plain();
    engine.work(10);
    let a = Rig::hasty(&[&engine]).await;
    a.heard("e0", &engine).await;
    let (b, c) = (Rig::hasty(&[]).await, Rig::hasty(&[]).await);
    b.follow("a", &a).await;
    c.follow("b", &b).await;
    for _ in 0..3 {
        let status = b.equal("a/e0", &a, "e0", &engine).await;
        assert_eq!(status.trust.level(), Trust::Exact);
        c.equal("b/a/e0", &a, "e0", &engine).await;
        assert_eq!(held(&c.stream("b/a/e0")).await, held(&a.stream("e0")).await);
        engine.work(5);
    }
    c.equal("b/a/e0", &a, "e0", &engine).await;
    let member = c.member("b/a/e0").unwrap();
    assert_eq!((member.spec.kind, member.spec.model.as_str()), (EngineKind::Vllm, "sim"));
    let counters = c.stream("b/a/e0").status().counters;
    assert_eq!((counters.restarts, counters.gaps, counters.refused), (0, 0, 0), "one snapshot, no doubt");
    let via: Vec<String> = c.stream("b/a/e0").via().iter().map(ToString::to_string).collect();
    assert_eq!(via, [&a, &b, &c].map(|site| site.plane.id().to_string()));
    // The same question has the same answer everywhere.
    let prompt = prompt_of(&a, "e0").await;
    let [there] = a.ask(&prompt).await.try_into().unwrap();
    for (site, id) in [(&b, "a/e0"), (&c, "b/a/e0")] {
        let [here] = site.ask(&prompt).await.try_into().unwrap();
        assert_eq!(here, (id.to_owned(), there.1, there.2));
    }
    assert!(there.1 > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_is_in_another_life_on_every_plane() {
    let mut engine = Engine::plain();
    engine.work(10);
    let a = Rig::hasty(&[&engine]).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    let before = b.equal("a/e0", &a, "e0", &engine).await;
    let mut subscriber = b.subscribe_stream("a/e0", None).await;
    let first_sequence = engine.next_sequence() + 7;
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
    a.until("e0", "restarted", |status| status.counters.restarts == 1).await;
    engine.work(3);
    let after = b.equal("a/e0", &a, "e0", &engine).await;
    assert!(after.epoch > before.epoch);
    subscriber.follow_to(&b.stream("a/e0")).await;
    assert_eq!(subscriber.resets.first(), Some(&ResetReason::Start));
    assert!(subscriber.resets[1..].iter().all(|reason| *reason == ResetReason::NewEpoch));
    assert_eq!(subscriber.blocks, held(&a.stream("e0")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plane_at_the_address_is_a_reset() {
    let mut engine = Engine::plain();
    engine.work(10);
    let mut a = Rig::hasty(&[&engine]).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    let before = b.equal("a/e0", &a, "e0", &engine).await;
    let stream = b.stream("a/e0");
    a.replace(&[&engine]).await;
    engine.work(2);
    b.until("a/e0", "in another life", |status| status.epoch > before.epoch).await;
    b.equal("a/e0", &a, "e0", &engine).await;
    assert!(std::sync::Arc::ptr_eq(&stream, &b.stream("a/e0")), "the engine never went");
    until("known by its new identity", || stream.via().first().is_some_and(|plane| plane == a.plane.id()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_reach_is_said_and_a_return_is_no_reset() {
    let mut engine = Engine::plain();
    engine.work(8);
    let mut a = Rig::hasty(&[&engine]).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    b.equal("a/e0", &a, "e0", &engine).await;
    let prompt = prompt_of(&a, "e0").await;
    assert_eq!(b.ask(&prompt).await.len(), 1);
    let mut subscriber = b.subscribe_stream("a/e0", None).await;
    subscriber.follow_to(&b.stream("a/e0")).await;
    a.close().await;
    let lost = b.until("a/e0", "down", |status| status.continuity == Continuity::Down).await;
    assert_eq!(lost.trust.level(), Trust::Exact, "what was known is still true of then");
    assert!(b.ask(&prompt).await.is_empty(), "not credited");
    until("unreached", || b.link_status("a").trouble == Some(LinkTrouble::Unreached)).await;
    engine.work(4);
    a.heard("e0", &engine).await;
    a.open().await;
    let back = b.equal("a/e0", &a, "e0", &engine).await;
    assert_eq!((back.counters.restarts, back.counters.gaps, back.counters.disconnects), (0, 0, 1));
    subscriber.follow_to(&b.stream("a/e0")).await;
    assert_eq!(subscriber.resets, [ResetReason::Start], "nobody downstream is reset");
    assert_eq!(subscriber.blocks, held(&a.stream("e0")).await);
    while subscriber.continuities.last() != Some(&proto::Continuity::Live) {
        subscriber.next().await.unwrap();
    }
    let stood = &subscriber.continuities;
    let down = stood.iter().position(|continuity| *continuity == proto::Continuity::Down);
    assert!(down.is_some_and(|at| stood[at..].contains(&proto::Continuity::Live)), "{stood:?}");
    assert_eq!(b.ask(&prompt).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_outlasts_the_window_is_a_reset_for_everybody() {
    let mut engine = Engine::plain();
    engine.work(8);
    let mut a = Rig::with_options(&[&engine], PlaneOptions { max_batches: 5, ..hasty() }).await;
    a.heard("e0", &engine).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    let before = b.equal("a/e0", &a, "e0", &engine).await;
    let mut subscriber = b.subscribe_stream("a/e0", None).await;
    subscriber.follow_to(&b.stream("a/e0")).await;
    a.close().await;
    b.until("a/e0", "lost", |status| status.continuity != Continuity::Live).await;
    engine.work(12);
    a.heard("e0", &engine).await;
    a.open().await;
    let after = b.equal("a/e0", &a, "e0", &engine).await;
    assert_eq!(after.epoch, before.epoch);
    assert_eq!(after.counters.gaps, before.counters.gaps + 1);
    subscriber.follow_to(&b.stream("a/e0")).await;
    assert_eq!(subscriber.resets, [ResetReason::Start, ResetReason::Expired]);
    assert_eq!(subscriber.blocks, held(&a.stream("e0")).await);
    let mut back = b.subscribe_stream("a/e0", Some(cursor(&before))).await;
    back.follow_to(&b.stream("a/e0")).await;
    assert_eq!(back.resets, [ResetReason::Expired]);
}

fn cursor(status: &kvplane_ingest::StreamStatus) -> proto::Cursor {
    proto::Cursor { epoch: status.epoch.as_u64(), sequence: status.cursor.sequence, digest: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_is_what_it_is_there() {
    let mut engine = Engine::plain().without_replay();
    engine.work(6);
    let a = Rig::hasty(&[&engine]).await;
    a.until("e0", "live", |status| status.continuity == Continuity::Live).await;
    engine.work(3);
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    let status = b.equal("a/e0", &a, "e0", &engine).await;
    assert_eq!(status.trust.level(), Trust::Lower);
    assert!(status.trust.has(Reason::History));
    engine.sim.fault(None, Fault::Drop(2));
    engine.work(4);
    a.until("e0", "in doubt", |status| status.trust.has(Reason::Unproven)).await;
    let status = b.equal("a/e0", &a, "e0", &engine).await;
    assert!(status.trust.has(Reason::Unproven));
    assert_eq!(status.counters.refused, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_moves_from_plane_to_plane_with_its_cursor() {
    let mut engine = Engine::plain();
    engine.work(5);
    let a = Rig::hasty(&[&engine]).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    b.equal("a/e0", &a, "e0", &engine).await;
    let mut subscriber = a.subscribe_stream("e0", None).await;
    subscriber.follow_to(&a.stream("e0")).await;
    for round in 0..6 {
        let (site, id) = if round % 2 == 0 { (&b, "a/e0") } else { (&a, "e0") };
        engine.work(3);
        let mut moved = site.subscribe_stream(id, Some(subscriber.cursor)).await;
        moved.blocks = std::mem::take(&mut subscriber.blocks);
        b.equal("a/e0", &a, "e0", &engine).await;
        moved.follow_to(&site.stream(id)).await;
        assert!(moved.resets.is_empty(), "{:?}", moved.resets);
        assert_eq!(moved.blocks, held(&a.stream("e0")).await);
        subscriber = moved;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_come_and_go_as_they_do_there() {
    let (mut one, mut two) = (Engine::plain(), Engine::start(|config| config.seed = 2));
    one.work(3);
    let a = Rig::hasty(&[&one]).await;
    let (b, only) = (Rig::hasty(&[]).await, Rig::hasty(&[]).await);
    b.follow("a", &a).await;
    only.link("a", a.grpc, Some("e1")).await;
    b.equal("a/e0", &a, "e0", &one).await;
    until("not found", || only.link_status("a").trouble == Some(LinkTrouble::NotFound)).await;
    a.plane.add(vec![two.spec("e1")], Origin::Api).unwrap();
    two.work(3);
    b.equal("a/e1", &a, "e1", &two).await;
    let subscribed = only.member("a/e0").is_none();
    assert!(subscribed, "only e1 is wanted");
    let stays = b.stream("a/e0");
    a.plane.remove("e1").unwrap();
    until("gone", || b.member("a/e1").is_none()).await;
    a.plane.add(vec![two.spec("e1")], Origin::Api).unwrap();
    two.work(1);
    b.equal("a/e1", &a, "e1", &two).await;
    assert!(std::sync::Arc::ptr_eq(&stays, &b.stream("a/e0")), "the other did not notice");
    // What comes over a link goes with it, and not by itself.
    let (status, body) = call(b.http, "DELETE", "/v1/engines/a%2Fe0", &Value::Null).await;
    assert_eq!((status, body["error"]["code"].as_str()), (409, Some("conflict")), "{body}");
    let (status, _) = call(b.http, "DELETE", "/v1/engines/a", &Value::Null).await;
    assert_eq!(status, 204);
    assert!(b.plane.engines().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_a_slash_work_wherever_an_engine_is_named() {
    let mut engine = Engine::plain();
    engine.work(5);
    let a = Rig::hasty(&[&engine]).await;
    let b = Rig::hasty(&[]).await;
    b.follow("a", &a).await;
    b.equal("a/e0", &a, "e0", &engine).await;
    for name in ["a/e0", "a%2Fe0"] {
        let (status, dump) = call(b.http, "GET", &format!("/kv_recover?engine={name}"), &Value::Null).await;
        assert_eq!(status, 200);
        let (_, there) = call(a.http, "GET", "/kv_recover", &Value::Null).await;
        assert_eq!(dump["TreeDump"]["last_event_id"], there["TreeDump"]["last_event_id"]);
        assert!(dump["TreeDump"]["last_event_id"].is_number(), "{dump}");
    }
    let (_, status) = call(b.http, "GET", "/v1/status", &Value::Null).await;
    assert_eq!(status["plane"], b.plane.id().to_string());
    let engines = status["engines"].as_array().unwrap();
    let mirrored = engines.iter().find(|engine| engine["id"] == "a/e0").unwrap();
    assert_eq!(mirrored["from"]["link"], "a");
    assert_eq!(mirrored["from"]["engine"], "e0");
    assert_eq!((mirrored["kind"].as_str(), mirrored["model"].as_str()), (Some("vllm"), Some("sim")));
    let link = engines.iter().find(|engine| engine["id"] == "a").unwrap();
    assert_eq!((link["kind"].as_str(), link["link"]["connected"].as_bool()), (Some("kvplane"), Some(true)));
    let (_, ready) = call(b.http, "GET", "/readyz?strict=1", &Value::Null).await;
    assert_eq!(ready["ready"], true, "{ready}");
}

#[test]
fn a_link_is_described_by_its_address_alone() {
    let link = |change: fn(&mut kvplane_server::EngineConfig)| {
        let mut described = config("a", EngineKind::Kvplane);
        described.grpc = Some("http://127.0.0.1:50090".to_owned());
        change(&mut described);
        described.plan().map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(link(|_| {}), Ok(()));
    assert!(link(|link| link.grpc = None).unwrap_err().starts_with("grpc: is missing"));
    assert!(link(|link| link.grpc = Some("plane-a".to_owned())).unwrap_err().starts_with("grpc: "));
    assert!(link(|link| link.model = "llama".to_owned()).unwrap_err().starts_with("model: "));
    let of_an_engine = link(|link| {
        link.kind = EngineKind::Vllm;
        link.upstream = Some("e0".to_owned());
    });
    assert!(of_an_engine.unwrap_err().starts_with("upstream: "));
}
