//! Applying a batch: events in, changes of the state out.

use std::sync::Arc;

use kvplane_core::Reason;
use kvplane_wire::{Batch, Event, RejectedKind};

use super::Journal;
use super::reannounced::Neighbours;
use crate::change::{Change, Transition};
use crate::clock::Now;
use crate::flush::Signs;
use crate::state::{Attached, Attributes, Place, SlotId};

/// How many ancestors one batch may look at to see whether they are held. Chains that are known to be whole cost one
/// step, so only the first stores after a loss come near it.
const ANCESTOR_STEPS: u32 = 4096;

/// How many blocks the chunks of one batch may cover: those of a prompt of a million tokens.
const CHUNK_STEPS: u32 = 65_536;

/// What one batch has done so far.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) changes: Vec<Change>,
    pub(super) transitions: Vec<Transition>,
    pub(super) ancestor_steps: u32,
    /// Blocks that chunks of this batch may still cover.
    pub(super) chunk_steps: u32,
    /// Scratch: blocks that waited and were attached.
    pub(super) attached: Vec<Attached>,
    /// The last store's blocks have something else in common than it says: they inherited a salt, or are known.
    pub(super) inherited: Option<Arc<Attributes>>,
    /// What stores showed that makes answers worth less.
    pub(super) doubts: Vec<Reason>,
    /// Hashes of device blocks of the main group that came without their tokens.
    pub(super) unresolved: Vec<u64>,
    /// What other tiers hold is not known: the device was cleared, and they perhaps with it, or it was misunderstood.
    pub(super) forget_others: bool,
    /// The blocks of a store may be held already: they have no further copy.
    pub(super) uncounted: bool,
    /// Copies were counted that are none, and which is not known.
    pub(super) over_counted: bool,
    /// Hashes of blocks that left a place for good.
    pub(super) left: Vec<u64>,
    /// Blocks that were held before it was known what they are.
    pub(super) joined: Vec<SlotId>,
    /// Which stores of the batch go together.
    pub(super) neighbours: Neighbours,
    /// How many changes there were when everything was cleared last.
    pub(super) cleared_at: Option<(usize, usize)>,
    /// What it shows of flushes.
    pub(super) signs: Signs,
}

impl Effects {
    /// A store shows that answers are worth less.
    pub(super) fn doubt(&mut self, reason: Reason) {
        if !self.doubts.contains(&reason) {
            self.doubts.push(reason);
        }
    }
}

impl Journal {
    /// Applies one batch. Batches come in order, once: that is continuity's business.
    pub fn apply(&mut self, engine_sequence: u64, batch: &Batch<'_, '_>, now: Now) {
        let mut effects =
            Effects { ancestor_steps: ANCESTOR_STEPS, chunk_steps: CHUNK_STEPS, ..Effects::default() };
        if !self.options.semantics.held_once {
            effects.neighbours = Neighbours::of(batch);
        }
        let counted = self.count_for_evidence();
        self.counters.batches += 1;
        self.counters.unknown_fields += u64::from(batch.unknown_fields);
        if std::mem::take(&mut self.known_from_next) {
            self.known_from = Some(engine_sequence);
            self.trust_changed = true;
        }
        for (at, event) in batch.events.iter().enumerate() {
            self.counters.events += 1;
            match event {
                Event::Stored(stored) => self.apply_stored(batch, (at, stored), &mut effects, now),
                Event::Removed(removed) => {
                    let watched = self.watched_blocks();
                    self.apply_removed(batch, removed, &mut effects, now);
                    self.note_removal_sign(watched, &mut effects);
                }
                Event::Cleared { ownership } => {
                    self.apply_cleared(*ownership, (engine_sequence, at), &mut effects, now);
                }
                Event::Moved(moved) => self.apply_moved(moved, &mut effects, now),
                Event::Created(created) => self.apply_created(*created, &mut effects, now),
                Event::Unknown { .. } => {
                    self.counters.unknown_events += 1;
                    self.pass_over("event", "unknown_event", self.counters.unknown_events);
                    self.degrade(Reason::UnknownEvent, now);
                }
                Event::Rejected(rejected) => {
                    let reason = rejected.reason.as_str();
                    let count = self.counters.reject(rejected.kind, reason);
                    self.pass_over(rejected.kind.as_str(), reason, count);
                    self.degrade(
                        match rejected.kind {
                            RejectedKind::Store => Reason::MalformedStore,
                            RejectedKind::Removal => Reason::MalformedRemoval,
                            RejectedKind::Unknown => Reason::UnknownEvent,
                        },
                        now,
                    );
                }
            }
        }
        self.engine_sequence = Some(engine_sequence);
        for reason in std::mem::take(&mut effects.doubts) {
            self.copies_uncounted |= reason == Reason::Presence;
            self.degrade(reason, now);
        }
        self.check_rank(batch.rank, now);
        self.forget_others(&mut effects, now);
        self.settle_signs(&mut effects);
        self.settle_groups(&mut effects);
        self.release_left(&mut effects);
        self.note_unresolved(&effects);
        self.check_capacity(now);
        self.note_standing_reasons(now);
        self.settle_evidence(counted, &mut effects);
        let over_counted = effects.over_counted;
        self.push(Some(engine_sequence), batch.timestamp, effects.changes, effects.transitions);
        self.check_over_count(over_counted, now);
        self.state.compact();
    }

    /// Holds the rank that a batch names against the stream's. Where an engine has one rank, that may be a rank of a larger whole, with
    /// its number there: then it names the same in every batch of a life. A batch of any other rank is of another cache.
    fn check_rank(&mut self, rank: Option<i64>, now: Now) {
        let Some(rank) = rank else { return };
        let own = i64::from(self.rank);
        self.counters.foreign_rank += u64::from(rank != own);
        let expected = if self.options.sole_rank { *self.named_rank.get_or_insert(rank) } else { own };
        if rank != expected {
            self.pass_over("batch", "foreign_rank", self.counters.foreign_rank);
            self.degrade(Reason::ForeignRank, now);
        }
    }

    /// Notes whether blocks without tokens are left at the end of a batch.
    pub(super) fn note_unresolved(&mut self, effects: &Effects) {
        self.untranslatable |= effects.unresolved.iter().any(|&hash| self.is_untold(hash));
    }

    /// Whether a block without tokens is still one at the end of its batch, which may have told what it is, or removed it.
    fn is_untold(&self, hash: u64) -> bool {
        let slot = self.state.find(hash).filter(|&slot| self.state.attached_chain(slot).is_none());
        slot.is_some_and(|slot| self.state.held_where(slot, Place::proves_ancestors))
    }

    pub(super) fn degrade(&mut self, reason: Reason, now: Now) {
        self.trust_changed |= self.trust.degrade(reason, now.unix_ms);
    }
}
