//! The fault matrix: every row that concerns one engine, over real sockets.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod dialects;
mod drain;
mod dropped;
mod evidence;
mod flush;
mod frames;
mod heard;
mod hybrid;
mod identity;
mod members;
mod query;
mod query_faults;
mod query_refused;
mod refusals;
mod relay;
mod replay;
mod republish;
mod smg;
mod subscribers;
mod text;
mod tiers;

use crate::every_engine;
use crate::rig::{Engine, Rig};
use kvplane_core::{Continuity, Trust};
use kvplane_proto::kvplane::v1::ResetReason;
use kvplane_sim::{Fault, Restart};

/// An engine is killed and restarted, having published `ahead` batches before we are back.
async fn restart_is_survived(ahead: impl Fn(u64) -> u64) {
    let mut engine = Engine::plain();
    engine.work(10);
    let rig = Rig::over(&[&engine]).await;
    let before = rig.exact(0, &engine).await;
    let mut subscriber = rig.subscribe(None).await;
    subscriber.catch_up(&rig).await;
    let first_sequence = ahead(engine.next_sequence());
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
    let after = rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    assert!(after.epoch > before.epoch);
    engine.work(3);
    rig.exact(0, &engine).await;
    subscriber.catch_up(&rig).await;
    assert_eq!(subscriber.resets, [ResetReason::Start, ResetReason::NewEpoch]);
    assert_eq!(subscriber.blocks, crate::rig::held(&rig.stream(0)).await);
}

every_engine! {
    async fn killed_and_restarted_below_our_sequence() {
        restart_is_survived(|_| 0).await;
    }
}

every_engine! {
    async fn killed_and_restarted_at_our_sequence() {
        restart_is_survived(|next| next).await;
    }
}

every_engine! {
    async fn killed_and_restarted_above_our_sequence() {
        restart_is_survived(|next| next + 7).await;
    }
}

every_engine! {
    async fn the_connection_drops_and_comes_back_in_the_same_process() {
        let mut engine = Engine::plain();
        engine.work(10);
        let rig = Rig::over(&[&engine]).await;
        let before = rig.exact(0, &engine).await;
        let mut subscriber = rig.subscribe(None).await;
        subscriber.catch_up(&rig).await;
        engine.sim.fault(None, Fault::Disconnect);
        engine.work(5);
        rig.until(0, "reconnected", |s| s.counters.disconnects == 1 && s.continuity == Continuity::Live).await;
        let after = rig.exact(0, &engine).await;
        assert_eq!(after.epoch, before.epoch);
        assert_eq!(after.counters.restarts, 0);
        subscriber.catch_up(&rig).await;
        assert_eq!(subscriber.resets, [ResetReason::Start], "nobody downstream notices");
        assert_eq!(subscriber.blocks, crate::rig::held(&rig.stream(0)).await);
    }
}

every_engine! {
    #[only(vllm)]
    async fn same_process_reconnect_without_replay_needs_the_hint() {
        for (with_hint, expected) in [(true, Trust::Exact), (false, Trust::Lower)] {
            let mut engine = Engine::plain().without_replay();
            if !with_hint {
                engine = engine.without_http();
            }
            let rig = Rig::over(&[&engine]).await;
            rig.live(0).await;
            assert!(engine.sim.wait_for_subscriptions(0, 1, crate::rig::DEADLINE));
            // Without the hint of before, the one of after proves nothing.
            rig.until(0, "the hint", |status| status.started.is_some() == with_hint).await;
            engine.work(5);
            let before = rig.exact(0, &engine).await;
            engine.sim.fault(None, Fault::Disconnect);
            rig.until(0, "reconnected", |s| {
                s.counters.disconnects == 1 && s.continuity == Continuity::Recovering
            })
            .await;
            assert!(engine.sim.wait_for_subscriptions(0, 1, crate::rig::DEADLINE));
            engine.work(5);
            let after = rig.caught_up(0, &engine).await;
            assert_eq!(after.trust.level(), expected, "{:?} {:?}", after.trust, after.counters);
            assert_eq!(after.epoch == before.epoch, with_hint);
        }
    }
}

