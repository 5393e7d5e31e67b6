//! The operations that change a ledger's state. Each also writes what subscribers receive.

use std::sync::Arc;

use kvplane_core::{Reason, Tier};

use super::{Draft, KnownFrom, Ledger};
use crate::change::{
    Change, Layout, RemovedBlock, StoreCause, StoredBlock, StoredChange, StoredParts, Transition,
};
use crate::clock::Now;
use crate::seeded::SeededSet;
use crate::state::{Attached, Attributes, Chain, Parent, Place, PlaceId, PlaceName, Refusal, SlotId, State};
use crate::tokens::Tokens;
use crate::transitions::push_removed;

/// What was known of a block before an operation on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// It was known up to the start of its prompt.
    pub(crate) known: bool,
    /// It could be sent to consumers that know one block size.
    pub(crate) tellable: bool,
}

/// How far a clear reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleared {
    /// Other places hold blocks.
    Partly,
    /// Nothing is held any more; what blocks are is still known.
    Residency,
    /// Nothing is held any more, and nothing is known.
    Everything,
}

impl Ledger {
    /// The slot of a hash, made if need be.
    pub(crate) fn slot(&mut self, hash: u64) -> Result<SlotId, Refusal> {
        self.state.slot_for(hash)
    }

    /// The place that an event names, made if need be. `None` when there are absurdly many.
    pub(crate) fn place(
        &mut self,
        name: PlaceName<'_>,
        spec_kind: Option<&str>,
        sliding_window: Option<u32>,
    ) -> Option<PlaceId> {
        self.state.places.place_for(name, spec_kind, sliding_window)
    }

    /// What is known of a block now: to be asked before it is defined.
    pub(crate) fn before(&self, slot: SlotId) -> Before {
        Before {
            known: self.state.attached_chain(slot).is_some(),
            tellable: self.state.visible_chain(slot, self.visible_size()).is_some(),
        }
    }

    /// Says what a block is. Blocks that waited for it are collected in the draft.
    pub(crate) fn define(&mut self, slot: SlotId, chain: Chain, draft: &mut Draft) -> Result<(), Refusal> {
        self.state.define(slot, chain, &mut draft.attached).inspect_err(|_| self.state.release(slot))
    }

    /// Says what a block is by its content alone, whose tokens are not known. What comes before it is known.
    pub(crate) fn define_by_content(
        &mut self,
        slot: SlotId,
        (parent, content, block_size): (Parent, u64, u32),
        draft: &mut Draft,
    ) -> Result<(), Refusal> {
        let mut chain = Chain::new((block_size, parent), Tokens::default(), self.no_attributes.clone(), None);
        (chain.attached, chain.content) = (true, content);
        self.untranslatable = true;
        self.state.define_mirrored(slot, chain, &mut draft.attached).inspect_err(|_| self.state.release(slot))
    }

    /// Says the tokens of a block of which only the content was known. False if they do not fit it.
    pub(crate) fn fill(&mut self, slot: SlotId, chain: Chain) -> bool {
        self.state.fill(slot, chain)
    }

    /// Notes the whole digest of a hash that was sent as bytes.
    pub(crate) fn set_wide(&mut self, hash: u64, wide: &[u8]) {
        self.state.set_wide(hash, wide);
    }

    /// Gives a slot back that nothing holds, after all.
    pub(crate) fn give_back(&mut self, slot: SlotId) {
        self.state.release(slot);
    }

    /// A place holds this number of copies of a block. True if some place held it before.
    pub(crate) fn hold(
        &mut self,
        slot: SlotId,
        place: PlaceId,
        copies: u32,
        before: Before,
        draft: &mut Draft,
    ) -> bool {
        let tier = self.state.places.get(place).tier;
        let was_visible = before.tellable && self.is_visible(slot, tier);
        let was_held = self.state.held_where(slot, |_| true);
        self.state.set_copies(slot, place, copies);
        if !was_visible {
            self.became_visible(slot, tier, &mut draft.transitions);
        }
        if !before.tellable && was_held {
            // It was held before it could be sent.
            draft.joined.push(slot);
            for other in Tier::ALL.into_iter().filter(|&other| other != tier) {
                self.became_visible(slot, other, &mut draft.transitions);
            }
        }
        was_held
    }

