//! Every fault does what it says, over real sockets.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use crate::support::{PATIENCE, Scene, residency};
use kvplane_sim::{CompletionOptions, Fault, ReplayMode, Restart, SimConfig};
use kvplane_socket::{ReplayEnd, ReplayRequest};
use kvplane_wire::Decoder;

/// One batch per call.
fn publish(scene: &Scene, count: u32) {
    for _ in 0..count {
        let first = scene.engine.state()[0].next_sequence as u32 * 1000;
        let prompt: Vec<u32> = (first..first + 20).collect();
        scene.engine.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
    }
}

fn scene() -> Scene {
    Scene::start(SimConfig::default())
}

fn decodable(payload: &[u8]) -> bool {
    Decoder::default().decode(payload).is_ok_and(|batch| batch.broken.is_none())
}

#[test]
fn dropped_frames_are_only_in_replay() {
    let scene = scene();
    publish(&scene, 1);
    scene.engine.fault(None, Fault::Drop(3));
    publish(&scene, 5);
    assert_eq!(scene.heard(0).sequences(), [0, 4, 5]);
    assert_eq!(scene.replay(0, 1).sequences(), [1, 2, 3, 4, 5]);
}

#[test]
fn lost_batches_are_nowhere() {
    let scene = scene();
    scene.engine.fault(None, Fault::Lose(2));
    publish(&scene, 4);
    assert_eq!(scene.heard(0).sequences(), [2, 3]);
    assert_eq!(scene.replay(0, 0).sequences(), [2, 3]);
}

#[test]
fn frames_are_doubled_and_reordered() {
    let scene = scene();
    scene.engine.fault(None, Fault::Duplicate(1));
    publish(&scene, 2);
    assert_eq!(scene.heard(0).sequences(), [0, 0, 1]);
    scene.engine.fault(None, Fault::Reorder(1));
    publish(&scene, 3);
    assert_eq!(scene.heard(0).sequences(), [0, 0, 1, 3, 2, 4]);
}

#[test]
fn a_delayed_frame_comes_in_order_and_late() {
    let scene = scene();
    scene.engine.fault(None, Fault::Delay { millis: 150, count: 1 });
    let asked = std::time::Instant::now();
    publish(&scene, 3);
    assert_eq!(scene.heard(0).sequences(), [0, 1, 2]);
    assert!(asked.elapsed() >= Duration::from_millis(150));
}

#[test]
fn spoilt_payloads_are_live_only() {
    let scene = scene();
    scene.engine.fault(None, Fault::Garbage(1));
    publish(&scene, 1);
    scene.engine.fault(None, Fault::Truncate(1));
    publish(&scene, 2);
    let live: Vec<_> = scene.heard(0).messages.iter().map(|(_, payload)| decodable(payload)).collect();
    assert_eq!(live, [false, false, true]);
    assert!(scene.replay(0, 0).messages.iter().all(|(_, payload)| decodable(payload)));
}

#[test]
fn raw_payloads_go_out_under_any_sequence() {
    let scene = scene();
    publish(&scene, 1);
    scene.engine.publish_raw(Some(77), b"stray");
    scene.engine.publish_raw(None, b"own");
    publish(&scene, 1);
    assert_eq!(scene.heard(0).sequences(), [0, 77, 1, 2]);
    assert_eq!(scene.replay(0, 0).sequences(), [0, 1, 2]);
}