every_engine! {
    async fn out_of_reach_is_down_and_a_same_life_return_keeps_everything() {
        let mut engine = Engine::plain();
        engine.work(10);
        let options = kvplane_ingest::PlaneOptions {
            down_after: std::time::Duration::from_millis(300),
            ..kvplane_ingest::PlaneOptions::default()
        };
        let rig = Rig::with_options(&[&engine], options).await;
        let before = rig.exact(0, &engine).await;
        // A replay socket that does not answer leaves the verdict open for as long as it takes.
        engine.sim.fault(None, Fault::Replay(kvplane_sim::ReplayMode::Off));
        engine.sim.fault(None, Fault::Disconnect);
        rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
        assert_eq!(rig.status(0).blocks, before.blocks, "state is kept for a return");
        engine.sim.fault(None, Fault::Replay(kvplane_sim::ReplayMode::On));
        engine.sim.fault(None, Fault::Disconnect);
        engine.work(2);
        let after = rig.exact(0, &engine).await;
        assert_eq!(after.epoch, before.epoch);
    }
}

every_engine! {
    async fn kvplane_restarted_learns_the_state_from_the_ring_and_foreign_cursors_get_a_snapshot() {
        let mut engine = Engine::plain();
        engine.work(10);
        let first = Rig::over(&[&engine]).await;
        first.exact(0, &engine).await;
        let mut subscriber = first.subscribe(None).await;
        subscriber.catch_up(&first).await;
        let cursor = subscriber.cursor;
        first.stop().await;
        let second = Rig::over(&[&engine]).await;
        second.exact(0, &engine).await;
        let mut resumed = second.subscribe(Some(cursor)).await;
        resumed.catch_up(&second).await;
        assert_eq!(resumed.resets, [ResetReason::OtherEpoch]);
        assert_eq!(resumed.blocks, subscriber.blocks);
    }
}

every_engine! {
    #[only(vllm, sglang)]
    async fn a_late_join_below_the_ring_or_without_one_is_lower_and_says_since_when() {
        let mut short = Engine::start(|config| config.buffer_steps = 4);
        short.work(10);
        let mut none = Engine::plain().without_replay();
        none.work(5);
        let on_the_device = |(at, engine): (usize, &Engine)| {
            let mut spec = engine.spec(&format!("e{at}"));
            // A clear says nothing of tiers that it does not reach.
            spec.cache.device_only = true;
            spec
        };
        let specs = [&short, &none].into_iter().enumerate().map(on_the_device).collect();
        let rig = Rig::of_specs(specs, kvplane_ingest::PlaneOptions::default()).await;
        let status = rig.caught_up(0, &short).await;
        assert_eq!(status.trust.level(), Trust::Lower);
        assert_eq!(status.known_from, Some(short.next_sequence() - 4));
        rig.live(1).await;
        assert!(none.sim.wait_for_subscriptions(0, 1, crate::rig::DEADLINE));
        let known_from = none.next_sequence();
        none.work(5);
        let status = rig.caught_up(1, &none).await;
        assert_eq!((status.trust.level(), status.known_from), (Trust::Lower, Some(known_from)));
        // A clear of everything makes it exact again.
        for (at, engine) in [&mut short, &mut none].into_iter().enumerate() {
            assert!(engine.sim.reset_prefix_cache());
            engine.work(3);
            rig.exact(at, engine).await;
        }
    }
}

every_engine! {
    #[only(vllm)]
    async fn knowing_every_block_that_the_engine_has_is_exact() {
        let mut engine = Engine::start(|config| {
            config.buffer_steps = 2;
            config.blocks = 40;
        });
        engine.work(10);
        let mut spec = engine.spec("e0");
        spec.cache.device_only = true;
        let rig = Rig::of_specs(vec![spec], kvplane_ingest::PlaneOptions::default()).await;
        let status = rig.caught_up(0, &engine).await;
        assert_eq!(status.trust.level(), Trust::Lower);
        // The small pool turns over until each of its blocks has been announced while we listen.
        for _ in 0..200 {
            engine.work(2);
            if rig.caught_up(0, &engine).await.trust.level() == Trust::Exact {
                return;
            }
        }
        panic!("never exact: {:#?}", rig.status(0));
    }
}
