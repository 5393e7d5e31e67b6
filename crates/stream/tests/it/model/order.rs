//! Histories one by one: what is left of a connection, answers that are cut short, two publishers, silence.

use kvplane_core::{Continuity, Reason, Trust};
use kvplane_stream::{EpochCause, Semantics};

use crate::model::engine::Engine;
use crate::model::{AnswerKind, Fate, Op, World};

const WHOLE: Op = Op::Answer(AnswerKind::Whole);
const SILENT: Op = Op::Answer(AnswerKind::Silent);

fn extend(conversation: u8, depth: usize) -> Op {
    Op::Extend { conversation, depth, second_copy: false }
}

/// A stream that is `live`, with this many batches of one block each.
fn following(has_replay: bool, batches: usize) -> World {
    let mut world = World::of(Semantics::default(), has_replay, false, 100, 100);
    for op in [Op::Reconnect, WHOLE] {
        world.run(&op);
    }
    for depth in 1..=batches {
        world.run(&extend(0, depth));
        world.run(&Op::Publish(Fate::Arrives));
    }
    assert_eq!(world.recorder.continuity(), Continuity::Live);
    assert_eq!(held(&world), batches);
    world
}

fn held(world: &World) -> usize {
    world.recorder.ledger().state().residencies().count()
}

fn continuity(world: &World) -> Continuity {
    world.recorder.continuity()
}

// --- what is left of a connection
// --------------------------------------------------------------------------------

#[test]
fn frames_of_a_connection_that_ended_never_count_for_the_next() {
    for has_replay in [false, true] {
        let mut world = following(has_replay, 3);
        // Published in the old life, and read in the same turn as the disconnect.
        for depth in 4..=6 {
            world.run(&extend(0, depth));
            world.run(&Op::Publish(Fate::Late));
        }
        world.run(&Op::Restart { publishes: 0, leaves_frames: true });
        world.run(&Op::DeliverLate);
        assert_eq!(world.recorder.counters().refused, 3, "nothing is heard over a connection that ended");
        world.run(&Op::Reconnect);
        for _ in 0..6 {
            world.run(&WHOLE);
            world.run(&Op::Wait(1_100));
        }
        assert!(continuity(&world) != Continuity::Live || held(&world) == 0, "replay: {has_replay}");
        world.run(&extend(1, 1));
        world.run(&Op::Publish(Fate::Arrives));
        for _ in 0..3 {
            world.run(&WHOLE);
            world.run(&Op::Wait(1_100));
        }
        assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 1), "replay: {has_replay}");
    }
}

#[test]
fn a_number_of_a_life_that_ended_does_not_hold_up_the_next() {
    let mut world = World::of(Semantics::default(), true, false, 100, 100);
    for _ in 0..20 {
        world.run(&Op::Publish(Fate::Lost));
    }
    world.run(&Op::Reconnect);
    // Batch 20 waits for the answer, which never comes.
    world.run(&Op::Publish(Fate::Arrives));
    world.run(&Op::Restart { publishes: 0, leaves_frames: false });
    world.run(&Op::Reconnect);
    // Every answer of the new ring brings something, and ends far below 20.
    for depth in 1..5 {
        world.run(&extend(0, depth));
        world.run(&Op::Publish(Fate::Arrives));
        for _ in 0..3 {
            world.run(&WHOLE);
        }
    }
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 4));
}

#[test]
fn an_answer_that_was_lost_is_no_restart_while_the_connection_lives() {
    let mut world = following(true, 1);
    let before = world.recorder.ledger().epoch();
    world.run(&Op::Wait(1_100));
    // Half of one batch is none: an empty ring, it seems.
    world.run(&Op::Answer(AnswerKind::CutShort));
    assert_eq!(continuity(&world), Continuity::Live);
    world.run(&WHOLE);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 1));
    assert_eq!(world.recorder.ledger().epoch(), before);
    // A proxy may keep the connection while the process behind it restarts: an answer that stays empty is
    // believed.
    world.run(&Op::Wait(31_000));
    world.engine.restart();
    for _ in 0..8 {
        world.answer(AnswerKind::Whole);
        world.wait(1_000);
    }
    assert!(world.recorder.ledger().epoch() > before);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 0));
}

#[test]
fn the_beginning_of_a_life_that_ended_does_not_count_either() {
    let mut world = World::of(crate::model::clearing(true), false, false, 100, 100);
    world.run(&Op::Reconnect);
    world.run(&WHOLE);
    world.run(&extend(0, 2));
    world.run(&Op::Publish(Fate::Late));
    world.run(&Op::Disconnect { lose_live: false });
    world.run(&Op::DeliverLate);
    assert_eq!((held(&world), world.recorder.counters().refused), (0, 1));
    assert_ne!(continuity(&world), Continuity::Live);
}

