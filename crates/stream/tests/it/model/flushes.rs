//! Flushes that somebody watches: whatever happens to their signs, nothing that is gone is credited once the
//! engine accepted, and nothing that comes after the sign is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use kvplane_core::{Continuity, EngineKind, Reason, Tier, Trust};
use kvplane_stream::{
    EpochCause, FlushError, FlushId, FlushOutcome, FlushReach, FlushSign, JournalOptions, Recorder, Semantics,
};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};
use proptest::prelude::*;

use crate::model::engine::block_hash;
use crate::model::{AnswerKind, Fate, Op, World};

/// Flushes that are watched at the same time.
pub const AT_ONCE: usize = 3;

/// What is credited unless somebody says otherwise.
const CREDIT: [Trust; 3] = [Trust::Exact, Trust::Lower, Trust::Unverified];

#[derive(Debug, Clone, Copy)]
pub enum FlushStep {
    /// The watch begins; the request is on its way.
    Ask,
    /// The engine does it.
    Do,
    /// The answer is read.
    Accept,
    /// The engine refuses.
    Refuse,
    /// The time is over.
    Expire,
    /// The watcher disconnects.
    Leave,
}

pub fn step() -> impl Strategy<Value = FlushStep> {
    prop_oneof![
        3 => Just(FlushStep::Ask),
        3 => Just(FlushStep::Do),
        3 => Just(FlushStep::Accept),
        1 => Just(FlushStep::Refuse),
        1 => Just(FlushStep::Expire),
        1 => Just(FlushStep::Leave),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    id: FlushId,
    /// The engine's step in which it was done.
    done: Option<u64>,
    accepted: bool,
}

#[derive(Default)]
pub struct Flushes {
    watched: [Option<Watched>; AT_ONCE],
    /// When flushes were done that are known to be accepted.
    accepted: Vec<u64>,
    /// A clear may be under way that is of none of these flushes. Nothing on the stream tells it from theirs.
    stray: bool,
    /// How they ended.
    pub outcomes: Vec<FlushOutcome>,
}

impl Flushes {
    pub fn are_fenced(&self) -> bool {
        self.watched.iter().flatten().any(|flush| flush.accepted)
    }
}

impl World {
    /// Whether every batch that was published has been applied.
    pub fn has_heard_all(&self) -> bool {
        self.recorder.continuity() == Continuity::Live
            && self.recorder.last_sequence() == self.engine.next_sequence.checked_sub(1)
    }

    /// Somebody clears the cache whom nobody here knows.
    pub fn clear(&mut self) {
        if self.flushes.watched.iter().all(Option::is_none) {
            self.flushes.stray = true;
            self.engine.clear();
        }
    }

    pub fn flush(&mut self, slot: usize, step: FlushStep) {
        let Some(mut flush) = self.flushes.watched[slot] else {
            if matches!(step, FlushStep::Ask) && !self.flushes.stray {
                let id = self.recorder.begin_flush().unwrap();
                self.flushes.watched[slot] = Some(Watched { id, done: None, accepted: false });
            }
            return;
        };
        match step {
            FlushStep::Do if flush.done.is_none() => flush.done = Some(self.engine.clear()),
            FlushStep::Accept if flush.done.is_some() && !flush.accepted => {
                flush.accepted = true;
                self.flushes.accepted.extend(flush.done);
                self.recorder.flush_accepted(flush.id, self.now);
            }
            // Batches take less time than a flush is waited for.
            FlushStep::Expire if flush.accepted && self.has_heard_all() => {
                self.recorder.flush_expired(flush.id, self.now);
            }
            FlushStep::Refuse if flush.done.is_none() => {
                self.recorder.flush_refused(flush.id, self.now);
                self.flushes.watched[slot] = None;
                return;
            }
            FlushStep::Leave if self.has_heard_all() => {
                self.recorder.end_flush(flush.id, self.now);
                self.flushes.watched[slot] = None;
                self.flushes.stray = true;
                return;
            }
            _ => {}
        }
        self.flushes.watched[slot] = Some(flush);
    }

    /// Lets the time of every flush be over.
    pub fn end_flushes(&mut self) {
        for slot in 0..AT_ONCE {
            self.flush(slot, FlushStep::Expire);
            self.flush(slot, FlushStep::Leave);
        }
    }

    pub fn check_flushes(&mut self, ours: &BTreeMap<u64, u32>) {
        for slot in 0..AT_ONCE {
            let Some(Watched { id, .. }) = self.flushes.watched[slot] else { continue };
            let Some(outcome) = self.recorder.flush_outcome(id).cloned() else { continue };
            self.recorder.end_flush(id, self.now);
            self.flushes.watched[slot] = None;
            self.flushes.stray |= !matches!(outcome, FlushOutcome::Proven { .. });
            self.flushes.outcomes.push(outcome);
        }
        if self.has_heard_all() && self.engine.nothing_pending() {
            self.flushes.stray = false;
        }
        let trust = self.recorder.ledger().trust();
        assert_eq!(trust.has(Reason::Flushing), self.flushes.are_fenced());
        // Removals may come one by one: what they have not named yet is as old as the batch.
        let is_credited = self.recorder.continuity() == Continuity::Live && trust.is_credited(&CREDIT);
        // Where nobody can be asked, a frame that comes too late is taken for one of a new life, however old
        // it is.
        let of_a_late_frame =
            |cause: &EpochCause| matches!(cause, EpochCause::SequenceWentBack | EpochCause::StartUpClear);
        let mistaken = self.causes.iter().any(of_a_late_frame);
        if !is_credited || mistaken || self.engine.flushes_by_removals {
            return;
        }
        for (hash, flushed) in
            ours.keys().flat_map(|hash| self.flushes.accepted.iter().map(move |at| (hash, at)))
        {
            assert!(self.engine.stored_at[hash] > *flushed, "{hash:x} was flushed, and is credited");
        }
    }
}

// --- one by one
// ------------------------------------------------------------------------------------------------

fn extend(conversation: u8, depth: usize) -> Op {
    Op::Extend { conversation, depth, second_copy: false }
}

const PUBLISH: Op = Op::Publish(Fate::Arrives);

/// An engine whose stream is `live` and known whole, with three blocks.
fn following(semantics: Semantics) -> World {
    let mut world = World::of(semantics, true, true, 100, 100);
    world.engine.flushes_by_removals = semantics.flushes_by_removals;
    for op in [
        PUBLISH,
        Op::Reconnect,
        Op::Answer(AnswerKind::Whole),
        Op::Answer(AnswerKind::Whole),
        extend(0, 3),
        PUBLISH,
    ] {
        world.run(&op);
    }
    assert_eq!((trust(&world), held(&world)), ((Trust::Exact, None), 3));
    world
}

fn run(world: &mut World, slot: usize, steps: &[FlushStep]) {
    for &step in steps {
        world.run(&Op::Flush(slot, step));
    }
}

fn trust(world: &World) -> (Trust, Option<Reason>) {
    let trust = world.recorder.ledger().trust();
    (trust.level(), trust.worst().map(|worst| worst.reason))
}

fn held(world: &World) -> usize {
    world.recorder.ledger().state().residencies().count()
}

fn proven(sign: FlushSign, cleared: &[Tier], remaining: &[(Tier, Option<u64>)]) -> FlushOutcome {
    let reach = FlushReach { cleared: cleared.to_vec(), remaining: remaining.to_vec() };
    FlushOutcome::Proven { sign, reach }
}

const FENCED: (Trust, Option<Reason>) = (Trust::Unsound, Some(Reason::Flushing));
const EXACT: (Trust, Option<Reason>) = (Trust::Exact, None);
const UNPROVEN: (Trust, Option<Reason>) = (Trust::Lower, Some(Reason::UnprovenFlush));
const TO_ACCEPT: [FlushStep; 3] = [FlushStep::Ask, FlushStep::Do, FlushStep::Accept];

#[test]
fn the_fence_is_up_from_the_answer_to_the_clear_and_what_follows_counts() {
    let mut world = following(Semantics::default());
    let (epoch, known_from) = (world.recorder.ledger().epoch(), world.recorder.ledger().known_from());
    run(&mut world, 0, &TO_ACCEPT);
    assert_eq!((trust(&world), held(&world)), (FENCED, 3));
    world.run(&extend(1, 2));
    assert_eq!(trust(&world), FENCED);
    world.run(&PUBLISH);
    assert_eq!((trust(&world), held(&world)), (EXACT, 2));
    assert_eq!(world.flushes.outcomes, [proven(FlushSign::Clear, &[Tier::Device], &[])]);
    let ledger = world.recorder.ledger();
    assert_eq!((ledger.epoch(), ledger.known_from()), (epoch, known_from), "the same life, known as before");
    assert_eq!((ledger.counters().flushes_proven, ledger.counters().flushes_unproven), (1, 0));
}

#[test]
fn a_clear_before_the_answer_is_the_proof() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &[FlushStep::Ask, FlushStep::Do]);
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    let cursor = world.recorder.ledger().cursor();
    run(&mut world, 0, &[FlushStep::Accept]);
    assert_eq!(world.flushes.outcomes, [proven(FlushSign::Clear, &[Tier::Device], &[])]);
    assert_eq!((trust(&world), held(&world)), (EXACT, 2));
    assert_eq!(world.recorder.ledger().cursor(), cursor, "nobody was told of a fence");
}

