//! What a stream's engine holds: a dictionary of its block hashes and, for each, where copies of it lie.
//!
//! ```text
//!   hash ──> slot ┌ chains    what the block is: parent, tokens, namespace, content hash (one per block size)
//!                 └ holdings  where it lies: (place, copies), valid while the place's generation is current
//! ```
//!
//! A *place* is (medium, locality, ownership, group). Dropping everything in a place is one increment of its
//! generation. A slot without valid holdings is a *ghost*: it stays while attached children need it to be
//! reachable (a hole in a chain), and after a loss, so that later stores can prove it held again. Ghosts that
//! nobody needs are swept a few at a time, when room is short.

mod chain;
mod cut;
mod few;
mod fill;
mod memory;
mod place;
mod revive;
mod slot;
mod table;
mod waiting;
mod wide;

pub(crate) use chain::{Attached, VisibleSize, keys_cost, own_keys};
pub use chain::{Attributes, Chain, ExtraKeys, Parent};
pub use cut::{BlockImage, CutAborted, HoldingImage, Image};
pub(crate) use place::{MainGroup, PlaceName};
pub use place::{Place, PlaceId};
pub use wide::Wide;

use crate::persist::persist;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use kvplane_core::{ContentHasher, StateDigest, Tier};
use smallvec::SmallVec;

use crate::seeded::SeededMap;
use cut::Cut;
use memory::{Shared, allocation, slot_cost};
use place::Places;
use slot::{Holding, Slot, Slots};
use table::Table;
use waiting::Waiting;

/// A slot's number.
pub(crate) type SlotId = u32;

/// The bounds of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Estimated bytes of everything that is kept: the dictionary, tokens, keys and names.
    pub max_bytes: usize,
    /// Blocks that may wait for an unknown parent, and as many again of which nothing but the hash is known.
    pub max_waiting: usize,
    /// Tokens of blocks are kept once their content is known. Without them a block is compared by its content,
    /// and nobody can be sent its tokens.
    pub keep_tokens: bool,
}

persist!(Limits { max_bytes, max_waiting, keep_tokens });

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 512 << 20, max_waiting: 65_536, keep_tokens: true }
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

persist!(Changed { wanted, blocks, everything });

/// The dictionary and the residency of one life of one stream.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    index: Table,
    slots: Slots,
    free: Vec<SlotId>,
    pub(crate) places: Places,
    waiting: Waiting,
    /// Slots that came to be held in places other than the engine's own on its device; some of them no longer
    /// are.
    elsewhere: Vec<SlotId>,
    /// Digests that were sent as bytes, by their 64 bits; empty for streams with integer hashes.
    wide: SeededMap<u64, Wide>,
    attributes: Shared,
    /// Estimated bytes of the slots' own allocations, and of whole digests.
    own: usize,
    /// Estimated bytes that others keep for blocks of this state.
    beside: usize,
    /// A block that others build on was attached once more: chains may go round in a circle.
    may_have_cycles: bool,
    /// Entries that were made since circles were last looked for.
    made: usize,
    /// Rises whenever a block that others build on stops being held: proofs of whole chains made before are
    /// void.
    hole_version: u32,
    sweep_at: usize,
    cut: Option<Cut>,
    pub(crate) changed: Changed,
    pub(crate) hasher: ContentHasher,
}

persist!(State {
    slots, free, places, waiting, elsewhere, wide, beside, may_have_cycles, made, hole_version, sweep_at, changed;
    limits: Limits::default(),
    index: Table::default(),
    attributes: Shared::default(),
    own: 0,
    cut: None,
    hasher: ContentHasher::default(),
});