/// What a dead life left in line arrives after the new connection, and the ring is asked meanwhile.
fn with_dead_frames(published_since: u8) {
    let mut world = following(true, 3);
    let mut dead = Vec::new();
    for depth in 4..=40 {
        world.engine.extend(0, depth, false);
        dead.push(world.engine.publish());
    }
    world.run(&Op::Restart { publishes: published_since, leaves_frames: false });
    world.run(&Op::Reconnect);
    let mut dead = dead.into_iter();
    for (sequence, payload) in dead.by_ref().take(2) {
        world.deliver(sequence, payload);
        world.check();
    }
    // Answers come, time passes, and more of the dead life arrives. Wherever the stream is `live`, it is
    // where the new life was: `run` and `check` see to that.
    for (sequence, payload) in dead {
        world.run(&WHOLE);
        world.run(&Op::Wait(400));
        world.deliver(sequence, payload);
        world.check();
    }
    for _ in 0..12 {
        world.run(&WHOLE);
        world.run(&Op::Wait(400));
    }
    assert_eq!(continuity(&world), Continuity::Live);
    assert_eq!(world.recorder.last_sequence(), world.engine.next_sequence.checked_sub(1));
    world.run(&extend(1, 1));
    world.run(&Op::Publish(Fate::Arrives));
    assert_eq!(world.recorder.last_sequence(), world.engine.next_sequence.checked_sub(1));
    assert_eq!(world.recorder.counters().replays_foreign, 0, "the ring is still believed");
}

#[test]
fn what_is_left_of_a_dead_life_is_refuted_by_the_ring_of_the_next() {
    for published_since in [0, 1, 3] {
        with_dead_frames(published_since);
    }
}

// --- answers that are cut short
// ----------------------------------------------------------------------------------

#[test]
fn an_answer_that_is_cut_short_is_not_taken_for_the_whole() {
    let mut world = World::of(Semantics::default(), true, false, 100, 100);
    for depth in 1..=8 {
        world.run(&extend(0, depth));
        world.run(&Op::Publish(Fate::Lost));
    }
    world.run(&Op::Reconnect);
    world.run(&Op::Answer(AnswerKind::CutShort));
    assert_eq!((continuity(&world), held(&world)), (Continuity::Recovering, 4), "asked again from its end");
    world.run(&WHOLE);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Recovering, 8), "it brought more");
    world.run(&WHOLE);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 8));
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
}

#[test]
fn what_was_heard_before_a_reconnect_must_be_in_the_answer_after_it() {
    let mut world = following(true, 3);
    for (depth, fate) in [(4, Fate::Lost), (5, Fate::Lost), (6, Fate::Arrives)] {
        world.run(&extend(0, depth));
        world.run(&Op::Publish(fate));
    }
    // Batch 5 waits for 3 and 4 when the connection ends.
    world.run(&Op::Disconnect { lose_live: true });
    world.run(&Op::Reconnect);
    let (id, from) = world.question.take().unwrap();
    assert_eq!(from, 2);
    let ring: Vec<_> = world.engine.ring.iter().filter(|(at, _)| (2..4).contains(at)).cloned().collect();
    for (sequence, payload) in ring {
        world.recorder.replayed(world.now, id, sequence, payload);
    }
    world.recorder.replay_ended(world.now, id, true);
    world.collect();
    world.check();
    assert_eq!(continuity(&world), Continuity::Recovering);
    assert_eq!(world.question.map(|(_, from)| from), Some(3), "the rest is asked for at once");
    world.run(&WHOLE);
    world.run(&WHOLE);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 6));
}

// --- two publishers
// ----------------------------------------------------------------------------------------------

/// Another engine that publishes under the same topic, at these numbers.
fn other(from: usize) -> Engine {
    let mut other = Engine::new(100);
    for depth in 1..=from {
        other.extend(2, depth, false);
        other.publish();
    }
    other
}

#[test]
fn two_publishers_that_take_turns_are_not_credited() {
    for has_replay in [false, true] {
        // Far below, side by side, and far above.
        for from in [0, 9, 10, 11, 60, 5_000] {
            let mut world = following(has_replay, 10);
            let mut other = other(from);
            for turn in 0..20 {
                world.engine.extend(0, 11 + turn, false);
                let (sequence, payload) = world.engine.publish();
                world.deliver(sequence, payload);
                other.extend(2, from + 1 + turn, false);
                let (sequence, payload) = other.publish();
                world.deliver(sequence, payload);
                world.answer(AnswerKind::Whole);
            }
            let case = format!("replay: {has_replay}, from: {from}");
            assert_eq!(continuity(&world), Continuity::Recovering, "{case}");
            let worst = world.recorder.ledger().trust().worst().map(|worst| worst.reason);
            assert_eq!(worst, Some(Reason::Interleaved), "{case} {:?}", world.recorder.counters());
            assert!(world.causes.contains(&EpochCause::Interleaved), "{case}");
            assert_eq!((world.recorder.counters().interleavings, held(&world)), (1, 0), "{case}");
            // The other one leaves. Before the connection changes, that takes a while to be believed.
            for turn in 0..8 {
                world.run(&Op::Wait(11_000));
                world.run(&extend(1, turn + 1));
                world.run(&Op::Publish(Fate::Arrives));
                world.answer(AnswerKind::Whole);
            }
            for _ in 0..4 {
                world.run(&WHOLE);
                world.run(&Op::Wait(1_100));
            }
            assert_eq!(continuity(&world), Continuity::Live, "{case}");
            assert!(!world.recorder.ledger().trust().has(Reason::Interleaved), "{case}");
        }
    }
}

