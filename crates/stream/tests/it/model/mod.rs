//! Any history of one engine, however it is lost, doubled, delayed and restarted, against a naive model of
//! it.
//!
//! Whenever the recorder has caught up: `exact` means that it holds what the engine holds, copies included;
//! `lower` means a subset of it. A replica fed by entries and snapshots, and a consumer fed by transitions
//! alone, must agree.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod dumps;
mod engine;
mod flushes;
mod order;
mod restarts;

use std::collections::VecDeque;
use std::time::Duration;

use crate::copy::Copy;
use crate::followers::{Replica, TransitionReader};
use bytes::Bytes;
use engine::{Engine, block_hash};
use flushes::{FlushStep, Flushes};
use kvplane_core::{Continuity, EngineKind, Reason, Trust};
use kvplane_stream::{Ask, EpochCause, Happening, JournalOptions, Now, Options, Recorder, Semantics};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Extend {
        conversation: u8,
        depth: usize,
        second_copy: bool,
    },
    Evict(usize),
    Clear,
    /// Publish what happened; the frame may be lost, damaged, doubled or held back on the way.
    Publish(Fate),
    /// A batch that the engine fails to encode.
    PublishFailed,
    /// Frames that were held back arrive, perhaps after their connection ended.
    DeliverLate,
    /// The answer to an outstanding replay question.
    Answer(AnswerKind),
    Wait(u64),
    Disconnect {
        lose_live: bool,
    },
    Reconnect,
    /// Nothing has proven for too long that the engine is there.
    Silent,
    /// It is.
    Proven,
    /// The engine dies and comes back; it publishes this much before we are connected again.
    Restart {
        publishes: u8,
        /// What it published in its old life may still arrive, until there is another connection.
        leaves_frames: bool,
    },
    /// The replica is far behind and must take a snapshot.
    ForgetReplica,
    /// A dump of a peer is wanted from now on.
    ExpectDump,
    /// A peer's dump arrives that was taken this many batches ago.
    Dump(usize),
    /// It was the last part of it.
    FinishDump,
    /// Somebody flushes the cache, and watches the stream for it. Several may at once.
    Flush(usize, FlushStep),
    /// kvplane dies and goes on with what it remembers; where it remembers nothing, only the connection ends.
    Die,
    /// What is remembered is saved as a whole.
    Save,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Damaged,
    Doubled,
    Late,
}

#[derive(Debug, Clone, Copy)]
enum AnswerKind {
    Whole,
    Broken,
    Silent,
    /// Complete, but replies were dropped on the way.
    Holes,
    /// The first half, with an end marker that says it is all.
    CutShort,
}

struct World {
    engine: Engine,
    recorder: Recorder,
    now: Now,
    connected: bool,
    engine_up_start: u64,
    late: VecDeque<(u64, Bytes)>,
    question: Option<(u64, u64)>,
    hint: Option<u64>,
    has_hint: bool,
    replica: Replica,
    reader: TransitionReader,
    copy: Copy,
    /// Why each epoch began.
    causes: Vec<EpochCause>,
    /// Gaps that were said to be filled.
    filled: u64,
    flushes: Flushes,
    /// What a restart goes on from.
    keeper: Option<restarts::Keeper>,
}

impl World {
    fn new(has_replay: bool, has_hint: bool, ring: usize, window: usize) -> Self {
        Self::of(Semantics::default(), has_replay, has_hint, ring, window)
    }

    fn of(semantics: Semantics, has_replay: bool, has_hint: bool, ring: usize, window: usize) -> Self {
        let now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
        let follow = Options { replay: has_replay, hold_batches: 6, ..Options::default() };
        let keep = JournalOptions { max_batches: window, semantics, ..JournalOptions::default() };
        Self {
            engine: if semantics.starts_with_clear { Engine::clearing(ring) } else { Engine::new(ring) },
            recorder: Recorder::new(follow, keep, 0, now),
            now,
            connected: false,
            engine_up_start: 1,
            late: VecDeque::new(),
            question: None,
            hint: None,
            has_hint,
            replica: Replica::default(),
            reader: TransitionReader::default(),
            copy: Copy::new(EngineKind::Vllm),
            causes: Vec::new(),
            filled: 0,
            flushes: Flushes::default(),
            keeper: None,
        }
    }

