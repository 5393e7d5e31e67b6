//! The replay endpoint is absent, slow, without end, cut short, or answers nonsense: that stream fails
//! closed, the others go on.

use kvplane_core::Trust;
use kvplane_ingest::PlaneOptions;
use kvplane_sim::{Fault, ReplayMode};
use std::time::Duration;

use crate::every_engine;
use crate::rig::{DEADLINE, Engine, Rig};

/// Two engines; the first one's replay goes bad, then it loses a frame. Whether it began another life, as far
/// as is known.
async fn fails_closed(mode: ReplayMode, options: PlaneOptions) -> bool {
    let (mut bad, mut good) = (Engine::plain(), Engine::start(|config| config.seed = 1));
    bad.work(6);
    good.work(6);
    let rig = Rig::with_options(&[&bad, &good], options).await;
    let first = rig.exact(0, &bad).await;
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
    assert!(status.counters.replays_failed >= 3, "{mode:?}: {:?}", status.counters);
    bad.work(4);
    rig.caught_up(0, &bad).await;
    rig.exact(1, &good).await;
    status.epoch > first.epoch
}

/// Longer than a busy machine keeps a replay that does answer waiting.
fn soon_given_up() -> PlaneOptions {
    PlaneOptions { replay_idle: Duration::from_secs(1), ..PlaneOptions::default() }
}

every_engine! {
    async fn silent() {
        assert!(fails_closed(ReplayMode::Off, soon_given_up()).await, "nothing proves that it is the same life");
    }
}

every_engine! {
    async fn endless() {
        // It is never silent: nothing but the deadline ends it.
        let replay_deadline = Duration::from_secs(1);
        let options = PlaneOptions { replay_idle: DEADLINE * 2, replay_deadline, ..PlaneOptions::default() };
        assert!(!fails_closed(ReplayMode::Endless, options).await, "it has shown that it is the same life");
    }
}

every_engine! {
    async fn nonsense() {
        assert!(fails_closed(ReplayMode::Nonsense, soon_given_up()).await, "nothing proves that it is the same life");
    }
}

every_engine! {
    async fn noise_under_the_right_sequences() {
        // The batch at our last sequence is another one: that is what a restart looks like, and it is treated
        // as one.
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
        // Every answer brings half of what is left, and says that this was all.
        const LOST: u32 = 200;
        let mut engine = Engine::plain();
        engine.work(6);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        // The connection has brought a batch: what it brings later is of the same life.
        engine.work(1);
        let before = rig.exact(0, &engine).await;
        engine.sim.fault(None, Fault::Replay(ReplayMode::Short));
        let first = engine.next_sequence();
        engine.sim.fault(None, Fault::Drop(LOST));
        while engine.next_sequence() <= first + u64::from(LOST) {
            engine.work(1);
        }
        let status = rig.caught_up(0, &engine).await;
        assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
        assert_eq!((status.counters.gaps_unfilled, status.epoch), (0, before.epoch));
        assert!(status.counters.replays > 4, "it asked on while answers came further: {:?}", status.counters);
    }
}

every_engine! {
    async fn absent() {
        let mut engine = Engine::plain().without_replay().without_http();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        assert!(engine.sim.wait_for_subscriptions(0, 1, DEADLINE));
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
