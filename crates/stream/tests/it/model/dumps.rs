//! Dumps of a peer that heard every batch of every life: of any age, whenever they arrive.

use kvplane_core::{Reason, Trust};
use kvplane_stream::{DumpOutcome, PeerDump, Position, Semantics};
use proptest::prelude::*;

use super::engine::block_hash;
use super::{AnswerKind, Fate, Op, World, clearing, op};

impl World {
    /// The dump that a peer took this many batches ago.
    pub(super) fn dump(&mut self, age: usize) -> Option<DumpOutcome> {
        let at = self.engine.dumps.len().checked_sub(age + 1)?;
        let outcome = self.recorder.take_dump(self.now, &self.engine.dumps[at]);
        self.collect();
        Some(outcome)
    }

    /// A stream whose past is not known: the ring has turned over.
    fn late(ring: usize) -> Self {
        let mut world = Self::new(true, true, ring, 100);
        for depth in 1..8 {
            world.engine.extend(0, depth, false);
            world.publish(Fate::Lost);
        }
        world.run(&Op::Reconnect);
        for _ in 0..3 {
            world.run(&Op::Answer(AnswerKind::Whole));
            world.run(&Op::Wait(1_100));
        }
        assert_eq!(world.recorder.ledger().trust().worst().unwrap().reason, Reason::History);
        world
    }

    fn held(&self) -> Vec<u64> {
        let mut held: Vec<u64> =
            self.recorder.ledger().state().residencies().map(|(_, hash, _)| hash).collect();
        held.sort_unstable();
        held
    }

    fn publish_heard(&mut self) {
        self.run(&Op::Publish(Fate::Arrives));
    }
}

fn op_with_dumps() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => op(),
        4 => Just(Op::ExpectDump),
        6 => (0..4usize).prop_map(Op::Dump),
        1 => (0..40usize).prop_map(Op::Dump),
        1 => Just(Op::FinishDump),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(1_500), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Whenever a dump was taken and whenever it arrives: what is said to be held under `lower` is held.
    #[test]
    fn no_phantoms_come_with_a_dump(
        ops in prop::collection::vec(op_with_dumps(), 0..120), has_replay: bool, ring in 1..12usize, window in 1..30usize,
        clears_at_start: bool,
    ) {
        let mut world = World::of(clearing(clears_at_start), has_replay, true, ring, window);
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }

    /// With a good network the peer's next dump makes the state whole, whatever happened before.
    #[test]
    fn a_dump_makes_a_late_stream_whole(
        ops in prop::collection::vec(op_with_dumps(), 0..60), ring in 1..4usize, copies: bool,
    ) {
        let mut world = World::of(Semantics::default(), true, true, ring, 30);
        for op in ops {
            world.run(&op);
        }
        world.rest();
        // A store is heard, so that the engine's place is known; then a dump is wanted.
        world.engine.extend(2, 40, copies);
        world.publish_heard();
        if world.recorder.expect_dump() && !world.engine.dumps.is_empty() {
            world.engine.extend(1, 3, false);
            world.publish_heard();
            if let Some(DumpOutcome::Taken(_)) = world.dump(0) {
                world.check();
                let dumped = &world.engine.dumps.last().unwrap().runs;
                let held = world.held();
                assert!(dumped.iter().flat_map(|run| &run.blocks).all(|(hash, _)| held.contains(hash)));
            }
        }
    }
}

#[test]
fn a_dump_gives_what_the_ring_has_lost() {
    let mut world = World::late(2);
    assert!(world.held().len() < 7);
    assert!(world.recorder.expect_dump());
    assert_eq!(world.dump(0), Some(DumpOutcome::Taken(5)));
    world.check();
    assert_eq!(world.held().len(), 7);
    let trust = world.recorder.ledger().trust();
    assert_eq!((trust.level(), trust.worst().unwrap().reason), (Trust::Lower, Reason::History));
    // What a dump brought goes as everything else does, and is distinguished from what the engine stores again.
    world.engine.evict(0);
    world.publish_heard();
    assert_eq!(world.held().len(), 6);
    world.engine.extend(0, 7, false);
    world.publish_heard();
    assert_eq!(world.held().len(), 7);
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Lower);
}

#[test]
fn removals_that_were_heard_after_a_dump_count() {
    let mut world = World::late(2);
    assert!(world.recorder.expect_dump());
    world.engine.evict(1);
    world.publish_heard();
    // The dump is older than the removal, and arrives after it.
    assert_eq!(world.dump(1), Some(DumpOutcome::Taken(4)));
    world.check();
    assert!(!world.held().contains(&block_hash(0, 1)));
    assert_eq!(world.held().len(), 6);
}

#[test]
fn a_dump_that_cannot_be_proven_is_not_taken() {
    let mut world = World::late(2);
    assert_eq!(world.dump(0), Some(DumpOutcome::Early("no batch was heard since it is wanted")));
    assert!(world.recorder.expect_dump());
    assert!(matches!(world.dump(4), Some(DumpOutcome::Stale(_))), "older than what was heard first");
    world.engine.extend(1, 2, false);
    world.publish(Fate::Late);
    assert!(matches!(world.dump(0), Some(DumpOutcome::Early(_))), "the peer has read more");
    world.run(&Op::DeliverLate);
    let mut other = world.engine.dumps.last().unwrap().clone();
    other.position =
        other.position.map(|Position { sequence, digest }| Position { sequence, digest: digest ^ 1 });
    assert!(matches!(world.recorder.take_dump(world.now, &other), DumpOutcome::Stale(_)), "another life");
    let mut other = world.engine.dumps.last().unwrap().clone();
    other.block_size = 16;
    assert!(
        matches!(world.recorder.take_dump(world.now, &other), DumpOutcome::Stale(_)),
        "another block size"
    );
    assert!(matches!(world.dump(0), Some(DumpOutcome::Taken(_))));
    world.recorder.finish_dump();
    assert!(!world.recorder.expect_dump());
    assert!(matches!(world.dump(0), Some(DumpOutcome::NotWanted(_))), "none is wanted any more");
    world.run(&Op::Clear);
    world.publish_heard();
    assert!(!world.recorder.expect_dump(), "the past is known again");
    assert!(matches!(world.dump(0), Some(DumpOutcome::NotWanted(_))));
}

#[test]
fn a_dump_without_a_position_is_unverified_until_the_state_is_known() {
    let mut world = World::late(2);
    assert!(world.recorder.expect_dump());
    let dump = PeerDump { position: None, ..world.engine.dumps.last().unwrap().clone() };
    assert_eq!(world.recorder.take_dump(world.now, &dump), DumpOutcome::Taken(5));
    let trust = world.recorder.ledger().trust();
    assert_eq!((trust.level(), trust.worst().unwrap().reason), (Trust::Unverified, Reason::PeerDump));
    world.engine.clear();
    let (sequence, payload) = world.engine.publish();
    world.deliver(sequence, payload);
    assert!(!world.recorder.ledger().trust().has(Reason::PeerDump));
    assert!(world.held().is_empty());
}
