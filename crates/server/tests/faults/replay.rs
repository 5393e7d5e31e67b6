//! The replay endpoint is absent, slow, cut short, or answers nonsense: that stream fails closed, the others go on.

use kvplane_core::{Continuity, Trust};
use kvplane_ingest::PlaneOptions;
use kvplane_sim::{Fault, ReplayMode};
use std::time::Duration;

use crate::every_engine;
use crate::rig::{Engine, Rig};

/// Two engines; the first one's replay goes bad, then it loses a frame.
async fn fails_closed(mode: ReplayMode) {
    let (mut bad, mut good) = (Engine::plain(), Engine::start(|config| config.seed = 1));
    bad.work(6);
    good.work(6);
    // Longer than a busy machine keeps a replay that does answer waiting.
    let options = PlaneOptions { replay_idle: Duration::from_secs(1), ..PlaneOptions::default() };
    let rig = Rig::with_options(&[&bad, &good], options).await;
    rig.exact(0, &bad).await;
    let before = rig.exact(1, &good).await;
    bad.sim.fault(None, Fault::Replay(mode));
    bad.sim.fault(None, Fault::Drop(2));
    bad.work(6);
    good.work(6);
    let after = rig.exact(1, &good).await;
    assert_eq!(after.epoch, before.epoch);
    // Caught up, and what is known holds no phantoms.
    let status = rig.caught_up(0, &bad).await;
    assert_eq!(status.trust.level(), Trust::Lower, "{mode:?}: {:?}", status.trust);
    bad.work(4);
    rig.caught_up(0, &bad).await;
}

every_engine! {
    async fn silent() {
        fails_closed(ReplayMode::Off).await;
    }
}

every_engine! {
    async fn nonsense() {
        fails_closed(ReplayMode::Nonsense).await;
    }
}

every_engine! {
    async fn noise_under_the_right_sequences() {
        // The batch at our last sequence is another one: that is what a restart looks like, and it is treated as one.
        let mut engine = Engine::plain();
        engine.work(6);
        let rig = Rig::over(&[&engine]).await;
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Replay(ReplayMode::Garbage));
        engine.sim.fault(None, Fault::Drop(1));
        engine.work(3);
        let status = rig.until(0, "another epoch", |status| status.epoch > before.epoch).await;
        assert!(status.counters.restarts >= 1);
        engine.sim.fault(None, Fault::Replay(ReplayMode::On));
        engine.work(2);
        rig.caught_up(0, &engine).await;
    }
}

every_engine! {
    async fn slow() {
        let mut engine = Engine::plain();
        engine.work(3);
        let rig = Rig::over(&[&engine]).await;
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Replay(ReplayMode::Slow));
        engine.sim.fault(None, Fault::Drop(1));
        engine.work(1);
        let status = rig.exact(0, &engine).await;
        assert_eq!(status.epoch, before.epoch, "slow is not wrong");
    }
}

every_engine! {
    async fn cut_short() {
        let mut engine = Engine::plain();
        engine.work(6);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Replay(ReplayMode::Short));
        engine.sim.fault(None, Fault::Drop(3));
        engine.work(6);
        let status = rig.caught_up(0, &engine).await;
        assert_eq!(status.continuity, Continuity::Live);
    }
}

every_engine! {
    async fn absent() {
        let mut engine = Engine::plain().without_replay().without_http();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        assert!(engine.sim.wait_for_subscriptions(0, 1, crate::rig::DEADLINE));
        engine.repeat_what_nobody_heard();
        engine.work(5);
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Drop(1));
        engine.work(5);
        let status = rig.caught_up(0, &engine).await;
        assert_eq!(status.trust.level(), Trust::Lower);
        assert!(status.epoch > before.epoch, "nothing proves that it is the same life");
        assert_eq!(status.counters.unproven, 1);
    }
}
