//! Any history of a drained buffer: what the drain hands out is one life without a hole, or it said so
//! before.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Reason};
use kvplane_stream::{Action, Drain, DrainFailure, DrainOptions, DrainedPart, EpochCause, Now, OnGap};
use proptest::collection::vec;
use proptest::prelude::*;

/// What may happen between two polls, or instead of one.
#[derive(Debug, Clone)]
enum Step {
    /// The engine has this many events to publish.
    Emit(usize),
    /// We drain.
    Drain,
    /// We drain, and the answer gets lost on the way.
    LoseAnswer,
    /// Somebody else drains.
    Steal,
    /// Nothing can be reached for a moment; the engine is the same.
    Outage,
    /// The engine dies and comes back, and has this many events to publish before we reach it.
    Restart(usize),
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..8_usize).prop_map(Step::Emit),
        6 => Just(Step::Drain),
        1 => Just(Step::LoseAnswer),
        1 => Just(Step::Steal),
        1 => Just(Step::Outage),
        1 => (0..20_usize).prop_map(Step::Restart),
        1 => Just(Step::Tick),
    ]
}

/// The engine: a life, a counter, and a buffer that drops its oldest.
struct Engine {
    life: u8,
    next: u64,
    buffer: VecDeque<u64>,
    capacity: usize,
}

impl Engine {
    fn emit(&mut self, events: usize) {
        for _ in 0..events {
            self.buffer.push_back(self.next);
            self.next += 1;
            if self.buffer.len() > self.capacity {
                self.buffer.pop_front();
            }
        }
    }

    fn restart(&mut self, events: usize) {
        *self = Self { life: self.life + 1, next: 0, buffer: VecDeque::new(), capacity: self.capacity };
        // A life begins with an event of its own.
        self.emit(1 + events);
    }
}

/// What a consumer knows since its last clear.
#[derive(Debug, Default)]
struct Known {
    /// Life, first and last event.
    range: Option<(u8, u64, u64)>,
    heard_from_start: bool,
    from: Option<u64>,
    lost: Vec<Reason>,
    epochs: Vec<EpochCause>,
}

struct World {
    engine: Engine,
    drain: Drain,
    known: Known,
    now: Duration,
    /// An answer was lost, and nothing has come since.
    in_doubt: bool,
}

impl World {
    fn new(capacity: usize, said: bool) -> Self {
        let options = DrainOptions { buffer: said.then_some(capacity), ..DrainOptions::default() };
        let mut engine = Engine { life: 0, next: 0, buffer: VecDeque::new(), capacity };
        engine.emit(1);
        Self {
            engine,
            drain: Drain::new(options),
            known: Known::default(),
            now: Duration::ZERO,
            in_doubt: false,
        }
    }

    fn now(&mut self) -> Now {
        self.now += Duration::from_millis(100);
        Now { mono: self.now, unix_ms: 1_700_000_000_000 + self.now.as_millis() as u64 }
    }

    fn drain(&mut self) {
        let now = self.now();
        let events: Vec<u64> = self.engine.buffer.drain(..).collect();
        self.drain.answered(now, events.len(), 0);
        for part in events.chunk_by(|one, next| next - one == 1).flat_map(|run| run.chunks(3)) {
            let payload = Bytes::from(vec![self.engine.life, part[0] as u8, *part.last().unwrap() as u8]);
            self.drain.drained(DrainedPart { first: part[0], last: *part.last().unwrap(), payload });
        }
        self.settle();
        self.in_doubt &= events.is_empty();
        let settled = if self.in_doubt { Continuity::Recovering } else { Continuity::Live };
        assert_eq!(self.drain.continuity(), settled);
    }

    fn fail(&mut self, failure: DrainFailure) {
        let now = self.now();
        self.drain.failed(now, failure);
        self.settle();
        assert_ne!(self.drain.continuity(), Continuity::Live);
    }

