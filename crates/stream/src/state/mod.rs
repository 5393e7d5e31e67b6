//! What a stream's engine holds: a dictionary of its block hashes and, for each, where copies of it lie.
//!
//! ```text
//!   hash ──> slot ┌ chains    what the block is: parent, tokens, namespace, content hash (one per block size)
//!                 └ holdings  where it lies: (place, copies), valid while the place's generation is current
//! ```
//!
//! A *place* is (medium, locality, ownership, group). Dropping everything in a place is one increment of its
//! generation. A slot without valid holdings is a *ghost*: it stays while attached children need it to be reachable
//! (a hole in a chain), and after a loss, so that later stores can prove it held again. Ghosts that nobody needs are
//! swept a few at a time, when room is short.

mod chain;
mod cut;
mod place;
mod slot;

pub(crate) use chain::{Attached, ToldSize, own_keys};
pub use chain::{Attributes, Chain, ExtraKeys, Parent};
pub use cut::{BlockImage, CutAborted, HoldingImage, Image};
pub(crate) use place::{MainGroup, PlaceName};
pub use place::{Place, PlaceId};

use std::collections::hash_map::Entry;
use std::sync::Arc;

use kvplane_core::{ContentHasher, StateDigest, Tier};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use cut::Cut;
use place::Places;
use slot::{Holding, Slot};

/// A slot's number.
pub(crate) type SlotId = u32;

/// The bounds of a state.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Estimated bytes of slots, tokens and keys.
    pub max_bytes: usize,
    /// Blocks that may wait for an unknown parent, and as many again of which nothing but the hash is known.
    pub max_waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 512 << 20, max_waiting: 65_536 }
    }
}

/// Why a block was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The state's budget is used up.
    Budget,
    /// Too many blocks wait for their parents.
    Waiting,
}

/// Blocks about which something changed, where somebody wants to know.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) wanted: bool,
    /// Their hashes.
    pub(crate) blocks: Vec<u64>,
    /// All of them may have changed.
    pub(crate) everything: bool,
}

/// The dictionary and the residency of one life of one stream.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    index: FxHashMap<u64, SlotId>,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    pub(crate) places: Places,
    /// Unattached chains by the parent hash they wait for.
    waiting: FxHashMap<u64, SmallVec<[SlotId; 2]>>,
    waiting_count: usize,
    /// Digests that were sent as bytes, by their 64 bits; empty for streams with integer hashes.
    wide: FxHashMap<u64, Arc<[u8]>>,
    bytes: usize,
    /// Rises whenever a block that others build on stops being held: proofs of whole chains made before are void.
    hole_version: u32,
    sweep_at: usize,
    cut: Option<Cut>,
    pub(crate) changed: Changed,
    pub(crate) hasher: ContentHasher,
}

