//! Replicas over gRPC, of a plane over simulated engines: equal to the plane and to the engines' own truth,
//! whatever happens in between.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod drain;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use kvplane_client::proto::ResetReason;
use kvplane_client::proto::subscribe_response::Item;
use kvplane_client::{
    Change, Client, Connection, Continuity, Counters, Following, Options, Selection, Trust,
};
use kvplane_ingest::Origin;
use kvplane_sim::load::Random;
use kvplane_sim::{Fault, Restart};
use kvplane_testkit::{DEADLINE, Rig, until_async};
use support::liar::Liar;
use support::{client, equal, hasty, heard, seeded, stream};
use tokio::time::timeout;

async fn ready(following: &Following) {
    timeout(DEADLINE, following.ready()).await.expect("never ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_any_faults_replica_plane_and_engine_are_equal() {
    for seed in [1, 2] {
        fault_run(seed, 45).await;
    }
}

/// A query right after it is ready finds every stream credited that is credited at the plane.
#[tokio::test(flavor = "multi_thread")]
async fn ready_waits_for_the_first_proof_that_engines_are_there() {
    let mut engine = seeded(1);
    engine.work(3);
    let rig = Rig::over(&[&engine]).await;
    let first = client(&rig, hasty()).await.follow(Selection::All);
    let is_live = || first.replica(&stream(0)).is_some_and(|view| view.continuity() == Continuity::Live);
    until_async("live at the plane", async || is_live()).await;
    for _ in 0..20 {
        let following = client(&rig, hasty()).await.follow(Selection::All);
        ready(&following).await;
        let view = following.replica(&stream(0)).expect("followed");
        assert_eq!(view.continuity(), Continuity::Live, "{:?}", view.age());
    }
    // No proof is ever young enough for this one, so it is never ready although it has everything.
    let impossible = Options { max_silence: Duration::ZERO, ..hasty() };
    let following = client(&rig, impossible).await.follow(Selection::All);
    let current = || following.replica(&stream(0)).is_some_and(|view| view.is_current());
    until_async("current", async || current()).await;
    assert!(timeout(Duration::from_millis(200), following.ready()).await.is_err());
}

/// Once ready is not ready for ever: without proofs a later caller waits, although nothing has arrived that
/// says so.
#[tokio::test(flavor = "multi_thread")]
async fn ready_waits_again_once_the_proofs_are_too_old() {
    let mut engine = seeded(1);
    engine.work(3);
    let rig = Rig::over(&[&engine]).await;
    heard(&rig, 0, &engine).await;
    let mute = Arc::new(AtomicBool::new(false));
    let address = Liar::mute(rig.url(), mute.clone()).await;
    let following =
        Client::connect(&format!("http://{address}"), hasty()).await.unwrap().follow(Selection::All);
    let continuity = || following.replica(&stream(0)).map(|view| view.continuity());
    until_async("live", async || continuity() == Some(Continuity::Live)).await;
    ready(&following).await;
    mute.store(true, Ordering::Relaxed);
    until_async("too old", async || continuity() == Some(Continuity::Recovering)).await;
    assert_eq!(following.connection(), Connection::Connected);
    assert!(following.ready().now_or_never().is_none());
    mute.store(false, Ordering::Relaxed);
    ready(&following).await;
    assert_eq!(continuity(), Some(Continuity::Live));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_leaves_the_plane_takes_its_replica_and_no_other() {
    let mut engines = [seeded(1), seeded(2)];
    for engine in &mut engines {
        engine.work(3);
    }
    let rig = Rig::over(&[&engines[0], &engines[1]]).await;
    let options = Options { discover_every: Duration::from_millis(50), ..hasty() };
    let following = client(&rig, options).await.follow(Selection::All);
    ready(&following).await;
    rig.plane.remove("e1").unwrap();
    until_async("gone", async || following.replica(&stream(1)).is_none()).await;
    engines[0].work(2);
    ready(&following).await;
    let view = following.replica(&stream(0)).expect("followed");
    equal(&rig, 0, &engines[0], &view).await;
    // It comes back under its name, as another one.
    rig.plane.add(vec![engines[1].spec("e1")], Origin::Api).unwrap();
    until_async("back", async || following.replica(&stream(1)).is_some()).await;
    ready(&following).await;
    let view = following.replica(&stream(1)).expect("followed");
    equal(&rig, 1, &engines[1], &view).await;
    // Each stream was reset once at its start: nothing was taken from the one that stayed.
    assert_eq!(following.counters().resets, 3);
}

async fn fault_run(seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut engines = [seeded(seed), seeded(seed + 100)];
    let mut rig = Rig::over(&[&engines[0], &engines[1]]).await;
    let following = client(&rig, hasty()).await.follow(Selection::All);
    for step in 0..steps {
        let at = random.below(2) as usize;
        let engine = &mut engines[at];
        let count = 1 + random.below(3) as u32;
        let action = random.below(15);
        match action {
            0 => engine.sim.fault(None, Fault::Drop(count)),
            1 => engine.sim.fault(None, Fault::Duplicate(count)),
            2 => engine.sim.fault(None, Fault::Reorder(1)),
            3 => engine.sim.fault(None, Fault::Garbage(count)),
            4 => engine.sim.fault(None, Fault::Restart(Restart::default())),
            5 => {
                let first_sequence = engine.next_sequence() + u64::from(count);
                let same_content = random.below(2) == 0;
                engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content }));
            }
            6 => engine.sim.fault(None, Fault::Disconnect),
            7 => {
                rig.close().await;
                engine.work(count as usize);
                rig.open().await;
            }
            8 => rig.replace(&[&engines[0], &engines[1]]).await,
            9 => assert!(engine.sim.reset_prefix_cache()),
            _ => engine.work(count as usize),
        }
        engines[at].work(1);
        if random.below(3) == 0 {
            tokio::time::sleep(Duration::from_millis(random.below(60))).await;
        }
        if step % 15 == 14 {
            ready(&following).await;
        }
    }
    // Some faults wait for the next frames.
    for engine in &mut engines {
        engine.work(4);
    }
    ready(&following).await;
    for (at, engine) in engines.iter().enumerate() {
        let view = following.replica(&stream(at)).expect("followed");
        equal(&rig, at, engine, &view).await;
        assert_eq!(view.continuity(), Continuity::Live);
    }
    let counters = following.counters();
    assert_eq!((counters.digest_mismatches, counters.protocol_errors), (0, 0), "{counters:?}");
    following.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_changes_is_notified_and_the_replica_is_exact() {
    let mut engine = seeded(3);
    engine.work(2);
    let rig = Rig::over(&[&engine]).await;
    heard(&rig, 0, &engine).await;
    let options = Options { changes_kept: 4, ..hasty() };
    let following = client(&rig, options).await.follow(Selection::All);
    ready(&following).await;
    let mut changes = following.changes();
    engine.work(12);
    let view = following.replica(&stream(0)).unwrap();
    equal(&rig, 0, &engine, &view).await;
    let Some(Change::Lagged { missed }) = changes.next().await else { panic!("not told") };
    assert!(missed > 0);
    let mut kept = Vec::new();
    while let Some(Some(change)) = changes.next().now_or_never() {
        kept.push(change);
    }
    assert_eq!(kept.len(), 4, "as many as were asked for");
    let Some(Change::Batch { cursor, .. }) = kept.last() else { panic!("{kept:?}") };
    assert_eq!(Some(*cursor), view.cursor(), "the newest are kept");
    following.close().await;
    assert!(matches!(changes.next().await, Some(Change::Disconnected { .. })));
    assert!(changes.next().await.is_none(), "changes end with the following");
    assert!(!view.connected() && !view.is_current());
    assert_eq!(view.digest(), engine.digest(), "still readable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_plane_resets_and_a_restarted_server_does_not() {
    let mut engine = seeded(4);
    engine.work(5);
    let mut rig = Rig::over(&[&engine]).await;
    heard(&rig, 0, &engine).await;
    let following = client(&rig, hasty()).await.follow(Selection::Stream("e0".into(), 0));
    ready(&following).await;
    let view = following.replica(&stream(0)).unwrap();
    equal(&rig, 0, &engine, &view).await;

    // Only the servers go: what follows the cursor is all that is needed.
    let before = (view.digest(), view.trust());
    rig.close().await;
    until_async("disconnected", async || !view.connected()).await;
    assert!(!view.is_current());
    assert_eq!((view.digest(), view.trust()), before, "as it was last");
    assert_eq!(view.trust().level, Trust::Exact);
    until_async("waiting", async || matches!(following.connection(), Connection::Waiting { .. })).await;
    engine.work(3);
    rig.open().await;
    ready(&following).await;
    equal(&rig, 0, &engine, &view).await;
    assert_eq!(following.counters().resets, 1, "resumed");

    // Another plane has another epoch.
    let mut changes = following.changes();
    let epoch = view.epoch();
    rig.replace(&[&engine]).await;
    let reason = timeout(DEADLINE, async {
        loop {
            match changes.next().await.expect("changes go on") {
                Change::Reset { reason, .. } => return reason,
                Change::Connected | Change::Disconnected { .. } | Change::Batch { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(reason.await.expect("never reset"), ResetReason::OtherEpoch);
    engine.work(2);
    ready(&following).await;
    equal(&rig, 0, &engine, &view).await;
    assert!(view.epoch() > epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_come_and_go_with_the_plane_are_noticed() {
    let (mut first, mut second) = (seeded(5), seeded(6));
    first.work(2);
    second.work(2);
    let mut rig = Rig::over(&[&first]).await;
    let client = client(&rig, hasty()).await;
    let all = client.follow(Selection::All);
    let late = client.follow(Selection::Engines(vec!["e1".into()]));
    ready(&all).await;
    assert_eq!(all.replicas(), [stream(0)]);
    until_async("told", async || matches!(late.connection(), Connection::Waiting { .. })).await;
    assert_eq!(late.replicas(), []);

    rig.replace(&[&first, &second]).await;
    ready(&late).await;
    until_async("both", async || all.replicas() == [stream(0), stream(1)]).await;
    assert_eq!(late.replicas(), [stream(1)]);
    for following in [&all, &late] {
        equal(&rig, 1, &second, &following.replica(&stream(1)).unwrap()).await;
    }

    let gone = all.replica(&stream(1)).unwrap();
    rig.replace(&[&first]).await;
    until_async("gone", async || all.replicas() == [stream(0)]).await;
    assert!(!gone.connected());
    ready(&all).await;
    equal(&rig, 0, &first, &all.replica(&stream(0)).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_digest_is_counted_and_everything_is_asked_for_again() {
    let mut engine = seeded(7);
    engine.work(3);
    let rig = Rig::over(&[&engine]).await;
    heard(&rig, 0, &engine).await;
    // What is to be done to the next batch.
    let trick = Arc::new(AtomicU32::new(0));
    let tricks = trick.clone();
    let address = Liar::before(rig.url(), move |mut message| {
        if let Some(Item::Batch(batch)) = &mut message.item {
            match tricks.swap(0, Ordering::Relaxed) {
                1 => batch.digest.as_mut().unwrap().low ^= 1,
                2 => message.sequence += 1,
                3 => return Err(tonic::Status::data_loss("too slow")),
                _ => {}
            }
        }
        Ok(message)
    })
    .await;
    let client = Client::connect(&format!("http://{address}"), hasty()).await.unwrap();
    let following = client.follow(Selection::All);
    ready(&following).await;
    let view = following.replica(&stream(0)).unwrap();
    let counted: [fn(Counters) -> u64; 3] =
        [|it| it.digest_mismatches, |it| it.protocol_errors, |it| it.losses];
    for (number, counted) in (1..).zip(counted) {
        let resets = following.counters().resets;
        until_async("found", async || {
            trick.store(number, Ordering::Relaxed);
            engine.work(1);
            counted(following.counters()) > 0
        })
        .await;
        trick.store(0, Ordering::Relaxed);
        ready(&following).await;
        equal(&rig, 0, &engine, &view).await;
        // A loss alone voids nothing here: the plane says whether it can go on from the cursor.
        assert_eq!(following.counters().resets > resets, number != 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_an_error_at_once_and_a_wait_when_lazy() {
    let error = Client::connect("http://127.0.0.1:1", Options::default()).await.unwrap_err();
    assert!(error.to_string().contains("no kvplane answers"), "{error}");
    assert!(Client::lazy("http://", Options::default()).is_err());
    let following = Client::lazy("127.0.0.1:1", hasty()).unwrap().follow(Selection::All);
    until_async("told", async || matches!(following.connection(), Connection::Waiting { .. })).await;
    timeout(Duration::from_secs(1), following.close()).await.expect("closes while it waits");
}