    /// The same for a block of which nothing else changes.
    pub(crate) fn hold_known(&mut self, slot: SlotId, place: PlaceId, copies: u32, draft: &mut Draft) {
        let tier = self.state.places.get(place).tier;
        let was_visible = self.is_visible(slot, tier);
        self.state.set_copies(slot, place, copies);
        if !was_visible {
            self.became_visible(slot, tier, &mut draft.transitions);
        }
    }

    /// Each copy of a block in a place counts for this many blocks.
    pub(crate) fn set_covers(&mut self, slot: SlotId, place: PlaceId, blocks: u16) {
        self.state.set_covers(slot, place, blocks);
    }

    /// A place has only this number of copies of a block left.
    pub(crate) fn release(
        &mut self,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        left: u32,
        draft: &mut Draft,
    ) -> RemovedBlock {
        let tier = self.state.places.get(place).tier;
        let was_visible = self.is_visible(slot, tier);
        self.state.set_copies(slot, place, left);
        if was_visible && !self.is_visible(slot, tier) {
            push_removed(&mut draft.transitions, tier, hash);
        }
        if left == 0 {
            draft.left.push(hash);
        }
        RemovedBlock { hash, copies: left }
    }

    /// Lets go of blocks that nothing holds any more, at the end of an entry: what other tiers have got is
    /// announced behind what the device lost, perhaps by the hash alone.
    pub(crate) fn release_left(&mut self, draft: &mut Draft) {
        for hash in std::mem::take(&mut draft.left) {
            if let Some(slot) = self.state.find(hash) {
                self.state.release(slot);
            }
        }
    }

    /// Places hold nothing any more; subscribers are notified.
    pub(crate) fn clear(
        &mut self,
        places: Vec<Arc<Place>>,
        keep_dictionary: bool,
        draft: &mut Draft,
    ) -> Cleared {
        let mut elsewhere = self.state.held_elsewhere();
        if !elsewhere.is_empty() {
            let named: SeededSet<PlaceName<'_>> = places.iter().map(|place| place.name()).collect();
            elsewhere.retain(|(place, _)| named.contains(&place.name()));
        }
        let cleared = self.empty(&places, keep_dictionary, draft);
        draft.changes.push(Change::Cleared { places, elsewhere });
        cleared
    }

    /// Drops what places hold, and sends what that takes out of sight. What blocks are stays known where
    /// others hold any; or where that is wanted, but for blocks that waited: followers would have to
    /// know that they did.
    pub(super) fn empty(
        &mut self,
        places: &[Arc<Place>],
        keep_dictionary: bool,
        draft: &mut Draft,
    ) -> Cleared {
        let named: SeededSet<PlaceName<'_>> = places.iter().map(|place| place.name()).collect();
        let named = &named;
        let emptied = |place: &Place| named.contains(&place.name());
        let of_an_owner = !places.is_empty() && places.iter().all(|place| place.ownership.is_some());
        if of_an_owner || !self.state.nothing_but(emptied) {
            self.drop_visibly(emptied, draft);
            return Cleared::Partly;
        }
        self.untranslatable = false;
        draft.transitions.push(Transition::Cleared);
        if keep_dictionary {
            self.state.drop_places(emptied);
            self.state.stop_waiting_at_all();
            Cleared::Residency
        } else {
            self.replace_state();
            Cleared::Everything
        }
    }

    /// Events are lost: what is known may hold phantoms. Forgets the residency, keeps the dictionary.
    pub(crate) fn drop_residency(&mut self, reason: Reason, now: Now) -> Draft {
        let elsewhere = self.state.held_elsewhere();
        self.state.drop_places(|_| true);
        self.untranslatable = false;
        self.degrade(reason, now);
        self.known_from = KnownFrom::Next;
        Draft {
            changes: vec![Change::Dropped { reason, elsewhere }],
            transitions: vec![Transition::Cleared],
            ..Draft::default()
        }
    }