    fn collect(&mut self) {
        for ask in self.recorder.take_asks() {
            match ask {
                Ask::Replay { id, from } => self.question = Some((id, from)),
                Ask::Hint { id } => self.hint = Some(id),
                Ask::Resubscribe => unreachable!("sockets are not subscribed to"),
            }
        }
        for happening in self.recorder.take_happenings() {
            match happening {
                Happening::Epoch(_, cause) => self.causes.push(cause),
                Happening::CaughtUp { gaps_filled, .. } => self.filled += gaps_filled,
                _ => {}
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now.mono += Duration::from_millis(ms);
        self.now.unix_ms += ms;
        let looks = |world: &Self| {
            (
                world.recorder.continuity(),
                world.recorder.counters(),
                world.recorder.ledger().cursor(),
                world.question,
            )
        };
        let (is_idle, before) = (self.recorder.idle_until() > self.now.mono, looks(self));
        self.recorder.tick(self.now);
        self.collect();
        if is_idle {
            assert_eq!(looks(self), before, "a tick of an idle stream changes nothing");
        }
    }

    fn proven(&mut self) {
        self.recorder.proven(self.now);
        self.collect();
        self.check();
    }

    fn silent(&mut self) {
        self.recorder.silent(self.now);
        self.collect();
        self.check();
    }

    fn deliver(&mut self, sequence: u64, payload: Bytes) {
        self.recorder.live(self.now, sequence, payload);
        self.collect();
    }

    fn publish(&mut self, fate: Fate) {
        let (sequence, payload) = self.engine.publish();
        if !self.connected {
            return;
        }
        match fate {
            Fate::Arrives => self.deliver(sequence, payload),
            Fate::Lost => {}
            Fate::Damaged => self.deliver(sequence, payload.slice(..payload.len() / 2)),
            Fate::Doubled => {
                self.deliver(sequence, payload.clone());
                self.deliver(sequence, payload);
            }
            Fate::Late => self.late.push_back((sequence, payload)),
        }
    }

    fn answer(&mut self, kind: AnswerKind) {
        if let Some(id) = self.hint.take() {
            let start = self.has_hint.then_some(self.engine_up_start);
            self.recorder.hint(self.now, id, start, None);
            self.collect();
        }
        let Some((id, from)) = self.question.take() else { return };
        let batches: Vec<_> =
            self.engine.ring.iter().filter(|(sequence, _)| *sequence >= from).cloned().collect();
        let count = match kind {
            AnswerKind::Whole | AnswerKind::Holes => batches.len(),
            AnswerKind::Broken | AnswerKind::CutShort => batches.len() / 2,
            AnswerKind::Silent => 0,
        };
        for (sequence, payload) in batches.into_iter().take(count) {
            if matches!(kind, AnswerKind::Holes) && sequence > from && sequence % 3 == 1 {
                continue;
            }
            self.recorder.replayed(self.now, id, sequence, payload);
        }
        self.recorder.replay_ended(self.now, id, !matches!(kind, AnswerKind::Broken | AnswerKind::Silent));
        self.collect();
    }

    fn disconnect(&mut self, lose_late: bool) {
        if self.connected {
            self.connected = false;
            if lose_late {
                self.late.clear();
            }
            self.recorder.disconnected(self.now);
            self.collect();
        }
    }

    fn reconnect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.late.clear(); // a connection's frames end with it
            self.recorder.connected(self.now);
            self.collect();
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Extend { conversation, depth, second_copy } => {
                self.engine.extend(conversation, depth, second_copy);
            }
            Op::Evict(pick) => self.engine.evict(pick),
            Op::Clear => self.clear(),
            Op::Publish(fate) => self.publish(fate),
            Op::PublishFailed => self.engine.publish_failed(),
            Op::DeliverLate => {
                while let Some((sequence, payload)) = self.late.pop_back() {
                    self.deliver(sequence, payload);
                }
            }
            Op::Answer(kind) => self.answer(kind),
            Op::Wait(ms) => self.wait(ms),
            Op::Disconnect { lose_live } => self.disconnect(lose_live),
            Op::Reconnect => self.reconnect(),
            Op::Silent => self.silent(),
            Op::Proven => self.proven(),
            Op::Restart { publishes, leaves_frames } => {
                self.disconnect(!leaves_frames);
                self.engine.restart();
                self.engine_up_start += 1;
                for n in 0..publishes {
                    self.engine.extend(n % 3, usize::from(n % 5) + 1, false);
                    self.publish(Fate::Lost);
                }
            }
            Op::ForgetReplica => self.replica = Replica::default(),
            Op::ExpectDump => {
                self.recorder.expect_dump();
            }
            Op::FinishDump => self.recorder.finish_dump(),
            Op::Dump(age) => {
                self.dump(age);
            }
            Op::Flush(slot, step) => self.flush(slot, step),
            Op::Die => self.die(),
            Op::Save => self.save(),
        }
        self.check();
    }