#[test]
fn restarts_behind_one_connection_are_not_taken_for_two_publishers() {
    for has_replay in [false, true] {
        let mut world = following(has_replay, 10);
        for life in 0..5 {
            // A proxy in between keeps the connection.
            world.engine.restart();
            for depth in 1..=12 {
                world.engine.extend(life % 3, depth, false);
                let (sequence, payload) = world.engine.publish();
                world.deliver(sequence, payload);
                for _ in 0..3 {
                    world.answer(AnswerKind::Whole);
                }
            }
            world.run(&Op::Wait(50));
            assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 12), "replay: {has_replay}");
        }
        assert_eq!(world.recorder.counters().interleavings, 0);
    }
}

// --- silence
// -----------------------------------------------------------------------------------------------------

#[test]
fn a_question_that_stays_unanswered_is_asked_again_at_once_and_then_the_stream_is_not_live() {
    let mut world = following(true, 3);
    world.run(&Op::Wait(1_100));
    assert!(world.question.is_some(), "the silence is asked about");
    world.run(&SILENT);
    assert!(world.question.is_some(), "asked again without a pause");
    assert_eq!(continuity(&world), Continuity::Live);
    world.run(&SILENT);
    assert_eq!(continuity(&world), Continuity::Recovering);
    assert_eq!(world.recorder.counters().silences, 1);
    // It goes on asking, and an answer is enough.
    world.run(&Op::Wait(1_100));
    assert!(world.question.is_some());
    world.run(&WHOLE);
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 3));
    // So is a batch in its turn.
    world.run(&Op::Wait(31_000));
    world.run(&SILENT);
    world.run(&SILENT);
    assert_eq!(continuity(&world), Continuity::Recovering);
    world.run(&extend(0, 4));
    world.run(&Op::Publish(Fate::Arrives));
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 4));
}

#[test]
fn a_replay_socket_that_is_dead_does_not_make_a_stream_flap_whose_engine_is_there() {
    let mut world = following(true, 3);
    let mut left = 0;
    for _ in 0..200 {
        world.run(&Op::Wait(500));
        world.run(&SILENT);
        left += u32::from(continuity(&world) != Continuity::Live);
        world.proven();
    }
    assert_eq!(continuity(&world), Continuity::Live);
    assert!(left <= 1, "once, until it was known that only the replay socket is dead: {left}");
}

#[test]
fn silence_is_not_live_and_what_arrives_in_it_is_placed() {
    for has_replay in [false, true] {
        let mut world = following(has_replay, 3);
        world.silent();
        assert_eq!(continuity(&world), Continuity::Recovering, "replay: {has_replay}");
        // The same connection: a batch in its turn is placed, and proves nothing of the present.
        world.run(&extend(0, 4));
        world.run(&Op::Publish(Fate::Arrives));
        assert_eq!((continuity(&world), held(&world)), (Continuity::Recovering, 4), "replay: {has_replay}");
        world.silent();
        assert_eq!(world.recorder.counters().silences, 1);
        // The last batch is lost with the silence.
        world.run(&extend(0, 5));
        world.run(&Op::Publish(Fate::Lost));
        world.question = None;
        world.proven();
        if has_replay {
            assert_eq!(continuity(&world), Continuity::Recovering, "what was sent last is asked for first");
            assert_eq!(world.question.map(|(_, from)| from), Some(3));
            world.run(&WHOLE);
            assert_eq!(held(&world), 5);
        }
        assert_eq!(continuity(&world), Continuity::Live, "replay: {has_replay}");
        assert_eq!(world.causes, []);
        assert_eq!(world.recorder.counters().disconnects, 0);
    }
}

#[test]
fn a_silence_that_lasts_is_down_until_something_is_proven() {
    let mut world = following(false, 3);
    world.silent();
    world.run(&Op::Wait(11_000));
    assert_eq!(continuity(&world), Continuity::Down);
    world.proven();
    assert_eq!((continuity(&world), held(&world)), (Continuity::Live, 3));
    // A gap in it stays one.
    world.silent();
    for (depth, fate) in [(4, Fate::Lost), (5, Fate::Arrives)] {
        world.run(&extend(0, depth));
        world.run(&Op::Publish(fate));
    }
    world.proven();
    assert_eq!(continuity(&world), Continuity::Recovering);
}
