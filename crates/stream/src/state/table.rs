//! Slots by the hash of their block.
//!
//! The table keeps the slots' numbers alone, four bytes instead of sixteen: the hash is in the slot, which a caller
//! looks at next anyway.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::SlotId;
use super::slot::Slots;
use crate::seeded::Seeded;

/// The slots that are in use, by their hashes.
#[derive(Debug, Default)]
pub(super) struct Table {
    ids: HashTable<SlotId>,
}

fn spread(hash: u64) -> u64 {
    Seeded::default().hash_one(hash)
}

impl Table {
    pub(super) fn find(&self, hash: u64, slots: &Slots) -> Option<SlotId> {
        self.ids.find(spread(hash), |&id| slots[id as usize].hash == hash).copied()
    }

    /// Adds a slot whose hash is not there yet.
    pub(super) fn insert(&mut self, id: SlotId, slots: &Slots) {
        if self.ids.len() == self.ids.capacity() {
            self.grow(slots);
        }
        let hash = slots[id as usize].hash;
        self.ids.insert_unique(spread(hash), id, |&id| spread(slots[id as usize].hash));
    }

    /// Makes room for half as many again. The slots are read one after the other, not in the table's order, where
    /// each would have to be fetched; and the old table is not needed for it.
    fn grow(&mut self, slots: &Slots) {
        let old = std::mem::take(&mut self.ids);
        let (len, capacity) = (old.len(), old.len() + old.len() / 2 + 1);
        let mut is_in = vec![false; slots.len()];
        old.iter().for_each(|&id| is_in[id as usize] = true);
        drop(old);
        self.ids = HashTable::with_capacity(capacity);
        for (at, slot) in slots.iter().enumerate().filter(|&(at, _)| is_in[at]) {
            self.ids.insert_unique(spread(slot.hash), at as SlotId, |&id| spread(slots[id as usize].hash));
        }
        debug_assert_eq!(self.ids.len(), len);
    }

    /// Takes out a slot, by the hash that it had.
    pub(super) fn remove(&mut self, hash: u64, id: SlotId) {
        if let Ok(entry) = self.ids.find_entry(spread(hash), |&at| at == id) {
            entry.remove();
        }
    }

    /// A slot has another number.
    pub(super) fn renumber(&mut self, hash: u64, old: SlotId, new: SlotId) {
        if let Some(id) = self.ids.find_mut(spread(hash), |&at| at == old) {
            *id = new;
        }
    }

    pub(super) fn reserve(&mut self, more: usize, slots: &Slots) {
        self.ids.reserve(more, |&id| spread(slots[id as usize].hash));
    }

    pub(super) fn shrink_to(&mut self, capacity: usize, slots: &Slots) {
        self.ids.shrink_to(capacity, |&id| spread(slots[id as usize].hash));
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SlotId> {
        self.ids.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.ids.capacity()
    }
}
