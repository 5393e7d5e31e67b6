//! Applying removals.

use kvplane_core::{Reason, Tier, Trust};
use kvplane_wire::{Batch, Hash, Removed};
use smallvec::SmallVec;

use super::chunks::covered_with;
use super::levels::places_holding;
use super::{Interpreter, Reading};
use crate::change::{Change, RemovedBlock};
use crate::clock::Now;
use crate::ledger::Ledger;
use crate::options::Duplicates;
use crate::persist::persist;
use crate::state::{PlaceId, PlaceName, SlotId};

/// Blocks that left the device, the latest of those that share a slot. Enough to notice one that leaves it
/// twice; nothing depends on more.
#[derive(Debug, Default)]
pub(super) struct Departed(Vec<u64>);

persist!(Departed(_));

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

impl Interpreter {
    pub(super) fn apply_removed(
        &mut self,
        ledger: &mut Ledger,
        batch: &Batch<'_, '_>,
        removed: &Removed<'_>,
        reading: &mut Reading,
        now: Now,
    ) {
        let hashes = batch.removed_hashes(removed);
        ledger.counters.blocks_removed += hashes.len() as u64;
        let name = PlaceName {
            medium: removed.medium,
            locality: removed.locality,
            ownership: removed.ownership,
            group: removed.group,
        };
        if removed.anywhere {
            self.remove_anywhere(ledger, hashes, removed.group, reading);
            return;
        }
        let Some(place) = ledger.state().places.find(name) else {
            for hash in hashes {
                self.note_stray_removal(ledger, hash.bits, name, now);
            }
            return;
        };
        let mut blocks = Vec::with_capacity(hashes.len());
        // Looked up together: the memory they lie in is cold, and the waits overlap.
        let slots: SmallVec<[Option<SlotId>; 16]> =
            hashes.iter().map(|hash| ledger.state().find(hash.bits)).collect();
        let copies = match self.duplicates() {
            Duplicates::Count => 1,
            Duplicates::Presence => u32::MAX,
        };
        for (hash, slot) in hashes.iter().zip(slots) {
            // A hash that is named twice may have gone with its first removal.
            let known = slot.filter(|&slot| ledger.state().is_hash(slot, hash.bits));
            match known.filter(|&slot| ledger.state().copies(slot, place) > 0) {
                Some(slot) => {
                    let covered = covered_with(ledger, slot, place);
                    blocks.push(self.take_copies(ledger, slot, hash.bits, place, copies, reading));
                    for before in covered {
                        let hash = ledger.state().hash_of(before);
                        blocks.push(self.take_copies(ledger, before, hash, place, 1, reading));
                    }
                }
                // What goes was a copy that had not been counted.
                None if self.epoch.reports.resolve(place, hash.bits) => {}
                None => self.note_stray_removal(ledger, hash.bits, name, now),
            }
        }
        if !blocks.is_empty() {
            let place = ledger.state().places.get(place).clone();
            self.note_removal_from(&place);
            if place.tier == Tier::Device {
                let gone = blocks.iter().filter(|block| block.copies == 0);
                gone.for_each(|block| self.departed.note(block.hash, place.group));
            }
            reading.draft.tell_removed(place, blocks);
        }
    }

    /// A place is said to lose what it was not known to hold. Nothing changes; but what the device loses
    /// twice, of which everything is known, it had not lost the first time: that removal was meant for
    /// another tier.
    fn note_stray_removal(&mut self, ledger: &mut Ledger, hash: u64, name: PlaceName<'_>, now: Now) {
        let slot = ledger.state().find(hash);
        if slot.is_some_and(|slot| ledger.state().held_where(slot, |_| true)) {
            ledger.counters.misplaced_removals += 1;
        } else {
            ledger.counters.unknown_removals += 1;
        }
        let counted = self.duplicates() == Duplicates::Count;
        if counted
            && Tier::of(name.medium, name.locality) == Tier::Device
            && ledger.trust().level() == Trust::Exact
            && self.departed.has(hash, name.group)
        {
            ledger.degrade(Reason::UnknownRemoval, now);
        }
    }

    /// Blocks leave a group, wherever it has them.
    fn remove_anywhere(
        &mut self,
        ledger: &mut Ledger,
        hashes: &[Hash],
        group: Option<u32>,
        reading: &mut Reading,
    ) {
        for hash in hashes {
            let slot = ledger.state().find(hash.bits);
            let places = slot.map(|slot| places_holding(ledger, slot, group)).unwrap_or_default();
            if places.is_empty() {
                ledger.counters.unknown_removals += 1;
            }
            for place in places {
                let Some(slot) = slot else { break };
                let block = self.take_copies(ledger, slot, hash.bits, place, u32::MAX, reading);
                let place = ledger.state().places.get(place);
                match reading.draft.changes.last_mut() {
                    Some(Change::Removed { place: last, blocks }) if last == place => blocks.push(block),
                    _ => reading.draft.tell_removed(place.clone(), vec![block]),
                }
            }
        }
    }

    /// Takes up to `copies` copies of a block from a place; says what is left.
    pub(super) fn take_copies(
        &mut self,
        ledger: &mut Ledger,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        copies: u32,
        reading: &mut Reading,
    ) -> RemovedBlock {
        let left = ledger.state().copies(slot, place).saturating_sub(copies);
        if left == 0 {
            self.epoch.reports.leave(place, hash);
        }
        ledger.release(slot, hash, place, left, &mut reading.draft)
    }
}