    /// Lets everything come to rest with a well-behaved network.
    fn rest(&mut self) {
        // The engine's next step makes pending events known; only then is there a truth to compare with.
        self.publish(Fate::Lost);
        self.reconnect();
        for round in 0..60 {
            self.proven();
            self.answer(AnswerKind::Whole);
            self.wait(500);
            // Without a replay socket only the next batch shows where the engine is.
            if round % 4 == 0 {
                self.publish(Fate::Arrives);
            }
        }
        self.check();
        self.end_flushes();
        self.check();
        assert_eq!(self.recorder.continuity(), Continuity::Live);
        assert_eq!(self.recorder.last_sequence(), self.engine.next_sequence.checked_sub(1));
    }

    /// What is held is what the engine holds; where it is unknown whether there is another copy, both
    /// counts are known.
    fn check_exact(
        &self,
        ours: &std::collections::BTreeMap<u64, u32>,
        held: &std::collections::BTreeMap<u64, u32>,
    ) {
        assert!(
            ours.keys().eq(held.keys()),
            "exact at {:?}: {ours:?} {held:?}",
            self.recorder.last_sequence()
        );
        for (hash, &copies) in ours {
            let most = copies + self.recorder.possible_copies(*hash);
            assert!((copies..=most).contains(&held[hash]), "copies of {hash}: {copies}");
        }
    }

    /// Wherever a stream is that is said to be followed, that is where this life of the engine was.
    fn check_point(&self, ours: &std::collections::BTreeMap<u64, u32>) {
        let trust = self.recorder.ledger().trust().level();
        if self.recorder.continuity() != Continuity::Live || trust > Trust::Lower {
            return;
        }
        let held = self.engine.held_at(self.recorder.last_sequence()).unwrap(); // a batch of this life
        match trust {
            Trust::Exact => self.check_exact(ours, &held),
            _ => assert!(ours.keys().all(|hash| held.contains_key(hash)), "phantoms in {ours:?}"),
        }
    }

    fn check(&mut self) {
        self.replica.follow(&mut self.recorder);
        self.reader.follow(&mut self.recorder);
        self.copy.follow(&mut self.recorder);
        let mut ours: std::collections::BTreeMap<u64, u32> = std::collections::BTreeMap::new();
        let ledger = self.recorder.ledger();
        for (_, hash, copies) in ledger.state().residencies() {
            *ours.entry(hash).or_default() += copies;
        }
        assert_eq!(self.replica.held(), ours, "a replica must hold what the ledger holds");
        // Everything the model stores is on the device and its chains are known, unless the past is not.
        let visible: std::collections::BTreeSet<u64> = self.reader.held.clone();
        assert!(visible.iter().all(|hash| ours.contains_key(hash)), "transitions must not invent blocks");
        if ledger.state().waiting() == 0 {
            assert!(ours.keys().all(|hash| visible.contains(hash)), "transitions must not lose blocks");
        }
        self.check_flushes(&ours);
        self.check_point(&ours);
        if !self.has_heard_all() || !self.engine.nothing_pending() {
            return;
        }
        let ledger = self.recorder.ledger();
        match ledger.trust().level() {
            Trust::Exact => self.check_exact(&ours, &self.engine.held),
            Trust::Lower => {
                assert!(ours.keys().all(|hash| self.engine.held.contains_key(hash)), "phantoms in {ours:?}");
            }
            Trust::Unsound if self.flushes.are_fenced() => {
                assert_eq!(ledger.trust().worst().unwrap().reason, Reason::Flushing);
            }
            other => panic!("the model never does anything that makes trust {other}"),
        }
    }
}