#[test]
fn a_clear_that_the_ring_brings_counts() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &TO_ACCEPT);
    world.run(&Op::Publish(Fate::Lost));
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    assert_eq!((world.recorder.continuity(), trust(&world)), (Continuity::Recovering, FENCED));
    world.run(&Op::Answer(AnswerKind::Whole));
    assert_eq!((trust(&world), held(&world)), (EXACT, 2));
    assert_eq!(world.flushes.outcomes.len(), 1);
}

#[test]
fn without_a_sign_in_time_nothing_is_said_to_be_held_until_it_comes() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &TO_ACCEPT);
    run(&mut world, 0, &[FlushStep::Expire]);
    assert_eq!(world.flushes.outcomes, [FlushOutcome::Unproven]);
    assert_eq!((trust(&world), held(&world)), (UNPROVEN, 0));
    assert_eq!(world.recorder.ledger().counters().flushes_unproven, 1);
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    assert_eq!((trust(&world), held(&world)), (EXACT, 2), "late, and as good");
}

#[test]
fn who_goes_away_leaves_no_fence_behind() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &TO_ACCEPT);
    run(&mut world, 0, &[FlushStep::Leave]);
    assert_eq!((trust(&world), held(&world)), (UNPROVEN, 0));
    let mut world = following(Semantics::default());
    run(&mut world, 0, &[FlushStep::Ask, FlushStep::Leave]);
    assert_eq!((trust(&world), held(&world)), (UNPROVEN, 0), "nobody knows what the engine did");
    let mut world = following(Semantics::default());
    run(&mut world, 0, &[FlushStep::Ask, FlushStep::Refuse]);
    assert_eq!((trust(&world), held(&world)), (EXACT, 3));
}

