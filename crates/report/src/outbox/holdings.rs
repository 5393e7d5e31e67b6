//! What a replica holds, and what the server may believe of it, prefix by prefix.

use std::sync::Arc;

use kvplane_hints::CacheTier;
use rustc_hash::FxHashMap;

/// What the server believes of a prefix, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// That it is not held.
    Absent,
    /// That it is held there.
    At(CacheTier),
    /// Either: a call is under way, broke off, or went to a server that may have forgotten.
    Perhaps,
}

/// Which queue a prefix is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queued {
    No,
    Add,
    Eviction,
}

/// One prefix: 32 bytes, since there may be a million.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) fingerprint: u64,
    pub(super) tokens: u32,
    pub(super) adapter: u32,
    /// Of its latest entry in a queue; older entries are void.
    pub(super) entry: u32,
    /// Where the replica holds it, if it does.
    pub(super) wanted: Option<CacheTier>,
    pub(super) told: Told,
    pub(super) queued: Queued,
    /// A call about it is under way: nothing else is said of it until that has ended.
    pub(super) in_flight: bool,
    /// It is told again only so that the server does not forget it.
    pub(super) refreshed: bool,
    used: bool,
}

/// Where a prefix is kept. It stays there as long as anything is to be known of it.
pub(super) type SlotId = u32;

/// The number of the empty adapter, which an eviction takes for all of them.
pub(super) const NO_ADAPTER: u32 = 0;

/// Every prefix that is held, or that the server may believe to be held.
#[derive(Debug)]
pub(super) struct Holdings {
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    by_prefix: FxHashMap<(u64, u32), SlotId>,
    adapters: Vec<Arc<str>>,
    adapter_numbers: FxHashMap<Arc<str>, u32>,
    maybe_told: usize,
}

impl Default for Holdings {
    fn default() -> Self {
        let none: Arc<str> = Arc::from("");
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_prefix: FxHashMap::default(),
            adapters: vec![none.clone()],
            adapter_numbers: FxHashMap::from_iter([(none, NO_ADAPTER)]),
            maybe_told: 0,
        }
    }
}

impl Holdings {
    /// Prefixes that the server may hold.
    pub(super) fn maybe_told(&self) -> usize {
        self.maybe_told
    }

    /// Slots, free ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id as usize]
    }

    pub(super) fn slot_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id as usize]
    }

    pub(super) fn is_used(&self, id: SlotId) -> bool {
        self.slots[id as usize].used
    }

    pub(super) fn adapter(&self, number: u32) -> &Arc<str> {
        &self.adapters[number as usize]
    }

    /// Where a prefix is kept, if it is known.
    pub(super) fn find(&self, fingerprint: u64, adapter: &str) -> Option<SlotId> {
        let adapter = *self.adapter_numbers.get(adapter)?;
        self.by_prefix.get(&(fingerprint, adapter)).copied()
    }

    /// Where a prefix is kept from now on.
    pub(super) fn find_or_add(&mut self, fingerprint: u64, adapter: &Arc<str>) -> SlotId {
        let adapter = self.number_of(adapter);
        if let Some(&id) = self.by_prefix.get(&(fingerprint, adapter)) {
            return id;
        }
        let slot = Slot {
            fingerprint,
            tokens: 0,
            adapter,
            entry: 0,
            wanted: None,
            told: Told::Absent,
            queued: Queued::No,
            in_flight: false,
            refreshed: false,
            used: true,
        };
        let id = if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            id
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as SlotId
        };
        self.by_prefix.insert((fingerprint, adapter), id);
        id
    }

    /// The same prefix under other adapters.
    pub(super) fn of_other_adapters(&self, fingerprint: u64, adapter: u32) -> Vec<SlotId> {
        let others = (0..self.adapters.len() as u32).filter(|&other| other != adapter);
        others.filter_map(|other| self.by_prefix.get(&(fingerprint, other)).copied()).collect()
    }

    pub(super) fn set_told(&mut self, id: SlotId, told: Told) {
        let slot = &mut self.slots[id as usize];
        self.maybe_told -= usize::from(slot.told != Told::Absent);
        self.maybe_told += usize::from(told != Told::Absent);
        slot.told = told;
    }

    /// Nothing is to be known of it any more.
    pub(super) fn free(&mut self, id: SlotId) {
        self.set_told(id, Told::Absent);
        let slot = &mut self.slots[id as usize];
        slot.used = false;
        self.by_prefix.remove(&(slot.fingerprint, slot.adapter));
        self.free.push(id);
    }

    fn number_of(&mut self, adapter: &Arc<str>) -> u32 {
        if let Some(&number) = self.adapter_numbers.get(adapter) {
            return number;
        }
        let number = self.adapters.len() as u32;
        self.adapters.push(adapter.clone());
        self.adapter_numbers.insert(adapter.clone(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stays_small() {
        assert!(size_of::<Slot>() <= 32, "{}", size_of::<Slot>());
    }
}
