//! Telling what was held all along: blocks that waited to be known, and ancestors that a store proves.

use std::sync::Arc;

use kvplane_wire::Layout;

use super::Journal;
use super::apply::Effects;
use crate::change::{Change, StoreCause, StoredBlock, StoredChange};
use crate::state::{Attached, Place, PlaceId};

impl Journal {
    /// A block that waited is known now: whoever follows is told what it is at a block size, in every place that holds it.
    pub(super) fn tell_attached(&self, (slot, size): Attached, changes: &mut Vec<Change>) {
        let Some(chain) = self.state.chain(slot, size).filter(|chain| chain.attached) else { return };
        let hash = self.state.hash_of(slot);
        for (place, copies) in self.state.holdings(slot) {
            let block = StoredBlock {
                hash,
                wide: self.state.wide(hash).cloned(),
                copies,
                parent: Some(chain.parent),
                tokens: Some(chain.tokens.clone()),
                first_position: None,
                content: Some(chain.content),
                extra_keys: chain.extra_keys.clone(),
            };
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
            if !was_visible {
                self.became_visible(slot, place_ref.tier, &mut effects.transitions);
            }
            let Some(chain) = self.state.chain(slot, block_size) else { continue };
            attributes.get_or_insert_with(|| chain.attributes.clone());
            let hash = self.state.hash_of(slot);
            blocks.push(StoredBlock {
                hash,
                wide: self.state.wide(hash).cloned(),
                copies: 1,
                parent: Some(chain.parent),
                tokens: Some(chain.tokens.clone()),
                first_position: None,
                content: Some(chain.content),
                extra_keys: chain.extra_keys.clone(),
            });
        }
        effects.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Proven,
            place: place_ref.clone(),
            blocks,
            layout: Layout::Dense,
            block_size,
            parent: None,
            span: None,
            attributes: attributes.unwrap_or_default(),
            session_id: None,
        }));
    }
}