#[test]
fn replay_fails_in_every_way() {
    let scene = scene();
    publish(&scene, 6);
    let mode = |mode| scene.engine.fault(None, Fault::Replay(mode));
    mode(ReplayMode::Short);
    assert_eq!(scene.replay(0, 0).sequences(), [0, 1, 2]);
    mode(ReplayMode::Garbage);
    let garbage = scene.replay(0, 0);
    assert_eq!(garbage.sequences(), [0, 1, 2, 3, 4, 5]);
    assert!(garbage.messages.iter().all(|(_, payload)| !decodable(payload)));
    mode(ReplayMode::Nonsense);
    assert_eq!(scene.replay(0, 0).end, Some(ReplayEnd::Malformed("frame_count")));
    let endpoint = scene.engine.replay_endpoints()[0].clone().unwrap();
    mode(ReplayMode::Off);
    let idle_timeout = Duration::from_millis(200);
    let silent = scene.replay_with(ReplayRequest { idle_timeout, ..ReplayRequest::new(endpoint.clone(), 0) });
    assert_eq!((silent.end, silent.messages.len()), (Some(ReplayEnd::Idle), 0));
    mode(ReplayMode::Slow);
    let deadline = Duration::from_millis(350);
    let hurried = ReplayRequest { deadline, ..ReplayRequest::new(endpoint, 0) };
    let slow = scene.replay_with(hurried.clone());
    assert_eq!(slow.end, Some(ReplayEnd::Deadline));
    assert!(slow.messages.len() < 6);
    assert_eq!(scene.replay(0, 4).sequences(), [4, 5]);
    mode(ReplayMode::Endless);
    let endless = scene.replay_with(hurried);
    assert_eq!(endless.end, Some(ReplayEnd::Deadline));
    assert!(endless.sequences().iter().all(|sequence| *sequence == 0));
    mode(ReplayMode::On);
    assert_eq!(scene.replay(0, 5).sequences(), [5]);
}

#[test]
fn a_disconnect_keeps_the_life() {
    let scene = scene();
    publish(&scene, 2);
    let (before, started) = (scene.heard(0), scene.engine.start_time());
    scene.engine.fault(None, Fault::Disconnect);
    assert!(scene.engine.wait_for_subscriptions(0, 1, PATIENCE));
    publish(&scene, 1);
    let heard = scene.heard(0);
    assert_eq!(heard.sequences(), [0, 1, 2]);
    assert_eq!((heard.connected, heard.disconnected), (2, 1));
    assert_eq!(scene.replay(0, 0).messages[..2], before.messages[..]);
    assert_eq!(residency(&heard.messages), scene.engine.state()[0].blocks);
    assert!((scene.engine.start_time() - started).abs() < f64::EPSILON);
}

#[test]
fn a_restart_begins_at_zero_with_nothing() {
    let scene = scene();
    publish(&scene, 3);
    scene.heard(0);
    let started = scene.engine.start_time();
    let running = scene.engine.begin(&[1; 40], 5, &CompletionOptions::default()).unwrap();
    scene.engine.fault(None, Fault::Restart(Restart::default()));
    drop(running);
    assert!(scene.engine.start_time() > started);
    let state = &scene.engine.state()[0];
    assert_eq!((state.next_sequence, state.blocks.len()), (0, 0));
    assert!(scene.replay(0, 0).messages.is_empty());
    assert!(scene.engine.wait_for_subscriptions(0, 1, PATIENCE));
    publish(&scene, 1);
    let heard = scene.logs[0].wait("the new life", |heard| heard.messages.len() == 5);
    assert_eq!(heard.sequences(), [0, 1, 2, 3, 0]);
}

#[test]
fn a_restart_can_have_overtaken_the_old_life_with_the_same_blocks_or_others() {
    for same_content in [true, false] {
        let scene = scene();
        publish(&scene, 3);
        let old = scene.heard(0);
        scene.engine.fault(None, Fault::Restart(Restart { first_sequence: 5, same_content }));
        let state = &scene.engine.state()[0];
        assert_eq!(state.next_sequence, 5);
        let new = scene.replay(0, 0);
        assert_eq!(new.sequences(), [0, 1, 2, 3, 4]);
        assert_eq!(residency(&new.messages), state.blocks);
        assert_eq!(residency(&old.messages) == residency(&new.messages[..3]), same_content);
        for (old, new) in old.messages.iter().zip(&new.messages) {
            assert_ne!(old.1, new.1, "timestamps never repeat");
        }
    }
}
