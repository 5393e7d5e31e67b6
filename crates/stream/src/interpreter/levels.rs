//! What TensorRT-LLM does differently: blocks that move between levels, blocks that are not full, groups
//! given by their attention window.

use std::sync::Arc;

use kvplane_core::{Reason, Trust};
use kvplane_wire::{Created, Layout, Moved};
use smallvec::SmallVec;

use super::stores::refuse;
use super::{Interpreter, Reading};
use crate::change::{Change, StoreCause, StoredBlock, StoredChange, StoredParts};
use crate::clock::Now;
use crate::ledger::{GroupSpec, Ledger};
use crate::persist::persist;
use crate::state::{Chain, Parent, Place, PlaceId, PlaceName, Refusal, SlotId};

/// What the engine's device is called.
const DEVICE: &str = "GPU";

/// The group whose blocks are whole prefixes: the one with the largest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MainWindow {
    window: u32,
    group: Option<u32>,
}

persist!(MainWindow { window, group });

impl Interpreter {
    /// A block changes its level in one step: nobody sees it in neither of the two. It is on one level at a
    /// time, so it leaves whichever others it was known to be on.
    pub(super) fn apply_moved(
        &mut self,
        ledger: &mut Ledger,
        moved: &Moved<'_>,
        reading: &mut Reading,
        now: Now,
    ) {
        self.learn_window(ledger, moved.window, moved.group, reading, now);
        let name =
            |medium| PlaceName { medium: Some(medium), locality: None, ownership: None, group: moved.group };
        let from = ledger.state().places.find(name(moved.from));
        let spec = from.map(|from| ledger.state().places.get(from).clone());
        let (spec_kind, window) =
            spec.as_ref().map_or((None, None), |place| (place.spec_kind.as_deref(), place.sliding_window));
        let spec_kind = spec_kind.or_else(|| self.kind_of_group(moved.group));
        let window = window.or(moved.window);
        let learnt = GroupSpec {
            group: moved.group,
            spec_kind,
            sliding_window: window,
            block_size: None,
            is_full: false,
            on_device: true,
        };
        ledger.learn_group(learnt, &mut reading.draft);
        let Some(to) = ledger.place(name(moved.to), spec_kind, window) else {
            refuse(ledger, Refusal::Budget, 1, now);
            return;
        };
        let to_ref = ledger.state().places.get(to).clone();
        self.note_place(ledger, &to_ref, now);
        let slot = match ledger.slot(moved.hash.bits) {
            Ok(slot) => slot,
            Err(refusal) => {
                refuse(ledger, refusal, 1, now);
                return;
            }
        };
        ledger.hold_known(slot, to, 1, &mut reading.draft);
        reading.draft.changes.push(Change::Stored(moved_change(ledger, slot, &to_ref)));
        if from.is_none_or(|from| ledger.state().copies(slot, from) == 0) {
            ledger.counters.unknown_removals += 1;
        }
        for other in places_holding(ledger, slot, moved.group).into_iter().filter(|&other| other != to) {
            let left = self.take_copies(ledger, slot, moved.hash.bits, other, u32::MAX, reading);
            let place = ledger.state().places.get(other).clone();
            reading.draft.tell_removed(place, vec![left]);
        }
    }

    /// How many blocks the device has; a life begins with it. Knowing all of those is knowing everything only
    /// where there are no others, on other levels or in other pools: so it counts only in a life that is
    /// heard from its beginning.
    pub(super) fn apply_created(
        &mut self,
        ledger: &mut Ledger,
        created: Created,
        reading: &mut Reading,
        now: Now,
    ) {
        let is_first = self.epoch.main_window.is_none() && ledger.trust().level() == Trust::Exact;
        let is_all = is_first && created.device_blocks > 0 && created.other_blocks == 0;
        self.learn_window(ledger, created.window, created.group, reading, now);
        self.epoch.copies.capacity = is_all.then_some(created.device_blocks);
        self.note_created(ledger, created, reading);
    }

