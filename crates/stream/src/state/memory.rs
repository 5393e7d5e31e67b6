//! What a state costs: every allocation that grows with what an engine sends.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use smallvec::SmallVec;

use super::chain::{Attributes, Chain};
use super::slot::Slot;
use super::{SlotId, State, Wide};
use crate::seeded::{Seeded, SeededMap};

/// Bytes that an allocation of a size takes.
pub(super) fn allocation(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// Bytes of a hash table that has room for this many entries.
pub(super) fn table<K, V>(capacity: usize) -> usize {
    match capacity {
        0 => 0,
        1..=3 => 4 * (std::mem::size_of::<(K, V)>() + 1) + 16,
        _ => (capacity * 8 / 7).next_power_of_two() * (std::mem::size_of::<(K, V)>() + 1) + 16,
    }
}

/// Attributes whose content has one hash, with the number of chains that have them.
type SameHash = SmallVec<[(Arc<Attributes>, u32); 1]>;

/// Attributes that blocks of the state have, each once: they hold texts, and most blocks have the same.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// By the hash of their content.
    known: SeededMap<u64, SameHash>,
    texts: usize,
}

impl Shared {
    /// A chain has these attributes: it shares them with others that have the same.
    pub(super) fn keep(&mut self, attributes: &mut Arc<Attributes>) {
        if attributes.is_plain() {
            return;
        }
        let same_hash = self.known.entry(hash_of(&**attributes)).or_default();
        if let Some((known, chains)) = same_hash.iter_mut().find(|(known, _)| known == attributes) {
            *chains += 1;
            *attributes = known.clone();
            return;
        }
        self.texts += attributes.cost();
        same_hash.push((attributes.clone(), 1));
    }

    /// A chain has them no more.
    pub(super) fn release(&mut self, attributes: &Arc<Attributes>) {
        if attributes.is_plain() {
            return;
        }
        let hash = hash_of(&**attributes);
        let Some(same_hash) = self.known.get_mut(&hash) else { return };
        let Some(at) = same_hash.iter().position(|(known, _)| known == attributes) else { return };
        same_hash[at].1 -= 1;
        if same_hash[at].1 == 0 {
            self.texts -= attributes.cost();
            same_hash.swap_remove(at);
        }
        if same_hash.is_empty() {
            self.known.remove(&hash);
        }
    }

    fn bytes(&self) -> usize {
        self.texts + table::<u64, SameHash>(self.known.capacity())
    }
}

fn hash_of(value: impl Hash) -> u64 {
    Seeded::default().hash_one(value)
}

/// Bytes of a slot's own allocations.
pub(super) fn slot_cost(slot: &Slot) -> usize {
    slot.chains.cost() + slot.holdings.cost() + slot.chains.iter().map(Chain::cost).sum::<usize>()
}

impl State {
    /// Estimated bytes in use.
    pub fn bytes(&self) -> usize {
        self.own + self.beside + self.shared_bytes()
    }

    /// What is not counted as it comes and goes, but by what is allocated for it.
    fn shared_bytes(&self) -> usize {
        self.slots.len() * std::mem::size_of::<Slot>()
            + table::<SlotId, ()>(self.index.capacity())
            + table::<u64, Wide>(self.wide.capacity())
            + (self.free.capacity() + self.elsewhere.capacity()) * std::mem::size_of::<SlotId>()
            + self.waiting.bytes()
            + self.attributes.bytes()
            + self.places.bytes()
    }

    /// What parts of the journal keep besides, for blocks of this state.
    pub(crate) fn set_beside(&mut self, bytes: usize) {
        self.beside = bytes;
    }

    /// Whether one more slot would exceed the limit; a table that is full doubles, and the old one is there
    /// meanwhile.
    pub(super) fn is_full(&self) -> bool {
        let grows = self.index.len() == self.index.capacity() && self.index.len() > 1024;
        let growth = if grows { table::<SlotId, ()>(2 * self.index.capacity()) } else { 0 };
        self.bytes() + growth >= self.limits.max_bytes
    }

    /// The sum of what all blocks allocate, counted anew. For tests: it is what was counted as they came and
    /// went.
    #[doc(hidden)]
    pub fn recounted_bytes(&self) -> usize {
        let slots: usize = self.slots.iter().map(slot_cost).sum();
        let wide: usize = self.wide.values().map(|digest| allocation(16 + digest.len())).sum();
        let mut texts: Vec<&Arc<Attributes>> =
            self.slots.iter().flat_map(|slot| &slot.chains).map(|chain| &chain.attributes).collect();
        texts.retain(|attributes| !attributes.is_plain());
        texts.sort_by_key(|attributes| Arc::as_ptr(attributes));
        texts.dedup_by_key(|attributes| Arc::as_ptr(attributes));
        let texts: usize = texts.into_iter().map(|attributes| attributes.cost()).sum();
        slots + wide + texts + self.beside + self.shared_bytes() - self.attributes.texts
    }

    /// Gives back the memory of slots that are free, where they are most. Numbers of slots are others
    /// afterwards: only between batches.
    pub(crate) fn compact(&mut self) {
        const LEAST: usize = 4096;
        let most = if self.is_full() { 8 } else { 2 };
        if self.cut.is_some() || self.free.len() < LEAST || self.free.len() * most < self.slots.len() {
            return;
        }
        let (mut hole, mut end) = (0, self.slots.len());
        loop {
            while hole < end && self.slots[hole].in_use() {
                hole += 1;
            }
            while hole < end && !self.slots[end - 1].in_use() {
                end -= 1;
            }
            if hole >= end {
                break;
            }
            self.slots.swap(hole, end - 1);
            self.renumber((end - 1) as SlotId, hole as SlotId);
        }
        self.slots.truncate(end);
        self.free = Vec::new();
        self.index.shrink_to(2 * end, &self.slots);
        self.sweep_at = 0;
        let slots = self.slots.iter().enumerate();
        let elsewhere = slots.filter(|(_, slot)| self.is_held_elsewhere(slot)).map(|(at, _)| at as SlotId);
        self.elsewhere = elsewhere.collect();
    }

    fn renumber(&mut self, old: SlotId, new: SlotId) {
        let slot = &self.slots[new as usize];
        self.index.renumber(slot.hash, old, new);
        for chain in slot.chains.iter().filter(|chain| !chain.attached) {
            if let super::Parent::Block(parent) = chain.parent() {
                self.waiting.renumber(parent, chain.block_size, old, new);
            }
        }
    }
}