impl State {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: FxHashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            places: Places::default(),
            waiting: FxHashMap::default(),
            waiting_count: 0,
            wide: FxHashMap::default(),
            bytes: 0,
            hole_version: 1,
            sweep_at: 0,
            cut: None,
            changed: Changed::default(),
            hasher: ContentHasher::default(),
        }
    }

    /// Estimated bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks resident, by tier.
    pub fn blocks_by_tier(&self) -> [u64; Tier::ALL.len()] {
        self.places.blocks_by_tier()
    }

    /// An order-independent digest of everything that is resident.
    pub fn digest(&self) -> StateDigest {
        self.places.digest()
    }

    /// Copies known in a tier.
    pub fn copies_in(&self, tier: Tier) -> u64 {
        self.places.copies_in(tier)
    }

    /// Stores that wait for their parent.
    pub fn waiting(&self) -> usize {
        self.waiting_count
    }

    /// Blocks of which nothing but the hash is known, in every place that holds them: held, and credited to nobody.
    pub fn unjoined(&self) -> u64 {
        self.places.unjoined()
    }

    /// Whether one more block may be recorded of which nothing but the hash is known.
    pub(crate) fn has_room_unjoined(&self, slot: SlotId) -> bool {
        !self.slots[slot as usize].chains.is_empty() || self.unjoined() < self.limits.max_waiting as u64
    }

    /// Dictionary entries, held or not.
    pub fn entries(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether anything has been recorded outside of the device.
    pub(crate) fn has_other_tiers(&self) -> bool {
        self.places.iter().any(|(_, place)| place.tier != Tier::Device)
    }

    /// Every residency, for tests and comparisons: (place, hash, copies).
    pub fn residencies(&self) -> impl Iterator<Item = (&Arc<Place>, u64, u32)> {
        self.slots.iter().filter(|slot| slot.in_use).flat_map(|slot| {
            slot.holdings
                .iter()
                .filter(|holding| self.places.is_current(holding))
                .map(|holding| (self.places.get(holding.place), slot.hash, holding.copies))
        })
    }

    /// What lies outside of the device, copy by copy.
    pub(crate) fn held_elsewhere(&self) -> Vec<(Arc<Place>, Vec<u64>)> {
        if !self.has_other_tiers() {
            return Vec::new();
        }
        let mut found: Vec<(Arc<Place>, Vec<u64>)> = Vec::new();
        for (place, hash, copies) in self.residencies().filter(|(place, ..)| place.tier != Tier::Device) {
            let at = found.iter().position(|(known, _)| Arc::ptr_eq(known, place)).unwrap_or_else(|| {
                found.push((place.clone(), Vec::new()));
                found.len() - 1
            });
            found[at].1.extend(std::iter::repeat_n(hash, copies as usize));
        }
        found
    }

    /// The full digest of a hash that was sent as bytes.
    pub fn wide(&self, hash: u64) -> Option<&Arc<[u8]>> {
        self.wide.get(&hash)
    }

    pub(crate) fn set_wide(&mut self, hash: u64, digest: &[u8]) {
        self.wide.entry(hash).or_insert_with(|| Arc::from(digest));
    }

    /// Every entry of the dictionary whose prompt is known up to its start, parents before their children. The order depends
    /// on the hashes alone, so that whoever has the same blocks has the same.
    pub(crate) fn slots_parents_first(&self) -> Vec<SlotId> {
        let mut slots: Vec<SlotId> = self.index.values().copied().collect();
        slots.sort_unstable_by_key(|&slot| self.hash_of(slot));
        let mut order = Vec::with_capacity(slots.len());
        let mut seen = vec![false; self.slots.len()];
        for slot in slots {
            let from = order.len();
            let mut next = Some(slot);
            while let Some(slot) = next.filter(|&slot| !seen[slot as usize]) {
                let Some(chain) = self.attached_chain(slot) else { break };
                seen[slot as usize] = true;
                order.push(slot);
                next = match chain.parent {
                    Parent::Root => None,
                    Parent::Block(parent) => self.find(parent),
                };
            }
            order[from..].reverse();
        }
        order
    }

    /// All hashes of the dictionary.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        self.index.keys().copied().collect()
    }

    pub(crate) fn hash_of(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].hash
    }

    pub(crate) fn is_hash(&self, slot: SlotId, hash: u64) -> bool {
        let slot = &self.slots[slot as usize];
        slot.in_use && slot.hash == hash
    }

    /// Whether only places that `these` accepts have ever been named.
    pub(crate) fn nothing_but(&self, these: impl Fn(&Place) -> bool) -> bool {
        self.places.iter().all(|(id, place)| these(place) || self.places.blocks(id) == 0)
    }

    /// The blocks that consumers without groups see in a tier only because of the places that `these` accepts.
    pub(crate) fn visible_only_in(&self, size: ToldSize, these: impl Fn(&Place) -> bool) -> Vec<(Tier, u64)> {
        let mut found = Vec::new();
        for (id, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.in_use) {
            if self.told_chain(id as SlotId, size).is_none() {
                continue;
            }
            for tier in Tier::ALL {
                let here = |place: &Place| place.tier == tier && place.is_main();
                if self.held_where(id as SlotId, |place| here(place) && these(place))
                    && !self.held_where(id as SlotId, |place| here(place) && !these(place))
                {
                    found.push((tier, slot.hash));
                }
            }
        }
        // Whoever has the same blocks tells of as many runs, in whichever order it came to know them.
        found.sort_by_key(|&(tier, _)| tier);
        found
    }

    pub(crate) fn find(&self, hash: u64) -> Option<SlotId> {
        self.index.get(&hash).copied()
    }

    // --- holdings ----------------------------------------------------------------------------------------

    /// How many copies of a block a place holds.
    pub(crate) fn copies(&self, slot: SlotId, place: PlaceId) -> u32 {
        let slot = &self.slots[slot as usize];
        slot.holdings.iter().find(|h| h.place == place && self.places.is_current(h)).map_or(0, |h| h.copies)
    }

    /// How many blocks a copy in a place counts for; see [`Self::set_covers`].
    pub(crate) fn covers(&self, slot: SlotId, place: PlaceId) -> u16 {
        let holdings = &self.slots[slot as usize].holdings;
        holdings.iter().find(|h| h.place == place && self.places.is_current(h)).map_or(0, |h| h.covers)
    }

    /// Copies in a place stand for chunks that end with the block, of which so many blocks are counted.
    pub(crate) fn set_covers(&mut self, slot: SlotId, place: PlaceId, blocks: u16) {
        let places = &self.places;
        let mut holdings = self.slots[slot as usize].holdings.iter_mut();
        if let Some(holding) = holdings.find(|h| h.place == place && places.is_current(h)) {
            holding.covers = blocks;
        }
    }

    /// The places that hold a block.
    pub(crate) fn held_in(&self, slot: SlotId) -> impl Iterator<Item = PlaceId> {
        let holdings = self.slots[slot as usize].holdings.iter();
        holdings.filter(|holding| self.places.is_current(holding)).map(|holding| holding.place)
    }

    /// Where a block lies.
    pub(crate) fn holdings(&self, slot: SlotId) -> impl Iterator<Item = (&Arc<Place>, u32)> {
        let holdings =
            self.slots[slot as usize].holdings.iter().filter(|holding| self.places.is_current(holding));
        holdings.map(|holding| (self.places.get(holding.place), holding.copies))
    }

    /// Whether any place that `wanted` accepts holds the block.
    pub(crate) fn held_where(&self, slot: SlotId, wanted: impl Fn(&Place) -> bool) -> bool {
        let slot = &self.slots[slot as usize];
        slot.holdings.iter().any(|h| self.places.is_current(h) && wanted(self.places.get(h.place)))
    }

    fn is_held(&self, slot: &Slot) -> bool {
        slot.holdings.iter().any(|holding| self.places.is_current(holding))
    }

    /// Sets how many copies a place holds. The slot stays, even with none left; see [`Self::release`].
    pub(crate) fn set_copies(&mut self, id: SlotId, place: PlaceId, copies: u32) {
        self.touch(id);
        self.note_changed(id);
        let places = &mut self.places;
        let slot = &mut self.slots[id as usize];
        slot.holdings.retain(|h| places.is_current(h));
        let before = slot.holdings.iter().position(|h| h.place == place);
        let old = before.map_or(0, |at| slot.holdings[at].copies);
        match (before, copies) {
            (Some(at), 0) => drop(slot.holdings.swap_remove(at)),
            (Some(at), _) => slot.holdings[at].copies = copies,
            (None, 0) => {}
            (None, _) => {
                let generation = places.generation(place);
                slot.holdings.push(Holding { place, copies, covers: 0, generation });
            }
        }
        places.count(place, slot.hash, old, copies, slot.chains.is_empty());
        if copies == 0 && old > 0 && slot.children > 0 {
            self.hole_version += 1;
        }
    }

    /// Lets go of a slot that nothing holds and nobody builds on, and of ancestors that were kept only for it.
    pub(crate) fn release(&mut self, id: SlotId) {
        let mut next = Some(id);
        while let Some(id) = next.take() {
            let slot = &self.slots[id as usize];
            if !slot.in_use || slot.children > 0 || self.is_held(slot) {
                return;
            }
            next = self.free_slot(id);
        }
    }

    /// Drops everything that the places accepted by `gone` hold. Constant time per place.
    pub(crate) fn drop_places(&mut self, gone: impl Fn(&Place) -> bool) {
        self.places.drop_where(gone);
        self.hole_version += 1;
        self.changed.everything = self.changed.wanted;
        // Holdings changed without being touched one by one: a cut under way no longer is one.
        self.cut = None;
    }

    fn note_changed(&mut self, slot: SlotId) {
        if self.changed.wanted {
            self.changed.blocks.push(self.slots[slot as usize].hash);
        }
    }

    // --- slots -------------------------------------------------------------------------------------------

    /// The slot of a hash, made if need be.
    pub(crate) fn slot_for(&mut self, hash: u64) -> Result<SlotId, Refusal> {
        if self.bytes >= self.limits.max_bytes {
            if let Some(id) = self.find(hash) {
                return Ok(id);
            }
            self.sweep();
            if self.bytes >= self.limits.max_bytes {
                return Err(Refusal::Budget);
            }
        }
        let vacant = match self.index.entry(hash) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(vacant) => vacant,
        };
        let stamp = self.cut.as_ref().map_or(0, |cut| cut.id);
        let slot = Slot::new(hash, stamp);
        self.bytes += Slot::COST;
        let id = if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            id
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as SlotId
        };
        vacant.insert(id);
        Ok(id)
    }

    /// Frees a slot. Returns its parent's slot if the parent may have to go too.
    fn free_slot(&mut self, id: SlotId) -> Option<SlotId> {
        self.touch(id);
        let stamp = self.slots[id as usize].stamp;
        let slot = std::mem::replace(&mut self.slots[id as usize], Slot::vacant(stamp));
        self.index.remove(&slot.hash);
        if !self.wide.is_empty() {
            self.wide.remove(&slot.hash);
        }
        self.bytes -= Slot::COST + slot.chains.iter().map(Chain::cost).sum::<usize>();
        self.free.push(id);
        let mut parent_slot = None;
        for chain in &slot.chains {
            let Parent::Block(parent) = chain.parent else { continue };
            if !chain.attached {
                self.stop_waiting(parent, id);
            } else if let Some(parent) = self.find(parent) {
                self.touch(parent);
                let parent_ref = &mut self.slots[parent as usize];
                parent_ref.children = parent_ref.children.saturating_sub(1);
                parent_slot = Some(parent);
            }
        }
        parent_slot
    }

    /// Looks at a few slots and frees the ghosts that nobody builds on.
    fn sweep(&mut self) {
        /// Enough to make room for what one batch brings; small enough not to be felt.
        const STEP: usize = 256;
        for _ in 0..STEP.min(self.slots.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.slots.len();
            let slot = &self.slots[self.sweep_at];
            if slot.in_use && slot.children == 0 && !self.is_held(slot) {
                self.release(self.sweep_at as SlotId);
            }
        }
    }
}