impl State {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: Table::default(),
            slots: Slots::default(),
            free: Vec::new(),
            places: Places::default(),
            waiting: Waiting::default(),
            elsewhere: Vec::new(),
            wide: SeededMap::default(),
            attributes: Shared::default(),
            own: 0,
            beside: 0,
            may_have_cycles: false,
            made: 0,
            hole_version: 1,
            sweep_at: 0,
            cut: None,
            changed: Changed::default(),
            hasher: ContentHasher::default(),
        }
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
        self.waiting.len()
    }

    /// Blocks of which nothing but the hash is known, in every place that holds them: held, and credited to
    /// nobody.
    pub fn unjoined(&self) -> u64 {
        self.places.unjoined()
    }

    /// Whether a place that `these` accepts holds blocks of which nothing but the hash is known.
    pub(crate) fn has_unjoined(&self, these: impl Fn(&Place) -> bool) -> bool {
        self.places.iter().any(|(id, place)| self.places.unjoined_in(id) > 0 && these(place))
    }

    /// Whether a place that `these` accepts holds blocks that wait for their parent.
    pub(crate) fn has_waiting(&self, these: impl Fn(&Place) -> bool) -> bool {
        self.waiting.len() > 0
            && self.places.iter().any(|(id, place)| self.places.blocks(id) > 0 && these(place))
            && self.waiting.slots().any(|slot| self.held_where(slot, &these))
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
        self.slots.iter().filter(|slot| slot.in_use()).flat_map(|slot| {
            slot.holdings
                .iter()
                .filter(|holding| self.places.is_current(holding))
                .map(|holding| (self.places.get(holding.place), slot.hash, holding.copies))
        })
    }

    /// What lies outside of the device, copy by copy.
    pub(crate) fn held_elsewhere(&self) -> Vec<(Arc<Place>, Vec<u64>)> {
        let mut found: Vec<(Arc<Place>, Vec<u64>)> = Vec::new();
        // By the number of the place, where in `found` it is.
        let mut at_place: Vec<Option<usize>> = Vec::new();
        for id in self.slots_elsewhere() {
            let slot = &self.slots[id as usize];
            for holding in slot.holdings.iter().filter(|holding| self.places.is_current(holding)) {
                let (place, number) = (self.places.get(holding.place), usize::from(holding.place.0));
                if place.tier == Tier::Device {
                    continue;
                }
                at_place.resize(at_place.len().max(number + 1), None);
                let at = *at_place[number].get_or_insert_with(|| {
                    found.push((place.clone(), Vec::new()));
                    found.len() - 1
                });
                found[at].1.extend(std::iter::repeat_n(slot.hash, holding.copies as usize));
            }
        }
        found
    }

    /// The slots that places other than the engine's own on its device hold.
    fn slots_elsewhere(&self) -> Vec<SlotId> {
        if self.places.blocks_elsewhere() == 0 {
            return Vec::new();
        }
        let mut slots = self.elsewhere.clone();
        slots.sort_unstable();
        slots.dedup();
        slots.retain(|&id| self.slots.get(id as usize).is_some_and(|slot| self.is_held_elsewhere(slot)));
        slots
    }

    fn is_held_elsewhere(&self, slot: &Slot) -> bool {
        let elsewhere = |holding: &Holding| !self.places.get(holding.place).is_own_device();
        slot.holdings.iter().any(|holding| self.places.is_current(holding) && elsewhere(holding))
    }

    /// A place other than the engine's own on its device has got a block.
    fn note_elsewhere(&mut self, slot: SlotId) {
        const LEAST: usize = 1024;
        self.elsewhere.push(slot);
        if self.elsewhere.len() > LEAST + 2 * self.places.blocks_elsewhere() as usize {
            self.elsewhere = self.slots_elsewhere();
        }
    }

    /// The full digest of a hash that was sent as bytes.
    pub fn wide(&self, hash: u64) -> Option<&Wide> {
        self.wide.get(&hash)
    }

    pub(crate) fn set_wide(&mut self, hash: u64, digest: &[u8]) {
        if let Entry::Vacant(vacant) = self.wide.entry(hash) {
            self.own += allocation(16 + digest.len());
            vacant.insert(Wide::from(digest));
        }
    }

    /// Every entry of the dictionary whose prompt is known up to its start, parents before their children.
    /// The order depends on the hashes alone, so that equal blocks give an equal digest.
    pub(crate) fn slots_parents_first(&self) -> Vec<SlotId> {
        let mut slots: Vec<SlotId> = self.index.ids().collect();
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
                next = match chain.parent() {
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
        self.index.ids().map(|id| self.hash_of(id)).collect()
    }

    pub(crate) fn hash_of(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].hash
    }

    pub(crate) fn is_hash(&self, slot: SlotId, hash: u64) -> bool {
        let slot = &self.slots[slot as usize];
        slot.in_use() && slot.hash == hash
    }

    /// Whether only places that `these` accepts hold anything.
    pub(crate) fn nothing_but(&self, these: impl Fn(&Place) -> bool) -> bool {
        self.places.iter().all(|(id, place)| these(place) || self.places.blocks(id) == 0)
    }

    /// The blocks that consumers without groups see in a tier only because of the places that `these`
    /// accepts.
    pub(crate) fn visible_only_in(
        &self,
        size: VisibleSize,
        these: impl Fn(&Place) -> bool,
    ) -> Vec<(Tier, u64)> {
        let mut found = Vec::new();
        let holding = |(id, place): (PlaceId, &Arc<Place>)| {
            (self.places.blocks(id) > 0 && these(place)).then(|| (place.is_main(), place.is_own_device()))
        };
        let (mut any_main, mut any_device) = (false, false);
        for (is_main, is_device) in self.places.iter().filter_map(holding) {
            any_main |= is_main;
            any_device |= is_device;
        }
        if !any_main {
            return found;
        }
        let slots: Vec<SlotId> =
            if any_device { (0..self.slots.len() as SlotId).collect() } else { self.slots_elsewhere() };
        for id in slots {
            let slot = &self.slots[id as usize];
            if !slot.in_use() || self.visible_chain(id, size).is_none() {
                continue;
            }
            for tier in Tier::ALL {
                let here = |place: &Place| place.tier == tier && place.is_main();
                if self.held_where(id, |place| here(place) && these(place))
                    && !self.held_where(id, |place| here(place) && !these(place))
                {
                    found.push((tier, slot.hash));
                }
            }
        }
        // Equal blocks give as many runs, in whichever order they became known.
        found.sort_by_key(|&(tier, _)| tier);
        found
    }

    pub(crate) fn find(&self, hash: u64) -> Option<SlotId> {
        self.index.find(hash, &self.slots)
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

    /// Copies in a place stand for chunks that end with the block, of which this many blocks are counted.
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
        let cost = slot.holdings.cost();
        slot.holdings.retain(|h| places.is_current(h));
        let before = slot.holdings.iter().position(|h| h.place == place);
        let old = before.map_or(0, |at| slot.holdings[at].copies);
        match (before, copies) {
            (Some(at), 0) => slot.holdings.swap_remove(at),
            (Some(at), _) => slot.holdings[at].copies = copies,
            (None, 0) => {}
            (None, _) => {
                let generation = places.generation(place);
                slot.holdings.push(Holding { place, copies, covers: 0, generation });
            }
        }
        self.own = self.own - cost + slot.holdings.cost();
        places.count(place, slot.hash, old, copies, slot.chains.is_empty());
        let comes_elsewhere = old == 0 && copies > 0 && !places.get(place).is_own_device();
        if copies == 0 && old > 0 && slot.children > 0 {
            self.hole_version += 1;
        }
        if comes_elsewhere {
            self.note_elsewhere(id);
        }
    }

    /// Lets go of a slot that nothing holds and nobody builds on, and of ancestors that were kept only for
    /// it.
    pub(crate) fn release(&mut self, id: SlotId) {
        let mut open: SmallVec<[SlotId; 4]> = SmallVec::new();
        open.push(id);
        while let Some(id) = open.pop() {
            let slot = &self.slots[id as usize];
            if slot.in_use() && slot.children == 0 && !self.is_held(slot) {
                self.free_slot(id, &mut open);
            }
        }
    }

    /// Drops everything that the places accepted by `gone` hold. Constant time per place, and linear in what
    /// lay outside of the device.
    pub(crate) fn drop_places(&mut self, gone: impl Fn(&Place) -> bool) {
        let on_device = |state: &Self| state.nothing_but(|place| !place.is_own_device());
        let before = if self.changed.wanted { self.slots_elsewhere() } else { Vec::new() };
        let device_was_empty = on_device(self);
        let device_is_kept = self.places.iter().all(|(_, place)| !place.is_own_device() || !gone(place));
        self.places.drop_where(gone);
        self.hole_version += 1;
        if self.places.blocks_elsewhere() == 0 {
            self.elsewhere.clear();
        }
        if self.changed.wanted {
            if self.nothing_but(|_| false) {
                // What nothing holds has no marks.
                self.changed.blocks.clear();
                self.changed.everything = false;
            } else if device_was_empty || device_is_kept {
                let hashes = before.into_iter().map(|slot| self.slots[slot as usize].hash);
                self.changed.blocks.extend(hashes);
            } else {
                self.changed.everything = true;
            }
        }
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
        if self.is_full() {
            if let Some(id) = self.find(hash) {
                return Ok(id);
            }
            self.sweep();
            if self.is_full() && self.may_have_cycles && self.made * 4 > self.slots.len() {
                self.free_cycles();
            }
            if self.is_full() && !self.has_room_in_free_slots() {
                return Err(Refusal::Budget);
            }
        }
        if let Some(known) = self.find(hash) {
            return Ok(known);
        }
        let slot = Slot::new(hash);
        let id = if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            id
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as SlotId
        };
        if let Some(cut) = &mut self.cut {
            cut.note(id as usize);
        }
        self.index.insert(id, &self.slots);
        self.made += 1;
        Ok(id)
    }

    /// Whether what is in use leaves room, although what is allocated does not: free slots can be used again.
    fn has_room_in_free_slots(&self) -> bool {
        let (unused, max) = (self.free.len() * std::mem::size_of::<Slot>(), self.limits.max_bytes);
        !self.free.is_empty() && self.bytes() - unused < max && self.bytes() < max + max / 10
    }

    /// Frees a slot. Appends the slots of its parents, which may have to go too.
    fn free_slot(&mut self, id: SlotId, parents: &mut SmallVec<[SlotId; 4]>) {
        self.touch(id);
        let slot = std::mem::replace(&mut self.slots[id as usize], Slot::vacant());
        self.index.remove(slot.hash, id);
        if !self.wide.is_empty()
            && let Some(digest) = self.wide.remove(&slot.hash)
        {
            self.own -= allocation(16 + digest.len());
        }
        self.own -= slot_cost(&slot);
        self.free.push(id);
        for chain in &slot.chains {
            self.attributes.release(&chain.attributes);
            let Parent::Block(parent) = chain.parent() else { continue };
            if !chain.attached {
                self.waiting.remove(parent, id, chain.block_size);
            } else if let Some(parent) = self.find(parent) {
                self.touch(parent);
                let parent_ref = &mut self.slots[parent as usize];
                parent_ref.children = parent_ref.children.saturating_sub(1);
                parents.push(parent);
            }
        }
    }

    /// Looks at a few slots and frees the ghosts that nobody builds on.
    fn sweep(&mut self) {
        /// Enough to make room for what one batch brings; small enough not to be felt.
        const STEP: usize = 64;
        for _ in 0..STEP.min(self.slots.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.slots.len();
            let slot = &self.slots[self.sweep_at];
            if slot.in_use() && slot.children == 0 && !self.is_held(slot) {
                self.release(self.sweep_at as SlotId);
            }
        }
    }

    /// Frees ghosts that only ghosts build on, in a circle: one block may be the parent of another at one
    /// block size, and its child at another.
    fn free_cycles(&mut self) {
        self.may_have_cycles = false;
        self.made = 0;
        let mut needed = vec![false; self.slots.len()];
        let held =
            (0..self.slots.len()).filter(|&at| self.slots[at].in_use() && self.is_held(&self.slots[at]));
        let mut open: Vec<SlotId> = held.map(|at| at as SlotId).collect();
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut needed[id as usize], true) {
                continue;
            }
            for chain in &self.slots[id as usize].chains {
                if let Parent::Block(parent) = chain.parent() {
                    open.extend(self.find(parent));
                }
            }
        }
        for at in (0..needed.len()).filter(|&at| !needed[at]) {
            if self.slots[at].in_use() {
                self.free_slot(at as SlotId, &mut SmallVec::new());
            }
        }
    }
}
