//! What TensorRT-LLM does differently: blocks that move between levels, blocks that are not full, groups told by their
//! attention window.

use std::sync::Arc;

use kvplane_core::{Reason, Trust};
use kvplane_wire::{Created, Layout, Moved};
use smallvec::SmallVec;

use super::Journal;
use super::apply::Effects;
use super::groups::ToldGroup;
use crate::change::{Change, StoreCause, StoredBlock, StoredChange, Transition};
use crate::clock::Now;
use crate::state::{Parent, Place, PlaceId, PlaceName, SlotId};

/// What the engine's device is called.
const DEVICE: &str = "GPU";

/// The group whose blocks are whole prefixes: the one with the largest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MainWindow {
    window: u32,
    group: Option<u32>,
}

impl Journal {
    /// A block changes its level in one step: nobody sees it in neither of the two. It is on one level at a time, so it leaves
    /// whichever others it was known to be on.
    pub(super) fn apply_moved(&mut self, moved: &Moved<'_>, effects: &mut Effects, now: Now) {
        self.learn_window(moved.window, moved.group, effects, now);
        let name =
            |medium| PlaceName { medium: Some(medium), locality: None, ownership: None, group: moved.group };
        let from = self.state.places.find(name(moved.from));
        let spec = from.map(|from| self.state.places.get(from).clone());
        let (spec_kind, window) =
            spec.as_ref().map_or((None, None), |place| (place.spec_kind.as_deref(), place.sliding_window));
        let spec_kind = spec_kind.or_else(|| self.kind_of_group(moved.group));
        let window = window.or(moved.window);
        let told = ToldGroup {
            group: moved.group,
            spec_kind,
            sliding_window: window,
            block_size: None,
            is_full: false,
            on_device: true,
        };
        self.learn_group(told, effects);
        let Some(to) = self.state.places.place_for(name(moved.to), spec_kind, window) else {
            self.refuse(crate::state::Refusal::Budget, 1, now);
            return;
        };
        let to_ref = self.state.places.get(to).clone();
        self.note_place(&to_ref, now);
        let slot = match self.state.slot_for(moved.hash.bits) {
            Ok(slot) => slot,
            Err(refusal) => {
                self.refuse(refusal, 1, now);
                return;
            }
        };
        let was_visible = self.is_visible(slot, to_ref.tier);
        self.state.set_copies(slot, to, 1);
        if !was_visible {
            self.became_visible(slot, to_ref.tier, &mut effects.transitions);
        }
        effects.changes.push(Change::Stored(self.moved_change(slot, &to_ref)));
        if from.is_none_or(|from| self.state.copies(slot, from) == 0) {
            self.counters.unknown_removals += 1;
        }
        for other in self.places_holding(slot, moved.group).into_iter().filter(|&other| other != to) {
            let left = self.take_copies(slot, moved.hash.bits, other, u32::MAX, effects);
            let place = self.state.places.get(other).clone();
            effects.changes.push(Change::Removed { place, blocks: vec![left] });
        }
    }

    fn moved_change(&self, slot: SlotId, place: &Arc<Place>) -> StoredChange {
        let hash = self.state.hash_of(slot);
        let chain = self.state.attached_chain(slot);
        StoredChange {
            cause: StoreCause::Announced,
            place: place.clone(),
            blocks: vec![StoredBlock {
                hash,
                wide: self.state.wide(hash).cloned(),
                copies: 1,
                parent: chain.map(|chain| chain.parent),
                tokens: chain.map(|chain| chain.tokens.clone()),
                first_position: None,
                content: chain.map(|chain| chain.content),
                extra_keys: chain.and_then(|chain| chain.extra_keys.clone()),
            }],
            layout: if chain.is_some() { Layout::Dense } else { Layout::HashOnly },
            block_size: chain.map_or(0, |chain| chain.block_size),
            parent: chain.and_then(|chain| match chain.parent {
                Parent::Root => None,
                Parent::Block(parent) => Some(parent),
            }),
            span: None,
            attributes: chain.map(|chain| chain.attributes.clone()).unwrap_or_default(),
            session_id: None,
        }
    }

