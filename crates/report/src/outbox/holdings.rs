//! What a replica holds, and what the server may believe of it, prefix by prefix.

use std::sync::Arc;

use kvplane_hints::CacheTier;
use rustc_hash::FxHashMap;

use super::adapters::Adapters;

/// What the server believes of a prefix, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reported {
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
    pub(super) reported: Reported,
    pub(super) queued: Queued,
    /// A call about it is under way: nothing else is said of it until that has ended.
    pub(super) in_flight: bool,
    /// The engine will say when it is gone. Otherwise it is reported once, and may expire at the server.
    pub(super) sure: bool,
    /// It is reported again only to refresh it at the server.
    pub(super) refreshed: bool,
    /// Calls about it that nobody answered, and that the server may still apply.
    pub(super) late: u16,
}

impl Slot {
    /// Whether anything is to be known of it.
    pub(super) fn is_used(&self) -> bool {
        self.wanted.is_some() || self.reported != Reported::Absent || self.late > 0
    }
}

/// Where a prefix is kept. It stays there as long as anything is to be known of it.
pub(super) type SlotId = u32;

/// Every prefix that is held, or that the server may believe to be held.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    by_fingerprint: FxHashMap<u64, Slots>,
    adapters: Adapters,
    maybe_reported: usize,
}

/// The slots of one fingerprint: one for each adapter, which are seldom several.
#[derive(Debug)]
enum Slots {
    One(SlotId),
    More(Box<[SlotId]>),
}

impl Slots {
    fn ids(&self) -> &[SlotId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::More(ids) => ids,
        }
    }
}

impl Holdings {
    /// Prefixes that the server may hold.
    pub(super) fn maybe_reported(&self) -> usize {
        self.maybe_reported
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

    pub(super) fn adapter(&self, number: u32) -> &Arc<str> {
        self.adapters.name(number)
    }

    /// Where a prefix is kept, if it is known.
    pub(super) fn find(&self, fingerprint: u64, adapter: &str) -> Option<SlotId> {
        let adapter = self.adapters.number(adapter)?;
        self.ids_of(fingerprint).iter().copied().find(|&id| self.slot(id).adapter == adapter)
    }

    /// Where a prefix is kept from now on.
    pub(super) fn find_or_add(&mut self, fingerprint: u64, adapter: &Arc<str>) -> SlotId {
        if let Some(id) = self.find(fingerprint, adapter) {
            return id;
        }
        let adapter = self.adapters.take(adapter);
        let slot = Slot {
            fingerprint,
            tokens: 0,
            adapter,
            entry: 0,
            wanted: None,
            reported: Reported::Absent,
            queued: Queued::No,
            in_flight: false,
            sure: true,
            refreshed: false,
            late: 0,
        };
        let id = if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            id
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as SlotId
        };
        let slots = match self.ids_of(fingerprint) {
            [] => Slots::One(id),
            others => Slots::More([others, &[id]].concat().into()),
        };
        self.by_fingerprint.insert(fingerprint, slots);
        id
    }

    /// The same prefix under other adapters.
    pub(super) fn of_other_adapters(&self, fingerprint: u64, adapter: u32) -> Vec<SlotId> {
        let ids = self.ids_of(fingerprint).iter().copied();
        ids.filter(|&id| self.slot(id).adapter != adapter).collect()
    }

    fn ids_of(&self, fingerprint: u64) -> &[SlotId] {
        self.by_fingerprint.get(&fingerprint).map_or(&[], Slots::ids)
    }

    pub(super) fn set_reported(&mut self, id: SlotId, reported: Reported) {
        let slot = &mut self.slots[id as usize];
        self.maybe_reported -= usize::from(slot.reported != Reported::Absent);
        self.maybe_reported += usize::from(reported != Reported::Absent);
        slot.reported = reported;
    }

    /// Nothing is to be known of it any more.
    pub(super) fn free(&mut self, id: SlotId) {
        self.set_reported(id, Reported::Absent);
        let slot = &self.slots[id as usize];
        let (fingerprint, adapter) = (slot.fingerprint, slot.adapter);
        self.adapters.give_back(adapter);
        match self.of_other_adapters(fingerprint, adapter)[..] {
            [] => self.by_fingerprint.remove(&fingerprint),
            [other] => self.by_fingerprint.insert(fingerprint, Slots::One(other)),
            ref others => self.by_fingerprint.insert(fingerprint, Slots::More(others.into())),
        };
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::adapters::NO_ADAPTER;
    use super::*;

    #[test]
    fn a_slot_stays_small() {
        assert!(size_of::<Slot>() <= 32, "{}", size_of::<Slot>());
        assert!(size_of::<Slots>() <= 16, "{}", size_of::<Slots>());
    }

    #[test]
    fn a_fingerprint_has_a_slot_for_each_adapter_and_names_go_with_their_last() {
        let mut holdings = Holdings::default();
        let names: Vec<Arc<str>> = ["", "sql", "chat"].map(Arc::from).into();
        let ids: Vec<SlotId> = names.iter().map(|name| holdings.find_or_add(7, name)).collect();
        assert_eq!(holdings.of_other_adapters(7, holdings.slot(ids[0]).adapter), ids[1..]);
        holdings.free(ids[1]);
        assert_eq!(holdings.find(7, "sql"), None);
        assert_eq!((holdings.find(7, ""), holdings.find(7, "chat")), (Some(ids[0]), Some(ids[2])));
        // Names that come and go take the place of those that went.
        for at in 0..1_000 {
            let id = holdings.find_or_add(8, &Arc::from(format!("adapter {at}")));
            assert_eq!(*holdings.adapter(holdings.slot(id).adapter), format!("adapter {at}").into());
            holdings.free(id);
        }
        assert_eq!(holdings.adapters.len(), 3);
        holdings.free(ids[0]);
        holdings.free(ids[2]);
        assert!(holdings.by_fingerprint.is_empty());
        let again = holdings.find_or_add(7, &names[0]);
        assert_eq!(holdings.slot(again).adapter, NO_ADAPTER);
    }
}
