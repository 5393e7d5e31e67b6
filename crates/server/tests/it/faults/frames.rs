//! Frames lost, duplicated, reordered, truncated, undecodable; the last one before a silence; malformed
//! events.

use kvplane_core::{Continuity, Reason, Trust};
use kvplane_ingest::StreamStatus;
use kvplane_sim::{Fault, ReplayMode};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved};

use crate::every_engine;
use crate::rig::{Engine, Rig};

/// Arms a fault on a stream that follows, works on, and expects that nobody downstream notices.
async fn survives(fault: Fault, seen: impl Fn(&StreamStatus) -> bool) {
    let mut engine = Engine::plain();
    engine.work(5);
    let rig = Rig::over(&[&engine]).await;
    let before = rig.exact(0, &engine).await;
    let mut subscriber = rig.subscribe(None).await;
    subscriber.catch_up(&rig).await;
    engine.sim.fault(None, fault);
    engine.work(8);
    let after = rig.exact(0, &engine).await;
    assert_eq!(after.epoch, before.epoch);
    assert_eq!(after.counters.gaps_unfilled, 0);
    assert!(seen(&after), "{after:#?}");
    subscriber.catch_up(&rig).await;
    assert_eq!(subscriber.resets.len(), 1);
    assert_eq!(subscriber.blocks, crate::rig::held(&rig.stream(0)).await);
}

every_engine! {
    async fn lost() {
        survives(Fault::Drop(2), |status| status.counters.gaps >= 1).await;
    }
}

every_engine! {
    async fn duplicated() {
        survives(Fault::Duplicate(3), |status| status.counters.duplicates >= 3).await;
    }
}

every_engine! {
    async fn reordered() {
        survives(Fault::Reorder(2), |status| status.counters.gaps >= 1).await;
    }
}

every_engine! {
    async fn delayed() {
        survives(Fault::Delay { millis: 50, count: 2 }, |status| status.counters.restarts == 0).await;
    }
}

every_engine! {
    async fn truncated() {
        survives(Fault::Truncate(1), |status| status.counters.undecodable == 1).await;
    }
}

every_engine! {
    async fn undecodable() {
        survives(Fault::Garbage(2), |status| (1..=2).contains(&status.counters.undecodable)).await;
    }
}

every_engine! {
    async fn the_last_one_before_a_silence() {
        let mut engine = Engine::plain();
        engine.work(5);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let next = engine.next_sequence();
        engine.sim.fault(None, Fault::Drop(1_000));
        engine.work(1);
        assert!(engine.next_sequence() > next);
        // Nothing arrives any more; the quiet question finds what was lost.
        rig.exact(0, &engine).await;
    }
}

every_engine! {
    async fn reordered_without_replay_on_the_same_connection() {
        let mut engine = Engine::plain().without_replay();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        assert!(engine.sim.wait_for_subscriptions(0, 1, crate::rig::DEADLINE));
        engine.repeat_what_nobody_heard();
        engine.work(2);
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Reorder(1));
        engine.work(4);
        let after = rig.exact(0, &engine).await;
        assert_eq!(after.epoch, before.epoch);
    }
}

every_engine! {
    #[only(vllm, sglang)]
    async fn lost_for_good_drops_residency_heals_by_itself_and_a_clear_makes_it_exact() {
        let mut engine = Engine::plain();
        engine.work(8);
        let rig = Rig::over(&[&engine]).await;
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Lose(1));
        engine.work(6);
        let after = rig.caught_up(0, &engine).await;
        assert_eq!(after.trust.level(), Trust::Lower);
        assert!(after.trust.has(Reason::Gap));
        assert_eq!(after.epoch, before.epoch, "the life is the same: only its residency was forgotten");
        assert!(after.journal.proven_blocks > 0, "later stores prove what they build on");
        assert!(engine.sim.reset_prefix_cache());
        engine.work(2);
        rig.exact(0, &engine).await;
    }
}

every_engine! {
    async fn undecodable_in_the_ring_too_fails_closed() {
        let mut engine = Engine::plain();
        engine.work(5);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        engine.sim.publish_raw(None, &[0xc1, 0xff, 0x00]);
        engine.work(3);
        let status = rig.caught_up(0, &engine).await;
        assert!(status.trust.has(Reason::Undecodable), "{:?}", status.trust);
    }
}

every_engine! {
    async fn huge_lengths_and_deep_nesting_are_refused_and_the_stream_goes_on() {
        let mut engine = Engine::plain();
        engine.work(2);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let mut nested = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
        nested.extend(vec![0x91; 200_000]);
        let huge = [&[0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0xdd, 0xff, 0xff, 0xff, 0xff]].concat();
        for payload in [nested, huge] {
            engine.sim.publish_raw(None, &payload);
        }
        engine.work(3);
        let status = rig.caught_up(0, &engine).await;
        assert!(status.counters.undecodable >= 2);
        assert_eq!(status.continuity, Continuity::Live);
    }
}

every_engine! {
    #[only(vllm)]
    async fn a_malformed_event_is_rejected_by_itself() {
        // [ts, [["BlockStored"] (too short), {"type": "BlockRemoved"} (no hashes), {"type": "Surprise"}, good
        // removal], 0]
        let good = OwnedEvent::Removed(OwnedRemoved {
            block_hashes: vec![OwnedHash::Unsigned(1)],
            medium: Some("GPU".to_owned()),
            ..OwnedRemoved::default()
        });
        let good = encode_batch(Profile::Vllm0_24, 1.0, Some(0), &[good]);
        let good_event = &good[11..good.len() - 1];
        let mut payload = vec![0x93, 0xcb, 0x41, 0xd9, 0x54, 0xfc, 0x40, 0x20, 0, 0, 0x94];
        payload.extend(b"\x91\xabBlockStored");
        payload.extend(b"\x81\xa4type\xacBlockRemoved");
        payload.extend(b"\x81\xa4type\xa8Surprise");
        payload.extend(good_event);
        payload.push(0);

        let mut engine = Engine::plain();
        engine.work(2);
        let rig = Rig::over(&[&engine]).await;
        let before = rig.exact(0, &engine).await;
        engine.sim.publish_raw(None, &payload);
        let status = rig.until(0, "heard", |s| s.engine_sequence > before.engine_sequence).await;
        for reason in [Reason::MalformedStore, Reason::MalformedRemoval, Reason::UnknownEvent] {
            assert!(status.trust.has(reason), "{reason}: {:?}", status.trust);
        }
        assert_eq!(status.trust.level(), Trust::Unsound);
        assert_eq!(
            status.journal.unknown_removals,
            before.journal.unknown_removals + 1,
            "the good one was applied"
        );
        assert_eq!(status.blocks, before.blocks);
    }
}

every_engine! {
    #[only(vllm)]
    async fn an_unfilled_gap_with_on_gap_keep_is_unsound() {
        let mut engine = Engine::plain();
        engine.work(5);
        let options = kvplane_ingest::PlaneOptions {
            on_gap: kvplane_stream::OnGap::Keep,
            ..kvplane_ingest::PlaneOptions::default()
        };
        let rig = Rig::with_options(&[&engine], options).await;
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Lose(1));
        engine.work(3);
        let status = rig.until(0, "unsound", |status| status.trust.level() == Trust::Unsound).await;
        assert_eq!(status.epoch, before.epoch);
        assert!(status.trust.has(Reason::GapKept));
        engine.sim.fault(None, Fault::Replay(ReplayMode::On));
    }
}
