//! Blocks whose parent is not known yet.

use super::SlotId;
use super::memory::table;
use crate::persist::persist;
use crate::seeded::SeededMap;

/// A block that waits, and the block size at which it does.
type Waiter = (SlotId, u32);

/// Unattached chains, by the hash of the parent that they wait for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_parent: SeededMap<u64, Vec<Waiter>>,
    /// Where in its parent's list each is: there may be very many of one parent, and they leave one by one.
    places: SeededMap<(u64, Waiter), u32>,
}

persist!(Waiting { by_parent, places });

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The slots that wait.
    pub(super) fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.places.keys().map(|&(_, (slot, _))| slot)
    }

    pub(super) fn add(&mut self, parent: u64, slot: SlotId, block_size: u32) {
        let list = self.by_parent.entry(parent).or_default();
        if self.places.insert((parent, (slot, block_size)), list.len() as u32).is_none() {
            list.push((slot, block_size));
        }
    }

    pub(super) fn remove(&mut self, parent: u64, slot: SlotId, block_size: u32) {
        let Some(at) = self.places.remove(&(parent, (slot, block_size))) else { return };
        let Some(list) = self.by_parent.get_mut(&parent) else { return };
        list.swap_remove(at as usize);
        if let Some(&moved) = list.get(at as usize) {
            self.places.insert((parent, moved), at);
        }
        if list.is_empty() {
            self.by_parent.remove(&parent);
        }
    }

    /// All that wait for a block.
    pub(super) fn take(&mut self, parent: u64) -> Vec<Waiter> {
        let list = self.by_parent.remove(&parent).unwrap_or_default();
        for waiter in &list {
            self.places.remove(&(parent, *waiter));
        }
        list
    }

    /// All that wait, in an order that does not depend on the process: slots are given back in it.
    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        let mut all: Vec<Waiter> = std::mem::take(self).by_parent.into_values().flatten().collect();
        all.sort_unstable();
        all
    }

    /// A slot has another number.
    pub(super) fn renumber(&mut self, parent: u64, block_size: u32, old: SlotId, new: SlotId) {
        let Some(at) = self.places.remove(&(parent, (old, block_size))) else { return };
        self.places.insert((parent, (new, block_size)), at);
        if let Some(waiter) = self.by_parent.get_mut(&parent).and_then(|list| list.get_mut(at as usize)) {
            waiter.0 = new;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let lists = table::<u64, Vec<Waiter>>(self.by_parent.capacity());
        // A list has at least four places, and at most twice as many as it needs.
        lists
            + table::<(u64, Waiter), u32>(self.places.capacity())
            + 32 * self.by_parent.len()
            + 12 * self.places.len()
    }
}