/// What an engine means whose lives begin by clearing the cache, or do not.
fn clearing(at_start: bool) -> Semantics {
    Semantics { starts_with_clear: at_start, ..Semantics::default() }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        1 => Just(Fate::Damaged),
        1 => Just(Fate::Doubled),
        2 => Just(Fate::Late),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..3u8, 1..8usize, any::<bool>())
            .prop_map(|(conversation, depth, second_copy)| Op::Extend { conversation, depth, second_copy }),
        5 => (0..64usize).prop_map(Op::Evict),
        1 => Just(Op::Clear),
        10 => fate().prop_map(Op::Publish),
        1 => Just(Op::PublishFailed),
        2 => Just(Op::DeliverLate),
        6 => prop_oneof![6 => Just(AnswerKind::Whole), 1 => Just(AnswerKind::Broken), 1 => Just(AnswerKind::Silent), 1 => Just(AnswerKind::Holes), 1 => Just(AnswerKind::CutShort)]
            .prop_map(Op::Answer),
        3 => prop_oneof![Just(50u64), Just(400), Just(1_100), Just(11_000), Just(31_000)].prop_map(Op::Wait),
        1 => any::<bool>().prop_map(|lose_live| Op::Disconnect { lose_live }),
        3 => Just(Op::Reconnect),
        1 => Just(Op::Silent),
        3 => Just(Op::Proven),
        1 => (0..12u8, any::<bool>())
            .prop_map(|(publishes, leaves_frames)| Op::Restart { publishes, leaves_frames }),
        1 => Just(Op::ForgetReplica),
        6 => (0..flushes::AT_ONCE, flushes::step()).prop_map(|(slot, step)| Op::Flush(slot, step)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(1_500), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn with_replay(
        ops in prop::collection::vec(op(), 0..120), ring in 1..40usize, window in 1..30usize, clears_at_start: bool,
    ) {
        let mut world = World::of(clearing(clears_at_start), true, true, ring, window);
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }

    #[test]
    fn without_replay(
        ops in prop::collection::vec(op(), 0..120), has_hint: bool, window in 1..30usize, clears_at_start: bool,
    ) {
        let mut world = World::of(clearing(clears_at_start), false, has_hint, 0, window);
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }

    #[test]
    fn flushes_reported_by_removals(
        ops in prop::collection::vec(op(), 0..120), has_replay: bool, ring in 1..40usize, window in 1..30usize,
    ) {
        let semantics = Semantics { flushes_by_removals: true, ..Semantics::default() };
        let mut world = World::of(semantics, has_replay, true, ring, window);
        world.engine.flushes_by_removals = true;
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }
}

#[test]
fn a_restart_that_overtook_the_sequence_is_seen_and_equal_hashes_prove_nothing() {
    let mut world = World::new(true, true, 100, 100);
    world.run(&Op::Reconnect);
    world.run(&Op::Answer(AnswerKind::Whole));
    for depth in 1..5 {
        world.run(&Op::Extend { conversation: 0, depth, second_copy: false });
        world.run(&Op::Publish(Fate::Arrives));
    }
    let before = world.recorder.ledger().epoch();
    world.run(&Op::Restart { publishes: 9, leaves_frames: false });
    world.run(&Op::Reconnect);
    world.run(&Op::Answer(AnswerKind::Whole));
    world.run(&Op::Answer(AnswerKind::Whole));
    assert!(world.recorder.ledger().epoch() > before);
    assert_eq!(world.recorder.counters().restarts, 1);
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
    assert!(!world.engine.held.contains_key(&block_hash(0, 5)));
}