#[test]
fn flushes_at_once_are_shown_by_as_many_clears() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &[FlushStep::Ask, FlushStep::Do]);
    run(&mut world, 1, &[FlushStep::Ask]);
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    run(&mut world, 1, &[FlushStep::Do, FlushStep::Accept]);
    assert_eq!((trust(&world), held(&world)), (FENCED, 2), "the one clear was the other's");
    run(&mut world, 0, &[FlushStep::Accept]);
    world.run(&PUBLISH);
    assert_eq!((trust(&world), held(&world)), (EXACT, 0));
    assert_eq!(world.flushes.outcomes.len(), 2);

    // One of them was refused: there is one clear to come.
    run(&mut world, 0, &[FlushStep::Ask]);
    run(&mut world, 1, &TO_ACCEPT);
    world.run(&PUBLISH);
    assert_eq!(trust(&world), FENCED);
    run(&mut world, 0, &[FlushStep::Refuse]);
    assert_eq!(trust(&world), EXACT);
    assert_eq!(world.flushes.outcomes.len(), 3);
}

#[test]
fn a_clear_that_never_came_is_not_waited_for_later() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &[FlushStep::Ask]);
    run(&mut world, 1, &[FlushStep::Ask]);
    run(&mut world, 0, &[FlushStep::Leave]);
    run(&mut world, 1, &[FlushStep::Refuse]);
    run(&mut world, 2, &TO_ACCEPT);
    world.run(&PUBLISH);
    assert_eq!(trust(&world), EXACT);
    assert_eq!(world.flushes.outcomes, [proven(FlushSign::Clear, &[Tier::Device], &[])]);
}

#[test]
fn a_restart_ends_the_fence_and_leaves_nothing_in_memory() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &TO_ACCEPT);
    world.run(&Op::Restart { publishes: 2, leaves_frames: false });
    assert_eq!(trust(&world), FENCED, "nothing proves it yet");
    for op in [
        Op::Reconnect,
        Op::Answer(AnswerKind::Whole),
        Op::Answer(AnswerKind::Whole),
        Op::Answer(AnswerKind::Whole),
    ] {
        world.run(&op);
    }
    let reach = FlushReach { cleared: vec![Tier::Device, Tier::Host], remaining: Vec::new() };
    assert_eq!(world.flushes.outcomes, [FlushOutcome::Restarted { reach }]);
    assert_eq!(trust(&world), EXACT);
}

#[test]
fn a_life_that_may_have_done_the_flush_itself_is_fenced() {
    // The answer is read before the restart is proven, or after that.
    for is_early in [true, false] {
        let mut world = following(Semantics::default());
        run(&mut world, 0, &[FlushStep::Ask]);
        world.run(&Op::Restart { publishes: 2, leaves_frames: false });
        run(&mut world, 0, if is_early { &TO_ACCEPT[1..] } else { &TO_ACCEPT[1..2] });
        for op in [
            Op::Reconnect,
            Op::Answer(AnswerKind::Whole),
            Op::Answer(AnswerKind::Whole),
            Op::Answer(AnswerKind::Whole),
        ] {
            world.run(&op);
        }
        assert_eq!(world.recorder.counters().restarts, 1);
        run(&mut world, 0, &[FlushStep::Accept]);
        assert_eq!(trust(&world), FENCED);
        world.run(&PUBLISH);
        assert_eq!(trust(&world), EXACT);
        assert_eq!(world.flushes.outcomes, [proven(FlushSign::Clear, &[Tier::Device], &[])]);
    }
}

