//! Applying removals.

use kvplane_core::{Reason, Tier, Trust};
use kvplane_wire::{Batch, Hash, Removed};
use smallvec::SmallVec;

use super::apply::Effects;
use super::{Duplicates, Journal};
use crate::change::{Change, RemovedBlock};
use crate::clock::Now;
use crate::state::{PlaceId, PlaceName, SlotId};
use crate::transitions::push_removed;

/// Blocks that left the device, the latest of those that share a slot. Enough to notice one that leaves it twice; nothing depends on more.
#[derive(Debug, Default)]
pub(super) struct Departed(Vec<u64>);

impl Departed {
    const SLOTS: usize = 4096;

    fn note(&mut self, hash: u64, group: Option<u32>) {
        self.0.resize(Self::SLOTS, 0);
        let key = Self::key(hash, group);
        self.0[key as usize % Self::SLOTS] = key;
    }

    fn has(&self, hash: u64, group: Option<u32>) -> bool {
        let key = Self::key(hash, group);
        self.0.get(key as usize % Self::SLOTS).is_some_and(|&departed| departed == key)
    }

    /// Groups of a cache share hashes.
    fn key(hash: u64, group: Option<u32>) -> u64 {
        hash.rotate_left(group.unwrap_or(0))
    }
}

impl Journal {
    pub(super) fn apply_removed(
        &mut self,
        batch: &Batch<'_, '_>,
        removed: &Removed<'_>,
        effects: &mut Effects,
        now: Now,
    ) {
        let hashes = batch.removed_hashes(removed);
        self.counters.blocks_removed += hashes.len() as u64;
        let name = PlaceName {
            medium: removed.medium,
            locality: removed.locality,
            ownership: removed.ownership,
            group: removed.group,
        };
        if removed.anywhere {
            self.remove_anywhere(hashes, removed.group, effects);
            return;
        }
        let Some(place) = self.state.places.find(name) else {
            for hash in hashes {
                self.note_stray_removal(hash.bits, name, now);
            }
            return;
        };
        let mut blocks = Vec::with_capacity(hashes.len());
        // Looked up together: the memory they lie in is cold, and the waits overlap.
        let slots: SmallVec<[Option<SlotId>; 16]> =
            hashes.iter().map(|hash| self.state.find(hash.bits)).collect();
        let copies = match self.duplicates() {
            Duplicates::Count => 1,
            Duplicates::Presence => u32::MAX,
        };
        for (hash, slot) in hashes.iter().zip(slots) {
            // A hash that is named twice may have gone with its first removal.
            let known = slot.filter(|&slot| self.state.is_hash(slot, hash.bits));
            match known.filter(|&slot| self.state.copies(slot, place) > 0) {
                Some(slot) => {
                    let covered = self.covered_with(slot, place);
                    blocks.push(self.take_copies(slot, hash.bits, place, copies, effects));
                    for before in covered {
                        let hash = self.state.hash_of(before);
                        blocks.push(self.take_copies(before, hash, place, 1, effects));
                    }
                }
                // What goes was a copy that had not been counted.
                None if self.reports.resolve(place, hash.bits) => {}
                None => self.note_stray_removal(hash.bits, name, now),
            }
        }
        if !blocks.is_empty() {
            let place = self.state.places.get(place).clone();
            self.note_removal_from(&place);
            if place.tier == Tier::Device {
                let gone = blocks.iter().filter(|block| block.copies == 0);
                gone.for_each(|block| self.departed.note(block.hash, place.group));
            }
            effects.changes.push(Change::Removed { place, blocks });
        }
    }

    /// A place is said to lose what it was not known to hold. Nothing changes; but what the device loses twice, of which everything is
    /// known, it had not lost the first time: that removal was meant for another tier.
    fn note_stray_removal(&mut self, hash: u64, name: PlaceName<'_>, now: Now) {
        let slot = self.state.find(hash);
        if slot.is_some_and(|slot| self.state.held_where(slot, |_| true)) {
            self.counters.misplaced_removals += 1;
        } else {
            self.counters.unknown_removals += 1;
        }
        let counted = self.duplicates() == Duplicates::Count;
        if counted
            && Tier::of(name.medium, name.locality) == Tier::Device
            && self.trust.level() == Trust::Exact
            && self.departed.has(hash, name.group)
        {
            self.degrade(Reason::UnknownRemoval, now);
        }
    }

    /// Blocks leave a group, wherever it has them.
    fn remove_anywhere(&mut self, hashes: &[Hash], group: Option<u32>, effects: &mut Effects) {
        for hash in hashes {
            let slot = self.state.find(hash.bits);
            let places = slot.map(|slot| self.places_holding(slot, group)).unwrap_or_default();
            if places.is_empty() {
                self.counters.unknown_removals += 1;
            }
            for place in places {
                let Some(slot) = slot else { break };
                let block = self.take_copies(slot, hash.bits, place, u32::MAX, effects);
                let place = self.state.places.get(place);
                match effects.changes.last_mut() {
                    Some(Change::Removed { place: last, blocks }) if last == place => blocks.push(block),
                    _ => {
                        let (place, blocks) = (place.clone(), vec![block]);
                        effects.changes.push(Change::Removed { place, blocks });
                    }
                }
            }
        }
    }

    /// Lets go of blocks that nothing holds any more, at the end of a batch: what other tiers have got is told behind what the device
    /// lost, perhaps by the hash alone.
    pub(super) fn release_left(&mut self, effects: &mut Effects) {
        for hash in std::mem::take(&mut effects.left) {
            if let Some(slot) = self.state.find(hash) {
                self.state.release(slot);
            }
        }
    }

    /// Takes up to `copies` copies of a block from a place; says what is left.
    pub(super) fn take_copies(
        &mut self,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        copies: u32,
        effects: &mut Effects,
    ) -> RemovedBlock {
        let left = self.state.copies(slot, place).saturating_sub(copies);
        self.leave_copies(slot, hash, place, left, effects)
    }

    /// A place has only so many copies of a block left.
    pub(super) fn leave_copies(
        &mut self,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        left: u32,
        effects: &mut Effects,
    ) -> RemovedBlock {
        let tier = self.state.places.get(place).tier;
        let was_visible = self.is_visible(slot, tier);
        self.state.set_copies(slot, place, left);
        if was_visible && !self.is_visible(slot, tier) {
            push_removed(&mut effects.transitions, tier, hash);
        }
        if left == 0 {
            self.reports.leave(place, hash);
            effects.left.push(hash);
        }
        RemovedBlock { hash, copies: left }
    }
}