    /// What blocks are was misunderstood: the whole state is dropped, and subscribers are notified.
    pub(crate) fn drop_state(&mut self, reason: Reason, draft: &mut Draft) {
        let elsewhere = self.state.held_elsewhere();
        self.replace_state();
        draft.transitions.push(Transition::Cleared);
        draft.changes.push(Change::Dropped { reason, elsewhere });
    }

    /// An empty state takes the place of what was known.
    pub(crate) fn replace_state(&mut self) {
        let old = std::mem::replace(&mut self.state, State::new(self.options.state));
        self.retired.push(old);
        self.fit_state();
    }

    // --- what subscribers get of blocks that were held all along
    // -----------------------------------------------

    /// Tells of a block that waited to be known, at a block size, in every place that holds it.
    pub(crate) fn tell_attached(&self, (slot, size): Attached, draft: &mut Draft) {
        let Some(chain) = self.state.chain(slot, size).filter(|chain| chain.attached) else { return };
        for (place, copies) in self.state.holdings(slot) {
            let block = self.known_block(slot, chain, copies);
            draft.changes.push(Change::Stored(StoredChange {
                cause: StoreCause::Attached,
                place: place.clone(),
                blocks: vec![block],
                layout: Layout::Dense,
                block_size: chain.block_size,
                parent: None,
                span: None,
                attributes: chain.attributes.clone(),
                session_id: None,
            }));
        }
    }

    /// Tells of the blocks that waited for the last one that was defined.
    pub(crate) fn tell_waiting(&self, draft: &mut Draft) {
        for waited in std::mem::take(&mut draft.attached) {
            draft.joined.push(waited.0);
            self.tell_attached(waited, draft);
            self.attached_visibly(waited, &mut draft.transitions);
        }
    }

    /// A block that is known up to the start of its prompt, with this number of copies in a place.
    pub(crate) fn known_block(&self, slot: SlotId, chain: &Chain, copies: u32) -> StoredBlock {
        let hash = self.state.hash_of(slot);
        StoredBlock::from(StoredParts {
            hash,
            wide: self.state.wide(hash).cloned(),
            copies,
            parent: Some(chain.parent()),
            tokens: chain.known_tokens(),
            first_position: None,
            content: Some(chain.content),
            extra_keys: chain.extra_keys.clone(),
        })
    }

    /// The ancestors of a block that a place is not known to hold, nearest first; see
    /// [`State::missing_ancestors`].
    pub(crate) fn missing_ancestors(
        &mut self,
        parent: u64,
        place: PlaceId,
        block_size: u32,
        budget: &mut u32,
    ) -> Vec<SlotId> {
        let mut missing = Vec::new();
        self.state.missing_ancestors(parent, place, block_size, budget, &mut missing);
        missing
    }

    /// Notes whether blocks without tokens are left at the end of an entry.
    pub(crate) fn note_unresolved(&mut self, draft: &Draft) {
        self.untranslatable |= draft.unresolved.iter().any(|&hash| self.lacks_tokens(hash));
    }

    /// Whether a block without tokens is still one at the end of its entry, which may have said what it is,
    /// or removed it.
    fn lacks_tokens(&self, hash: u64) -> bool {
        let slot = self.state.find(hash).filter(|&slot| self.state.attached_chain(slot).is_none());
        slot.is_some_and(|slot| self.state.held_where(slot, Place::proves_ancestors))
    }
}

impl Draft {
    /// Tells of blocks that a place holds because it holds one that builds on them.
    pub(crate) fn tell_proven(
        &mut self,
        place: &Arc<Place>,
        blocks: Vec<StoredBlock>,
        block_size: u32,
        attributes: Option<Arc<Attributes>>,
    ) {
        self.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Proven,
            place: place.clone(),
            blocks,
            layout: Layout::Dense,
            block_size,
            parent: None,
            span: None,
            attributes: attributes.unwrap_or_default(),
            session_id: None,
        }));
    }

    /// Tells that blocks left a place.
    pub(crate) fn tell_removed(&mut self, place: Arc<Place>, blocks: Vec<RemovedBlock>) {
        self.changes.push(Change::Removed { place, blocks });
    }
}