    fn settle(&mut self) {
        while let Some(action) = self.drain.poll() {
            match action {
                Action::NewEpoch(cause) => {
                    self.known = Known { epochs: std::mem::take(&mut self.known.epochs), ..Known::default() };
                    self.known.epochs.push(cause);
                }
                Action::DropResidency(reason) => {
                    self.known.range = None;
                    self.known.heard_from_start = false;
                    self.known.lost.push(reason);
                }
                Action::HeardFromStart => {
                    assert!(self.known.range.is_none());
                    self.known.heard_from_start = true;
                }
                Action::KnownFrom(from) => self.known.from = Some(from),
                Action::Apply(part) => {
                    let [life, first, last] = part.payload[..] else { panic!() };
                    let (first, last) = (u64::from(first), u64::from(last));
                    assert_eq!(part.sequence, last);
                    self.known.range = Some(match self.known.range {
                        None => {
                            assert!(!self.known.heard_from_start || first == 0);
                            (life, first, last)
                        }
                        Some((known_life, from, to)) => {
                            assert_eq!((known_life, to + 1), (life, first), "a hole, or two lives in one");
                            (life, from, last)
                        }
                    });
                }
                Action::Degrade(reason) | Action::Resolve(reason) => {
                    assert_eq!(reason, Reason::EventsDisabled);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Emit(events) => self.engine.emit(*events),
            Step::Drain => self.drain(),
            Step::LoseAnswer => {
                self.engine.buffer.clear();
                self.in_doubt |= self.drain.last_sequence().is_some();
                self.fail(DrainFailure::AnswerLost);
            }
            Step::Steal => self.engine.buffer.clear(),
            Step::Outage => self.fail(DrainFailure::Unreached),
            Step::Restart(events) => {
                // A thief that takes exactly the events that would have shown the new life is not in the
                // model: nothing could show it.
                self.engine.restart(*events);
                self.fail(DrainFailure::Unreached);
                self.drain();
            }
            Step::Tick => {
                let now = self.now();
                self.drain.tick(now);
                self.settle();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(2_000)))]

    #[test]
    fn what_is_handed_out_is_one_life_without_a_hole(
        capacity in 2..12_usize,
        said: bool,
        steps in vec(step(), 1..40),
    ) {
        let mut world = World::new(capacity, said);
        for step in &steps {
            world.run(step);
        }
        // One last look: whatever happened, what is known is the engine's, up to its last event.
        world.engine.emit(1);
        world.drain();
        let (life, _, last) = world.known.range.unwrap();
        prop_assert_eq!((life, last), (world.engine.life, world.engine.next - 1));
    }
}

fn small(capacity: usize) -> World {
    let mut world = World::new(capacity, true);
    world.drain();
    assert!(world.known.heard_from_start);
    world
}

#[test]
fn an_overflow_is_suspected_and_a_thief_is_named() {
    let mut world = small(4);
    world.engine.emit(9);
    world.drain();
    assert_eq!(world.known.lost, [Reason::SuspectedDrain]);
    world.engine.emit(2);
    world.run(&Step::Steal);
    world.engine.emit(2);
    world.drain();
    assert_eq!(world.known.lost, [Reason::SuspectedDrain, Reason::StolenDrain]);
}

#[test]
fn with_a_thief_around_numbers_that_follow_prove_no_life() {
    let mut world = small(100);
    world.engine.emit(2);
    world.run(&Step::Steal);
    world.engine.emit(2);
    world.drain();
    assert_eq!(world.known.lost, [Reason::StolenDrain]);
    let last = world.drain.last_sequence().unwrap();
    // The thief takes exactly the events that would have shown the new life.
    world.engine.restart(last as usize);
    world.fail(DrainFailure::Unreached);
    world.run(&Step::Steal);
    world.engine.emit(1);
    world.drain();
    assert_eq!(world.known.epochs, [EpochCause::NothingToAsk]);
}

#[test]
fn without_a_word_about_the_buffer_the_longest_answer_stands_in() {
    let mut world = World::new(100, false);
    world.engine.emit(9);
    world.drain();
    world.engine.emit(2);
    world.run(&Step::Steal);
    world.engine.emit(2);
    world.drain();
    assert_eq!(world.known.lost, [Reason::StolenDrain], "ten fitted before, two came now");
}

#[test]
fn our_own_lost_answer_is_nobodys_theft() {
    let mut world = small(100);
    world.engine.emit(3);
    world.run(&Step::LoseAnswer);
    world.engine.emit(1);
    world.drain();
    assert_eq!(world.known.lost, [Reason::Gap]);
}

#[test]
fn a_lost_answer_leaves_a_doubt_until_the_next_event() {
    let mut world = small(100);
    world.run(&Step::LoseAnswer);
    world.drain();
    assert_eq!(world.drain.continuity(), Continuity::Recovering, "it may have told of removals");
    world.engine.emit(1);
    world.drain();
    assert_eq!(world.drain.continuity(), Continuity::Live);
    assert!(world.known.lost.is_empty(), "the numbers show that nothing was in it");
}

#[test]
fn a_restart_whose_beginning_got_lost_is_not_taken_for_the_same_life() {
    for before_the_answer in [0, 1, 2] {
        let mut world = small(100);
        world.engine.emit(before_the_answer);
        world.drain();
        world.engine.restart(2); // 0 to 2
        world.fail(DrainFailure::Unreached);
        world.run(&Step::LoseAnswer);
        world.engine.emit(1);
        world.drain(); // 3, whatever the last one was
        assert_eq!(world.known.epochs, [EpochCause::NothingToAsk], "{before_the_answer}");
    }
}

#[test]
fn an_outage_of_the_same_engine_resets_nothing() {
    let mut world = small(100);
    world.run(&Step::Outage);
    world.engine.emit(3);
    world.drain();
    assert!(world.known.lost.is_empty() && world.known.epochs.is_empty());
    assert_eq!(world.known.range, Some((0, 0, 3)));
}

#[test]
fn a_restart_is_seen_by_its_ids_also_when_it_has_overtaken_ours() {
    for events in [0, 1, 2, 50] {
        let mut world = small(100);
        world.engine.emit(2);
        world.drain();
        world.run(&Step::Restart(events));
        assert_eq!(world.known.epochs, [EpochCause::IdsBeganAgain], "{events}");
        assert!(world.known.heard_from_start);
    }
}

#[test]
fn a_restart_that_overflowed_to_just_behind_our_last_event_is_not_taken_for_the_same_life() {
    let mut world = small(4);
    world.engine.emit(2);
    world.drain(); // up to 2
    world.run(&Step::Restart(6)); // 0 to 6, of which 3 to 6 are left
    assert_eq!(world.known.epochs, [EpochCause::NothingToAsk]);
    assert_eq!(world.known.from, Some(3));
}

#[test]
fn nothing_ever_is_a_named_state_until_something_comes() {
    let mut world = World::new(100, true);
    world.engine.buffer.clear();
    let mut named = Vec::new();
    for _ in 0..200 {
        let now = world.now();
        world.drain.answered(now, 0, 0);
        world.drain.tick(now);
        named.extend(std::iter::from_fn(|| world.drain.poll()));
    }
    assert_eq!(named, [Action::Degrade(Reason::EventsDisabled)]);
    world.engine.emit(1);
    let now = world.now();
    world.drain.answered(now, 1, 0);
    world.drain.drained(DrainedPart { first: 1, last: 1, payload: Bytes::new() });
    assert_eq!(world.drain.poll(), Some(Action::Resolve(Reason::EventsDisabled)));
}

#[test]
fn unanswered_for_long_is_down_and_comes_back() {
    let mut world = small(100);
    world.fail(DrainFailure::Unreached);
    assert_eq!(world.drain.continuity(), Continuity::Recovering);
    world.now += Duration::from_secs(11);
    world.run(&Step::Tick);
    assert_eq!(world.drain.continuity(), Continuity::Down);
    world.drain();
    assert_eq!(world.drain.continuity(), Continuity::Live);
}

#[test]
fn who_wants_to_keep_what_is_known_keeps_it_as_unsound() {
    let options = DrainOptions { on_gap: OnGap::Keep, ..DrainOptions::default() };
    let mut drain = Drain::new(options);
    drain.drained(DrainedPart { first: 0, last: 0, payload: Bytes::new() });
    drain.drained(DrainedPart { first: 2, last: 2, payload: Bytes::new() });
    let actions: Vec<_> = std::iter::from_fn(|| drain.poll()).collect();
    assert!(actions.contains(&Action::KeepAfterLoss));
}

#[test]
fn a_silence_ends_with_the_next_answer() {
    let mut world = small(100);
    world.drain();
    let now = world.now();
    world.drain.silent(now);
    assert_eq!(world.drain.continuity(), Continuity::Recovering);
    world.drain();
    assert_eq!(world.drain.continuity(), Continuity::Live);
    let now = world.now();
    world.drain.silent(now);
    world.drain.proven(now);
    assert_eq!((world.drain.continuity(), world.drain.counters().silences), (Continuity::Live, 2));
}