    /// How many blocks the device has; a life begins with it. Knowing all of those is knowing everything only where there are
    /// no others, on other levels or in other pools: so it counts only in a life that is heard from its beginning.
    pub(super) fn apply_created(&mut self, created: Created, effects: &mut Effects, now: Now) {
        let is_first = self.main_window.is_none() && self.trust.level() == Trust::Exact;
        let is_all = is_first && created.device_blocks > 0 && created.other_blocks == 0;
        self.learn_window(created.window, created.group, effects, now);
        self.capacity = is_all.then_some(created.device_blocks);
        self.note_created(created, effects);
    }

    /// A pool is there, with nothing in it. Whoever follows is told by a store of no blocks.
    fn note_created(&mut self, created: Created, effects: &mut Effects) {
        let (group, spec_kind) = (created.group, self.kind_of_group(created.group));
        let told = ToldGroup {
            group,
            spec_kind,
            sliding_window: created.window,
            block_size: None,
            is_full: false,
            on_device: true,
        };
        self.learn_group(told, effects);
        let name = PlaceName { medium: Some(DEVICE), locality: None, ownership: None, group };
        let Some(place) = self.state.places.place_for(name, spec_kind, created.window) else { return };
        effects.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Announced,
            place: self.state.places.get(place).clone(),
            blocks: Vec::new(),
            layout: Layout::HashOnly,
            block_size: 0,
            parent: None,
            span: None,
            attributes: Arc::default(),
            session_id: None,
        }));
    }

    /// Events are lost. If none of a block came before, another pool may have been among them.
    pub(super) fn doubt_capacity(&mut self) {
        if self.options.semantics.windows && self.state.entries() == 0 {
            self.capacity = None;
        }
    }

    /// The places of a group that hold a block: the drain says that a block is gone, not from where.
    pub(super) fn places_holding(&self, slot: SlotId, group: Option<u32>) -> SmallVec<[PlaceId; 4]> {
        let places = self.state.held_in(slot);
        places.filter(|&place| self.state.places.get(place).group == group).collect()
    }

    /// A group shows its window. The largest is the main one: should a larger one turn up, what was told as whole prefixes
    /// may not be.
    pub(super) fn learn_window(
        &mut self,
        window: Option<u32>,
        group: Option<u32>,
        effects: &mut Effects,
        now: Now,
    ) {
        if !self.options.semantics.windows {
            return;
        }
        let window = window.unwrap_or(u32::MAX);
        let Some(main) = self.main_window else {
            self.main_window = Some(MainWindow { window, group });
            return;
        };
        if group != main.group {
            // With several pools no sum of copies proves anything.
            self.capacity = None;
        }
        if window <= main.window {
            return;
        }
        self.main_window = Some(MainWindow { window, group });
        // Places that were made before are of the wrong kind, also those that hold nothing now.
        let (entries, elsewhere) = (self.state.entries(), self.state.held_elsewhere());
        self.replace_state();
        if entries > 0 {
            self.degrade(Reason::History, now);
            effects.transitions.push(Transition::Cleared);
            effects.changes.push(Change::Dropped { reason: Reason::History, elsewhere });
        }
    }

    /// What the blocks of a group are, where groups are told by their windows.
    pub(super) fn kind_of_group(&self, group: Option<u32>) -> Option<&'static str> {
        let main = self.main_window?;
        Some(if main.group == group { "full_attention" } else { "sliding_window" })
    }

    /// A block that another builds on is full: the size of all blocks is known. Until then nobody has been told of any.
    pub(super) fn learn_full_size(&mut self, block_size: u32, effects: &mut Effects) {
        if self.learned_block_size.is_some() {
            return;
        }
        self.retell(effects, |journal| journal.learned_block_size = Some(block_size));
    }
}
