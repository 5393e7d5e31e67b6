//! Telling what was held all along: blocks that waited to be known, and ancestors that a store proves.

use std::sync::Arc;

use kvplane_wire::Layout;

use super::Journal;
use super::apply::Effects;
use crate::change::{Change, StoreCause, StoredBlock, StoredChange};
use crate::state::{Attached, Attributes, Chain, Place, PlaceId, SlotId};

impl Journal {
    /// A block that waited is known now: whoever follows is told what it is at a block size, in every place that holds it.
    pub(super) fn tell_attached(&self, (slot, size): Attached, changes: &mut Vec<Change>) {
        let Some(chain) = self.state.chain(slot, size).filter(|chain| chain.attached) else { return };
        for (place, copies) in self.state.holdings(slot) {
            let block = self.known_block(slot, chain, copies);
            changes.push(Change::Stored(StoredChange {
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

    /// The request that computed a block holds every block before it: say so where we did not know.
    pub(super) fn prove_ancestors(
        &mut self,
        parent: u64,
        place: PlaceId,
        place_ref: &Arc<Place>,
        block_size: u32,
        effects: &mut Effects,
    ) {
        let mut missing = Vec::new();
        self.state.missing_ancestors(parent, place, block_size, &mut effects.ancestor_steps, &mut missing);
        if missing.is_empty() {
            return;
        }
        self.counters.proven_blocks += missing.len() as u64;
        let mut blocks = Vec::with_capacity(missing.len());
        let mut attributes = None;
        for slot in missing.into_iter().rev() {
            let elsewhere = |other: &Place| other.group == place_ref.group;
            if self.options.semantics.windows && self.state.held_where(slot, elsewhere) {
                // Where blocks move between levels, one that is elsewhere is held all the same.
                continue;
            }
            let was_visible = self.is_visible(slot, place_ref.tier);
            self.state.set_copies(slot, place, 1);
            self.reports.prove(place, self.state.hash_of(slot));
            if !was_visible {
                self.became_visible(slot, place_ref.tier, &mut effects.transitions);
            }
            let Some(chain) = self.state.chain(slot, block_size) else { continue };
            attributes.get_or_insert_with(|| chain.attributes.clone());
            blocks.push(self.known_block(slot, chain, 1));
        }
        tell_proven(place_ref, blocks, block_size, attributes, effects);
    }

    /// A block that is known up to the start of its prompt, with so many copies in a place.
    pub(super) fn known_block(&self, slot: SlotId, chain: &Chain, copies: u32) -> StoredBlock {
        let hash = self.state.hash_of(slot);
        StoredBlock {
            hash,
            wide: self.state.wide(hash).cloned(),
            copies,
            parent: Some(chain.parent),
            tokens: Some(chain.tokens.clone()),
            first_position: None,
            content: Some(chain.content),
            extra_keys: chain.extra_keys.clone(),
        }
    }
}

/// Tells of blocks that a place holds because it holds one that builds on them.
pub(super) fn tell_proven(
    place: &Arc<Place>,
    blocks: Vec<StoredBlock>,
    block_size: u32,
    attributes: Option<Arc<Attributes>>,
    effects: &mut Effects,
) {
    effects.changes.push(Change::Stored(StoredChange {
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