    /// A pool is there, with nothing in it. Followers learn of it by a store of no blocks.
    fn note_created(&mut self, ledger: &mut Ledger, created: Created, reading: &mut Reading) {
        let (group, spec_kind) = (created.group, self.kind_of_group(created.group));
        let learnt = GroupSpec {
            group,
            spec_kind,
            sliding_window: created.window,
            block_size: None,
            is_full: false,
            on_device: true,
        };
        ledger.learn_group(learnt, &mut reading.draft);
        let name = PlaceName { medium: Some(DEVICE), locality: None, ownership: None, group };
        let Some(place) = ledger.place(name, spec_kind, created.window) else { return };
        reading.draft.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Announced,
            place: ledger.state().places.get(place).clone(),
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
    pub(super) fn doubt_capacity(&mut self, ledger: &mut Ledger) {
        if self.options.semantics.windows && ledger.state().entries() == 0 {
            self.epoch.copies.capacity = None;
        }
    }

    /// A group shows its window. The largest is the main one: should a larger one turn up, what was announced
    /// as whole prefixes may not be.
    pub(super) fn learn_window(
        &mut self,
        ledger: &mut Ledger,
        window: Option<u32>,
        group: Option<u32>,
        reading: &mut Reading,
        now: Now,
    ) {
        if !self.options.semantics.windows {
            return;
        }
        let window = window.unwrap_or(u32::MAX);
        let Some(main) = self.epoch.main_window else {
            self.epoch.main_window = Some(MainWindow { window, group });
            return;
        };
        if group != main.group {
            // With several pools no sum of copies proves anything.
            self.epoch.copies.capacity = None;
        }
        if window <= main.window {
            return;
        }
        self.epoch.main_window = Some(MainWindow { window, group });
        // Places that were made before are of the wrong kind, also those that hold nothing now.
        self.forget_state();
        if ledger.state().entries() > 0 {
            ledger.degrade(Reason::History, now);
            ledger.drop_state(Reason::History, &mut reading.draft);
        } else {
            ledger.replace_state();
        }
    }

    /// What the blocks of a group are, where groups are named by their windows.
    pub(super) fn kind_of_group(&self, group: Option<u32>) -> Option<&'static str> {
        let main = self.epoch.main_window?;
        Some(if main.group == group { "full_attention" } else { "sliding_window" })
    }
}

fn moved_change(ledger: &Ledger, slot: SlotId, place: &Arc<Place>) -> StoredChange {
    let hash = ledger.state().hash_of(slot);
    let chain = ledger.state().attached_chain(slot);
    StoredChange {
        cause: StoreCause::Announced,
        place: place.clone(),
        blocks: vec![StoredBlock::from(StoredParts {
            hash,
            wide: ledger.state().wide(hash).cloned(),
            copies: 1,
            parent: chain.map(Chain::parent),
            tokens: chain.and_then(Chain::known_tokens),
            first_position: None,
            content: chain.map(|chain| chain.content),
            extra_keys: chain.and_then(|chain| chain.extra_keys.clone()),
        })],
        layout: if chain.is_some() { Layout::Dense } else { Layout::HashOnly },
        block_size: chain.map_or(0, |chain| chain.block_size),
        parent: chain.and_then(|chain| match chain.parent() {
            Parent::Root => None,
            Parent::Block(parent) => Some(parent),
        }),
        span: None,
        attributes: chain.map(|chain| chain.attributes.clone()).unwrap_or_default(),
        session_id: None,
    }
}

/// The places of a group that hold a block: the drain says that a block is gone, not from where.
pub(super) fn places_holding(ledger: &Ledger, slot: SlotId, group: Option<u32>) -> SmallVec<[PlaceId; 4]> {
    let places = ledger.state().held_in(slot);
    places.filter(|&place| ledger.state().places.get(place).group == group).collect()
}