#[test]
fn the_clear_that_begins_a_life_is_the_sign_of_no_flush() {
    let mut world = World::of(crate::model::clearing(true), true, true, 100, 100);
    run(&mut world, 0, &[FlushStep::Ask]);
    for op in
        [extend(0, 2), PUBLISH, Op::Reconnect, Op::Answer(AnswerKind::Whole), Op::Answer(AnswerKind::Whole)]
    {
        world.run(&op);
    }
    run(&mut world, 0, &[FlushStep::Do, FlushStep::Accept]);
    assert_eq!(trust(&world), FENCED);
    world.run(&PUBLISH);
    assert_eq!((trust(&world), held(&world)), (EXACT, 0));
}

#[test]
fn a_sign_that_may_have_been_lost_is_said_to_be() {
    let mut world = following(Semantics::default());
    run(&mut world, 0, &TO_ACCEPT);
    world.run(&Op::PublishFailed);
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    while world.recorder.continuity() != Continuity::Live {
        world.run(&Op::Answer(AnswerKind::Whole));
        world.run(&Op::Wait(400));
    }
    assert_eq!(trust(&world), FENCED, "what came after the loss may be older than the flush");
    run(&mut world, 0, &[FlushStep::Expire]);
    assert_eq!(world.flushes.outcomes, [FlushOutcome::Lost]);
    assert_eq!(trust(&world).0, Trust::Lower);
}

#[test]
fn removals_of_everything_are_a_sign_where_engines_tell_no_clear() {
    let semantics = Semantics { flushes_by_removals: true, ..Semantics::default() };
    let mut world = following(semantics);
    run(&mut world, 0, &TO_ACCEPT);
    assert_eq!(trust(&world), FENCED);
    world.run(&extend(1, 2));
    world.run(&PUBLISH);
    assert_eq!((trust(&world), held(&world)), (EXACT, 2));
    // There is nothing to remove: then nothing comes, and nothing is missing.
    world.run(&Op::Evict(0));
    world.run(&Op::Evict(0));
    world.run(&PUBLISH);
    run(&mut world, 0, &TO_ACCEPT);
    assert_eq!(trust(&world), FENCED);
    run(&mut world, 0, &[FlushStep::Expire]);
    assert_eq!((trust(&world), held(&world)), (EXACT, 0));
    let signs = [FlushSign::Removals, FlushSign::NothingHeld];
    assert_eq!(world.flushes.outcomes, signs.map(|sign| proven(sign, &[Tier::Device], &[])));
}

/// The engine's host gets a block that the device has.
fn offload(world: &mut World, depth: usize) {
    world.engine.tell(OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(block_hash(0, depth))],
        medium: Some("CPU".into()),
        group: Some(0),
        ..OwnedStored::default()
    }));
    world.publish(Fate::Arrives);
}

#[test]
fn a_proof_says_which_tiers_it_is_of() {
    let outcome = |semantics: Semantics| {
        let mut world = following(semantics);
        offload(&mut world, 0);
        let id = world.recorder.begin_flush().unwrap();
        world.engine.clear();
        world.recorder.flush_accepted(id, world.now);
        world.publish(Fate::Arrives);
        let outcome = world.recorder.flush_outcome(id).cloned().unwrap();
        world.recorder.end_flush(id, world.now);
        (outcome, trust(&world))
    };
    // vLLM's clear does not say whether it reached the host; others' do.
    let (device, host) = (Tier::Device, Tier::Host);
    assert_eq!(
        outcome(Semantics::of(EngineKind::Vllm)),
        (proven(FlushSign::Clear, &[device], &[(host, None)]), (Trust::Lower, Some(Reason::TierHistory)))
    );
    let everywhere = Semantics { clears: kvplane_stream::ClearScope::Everything, ..Semantics::default() };
    assert_eq!(outcome(everywhere), (proven(FlushSign::Clear, &[device, host], &[]), EXACT));
    let removing = Semantics { flushes_by_removals: true, ..everywhere };
    assert_eq!(outcome(removing), (proven(FlushSign::Removals, &[device], &[(host, Some(1))]), EXACT));
}

#[test]
fn what_another_plane_records_is_flushed_there() {
    let now = following(Semantics::default()).now;
    let mut mirror = Recorder::of_mirror(Duration::from_secs(1), JournalOptions::default(), 0, now);
    assert_eq!(mirror.begin_flush(), Err(FlushError::Mirrored));
}