#[test]
fn a_gap_is_said_to_be_filled_unless_another_life_began_in_it() {
    let mut world = World::new(true, true, 100, 100);
    world.run(&Op::Reconnect);
    world.run(&Op::Answer(AnswerKind::Whole));
    let lose_and_go_on = |world: &mut World| {
        for fate in [Fate::Arrives, Fate::Lost, Fate::Arrives] {
            world.run(&Op::Extend { conversation: 0, depth: 1, second_copy: false });
            world.run(&Op::Publish(fate));
        }
        for _ in 0..3 {
            world.run(&Op::Answer(AnswerKind::Whole));
            world.run(&Op::Wait(1_100));
        }
    };
    lose_and_go_on(&mut world);
    assert_eq!((world.recorder.counters().gaps, world.filled), (1, 1));
    // Nobody notices that another life begins, until it is heard ahead of the last one: a gap, until it is
    // asked about.
    world.engine.restart();
    world.engine_up_start += 1;
    for depth in 1..10 {
        world.engine.extend(1, depth, false);
        world.publish(Fate::Lost);
    }
    world.publish(Fate::Arrives);
    for _ in 0..3 {
        world.answer(AnswerKind::Whole);
        world.wait(1_100);
    }
    let counters = world.recorder.counters();
    assert_eq!((counters.gaps, counters.restarts, world.filled), (2, 1, 1));
    lose_and_go_on(&mut world);
    assert_eq!((world.recorder.counters().gaps, world.filled), (3, 2));
}

/// A life of a few batches, heard from its start; then another, whose first batch is heard. `answer` is what
/// the replay socket does meanwhile.
fn begun_again(has_replay: bool, answer: AnswerKind) -> World {
    let mut world = World::of(clearing(true), has_replay, false, 100, 100);
    world.run(&Op::Reconnect);
    world.run(&Op::Answer(AnswerKind::Whole));
    for depth in 1..5 {
        world.run(&Op::Extend { conversation: 0, depth, second_copy: false });
        world.run(&Op::Publish(Fate::Arrives));
    }
    world.run(&Op::Restart { publishes: 0, leaves_frames: false });
    world.run(&Op::Reconnect);
    world.run(&Op::Extend { conversation: 1, depth: 2, second_copy: false });
    world.run(&Op::Publish(Fate::Arrives));
    for _ in 0..10 {
        world.run(&Op::Answer(answer));
        world.run(&Op::Wait(1_100));
        // The engine is there, whatever its replay socket does.
        world.proven();
    }
    world
}

#[test]
fn a_clear_under_the_first_number_proves_a_restart_also_if_nobody_can_be_asked() {
    for (has_replay, answer) in [(false, AnswerKind::Whole), (true, AnswerKind::Silent)] {
        let world = begun_again(has_replay, answer);
        assert_eq!(world.causes, [EpochCause::StartUpClear], "replay: {has_replay}");
        assert_eq!(world.recorder.continuity(), Continuity::Live);
        assert_eq!(world.recorder.counters().restarts, 1);
        assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
    }
}

#[test]
fn a_ring_that_answers_is_believed_before_the_clear() {
    let world = begun_again(true, AnswerKind::Whole);
    assert_eq!(world.causes, [EpochCause::RingBelowCursor]);
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
}

#[test]
fn a_replay_address_that_is_somebody_elses_is_found_out() {
    let mut world = World::new(true, true, 100, 100);
    let mut other = Engine::new(100);
    for depth in 1..60 {
        other.extend(1, depth, false);
        other.publish();
    }
    world.run(&Op::Reconnect);
    let mut heard = 0;
    for round in 0..40usize {
        // Every question is answered by the other engine, whose ring is far ahead.
        while let Some((id, from)) = world.question.take() {
            for (sequence, payload) in other.ring.iter().filter(|(sequence, _)| *sequence >= from) {
                world.recorder.replayed(world.now, id, *sequence, payload.clone());
            }
            world.recorder.replay_ended(world.now, id, true);
            world.collect();
        }
        world.engine.extend(0, round % 30 + 1, false);
        let (sequence, payload) = world.engine.publish();
        world.deliver(sequence, payload);
        heard += 1;
    }
    assert!(heard > 0);
    assert_eq!(world.recorder.counters().replays_foreign, 1);
    let held: Vec<u64> = world.recorder.ledger().state().residencies().map(|(_, hash, _)| hash).collect();
    assert!(!held.is_empty());
    assert!(
        held.iter().all(|hash| world.engine.held.contains_key(hash)),
        "none of the other engine's blocks"
    );
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Lower);
}
