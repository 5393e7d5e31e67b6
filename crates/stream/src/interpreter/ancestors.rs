//! Ancestors that a store proves to be held.

use std::sync::Arc;

use super::{Interpreter, Reading};
use crate::ledger::Ledger;
use crate::state::{Place, PlaceId};

impl Interpreter {
    /// The request that computed a block holds every block before it: say so where we did not know.
    pub(super) fn prove_ancestors(
        &mut self,
        ledger: &mut Ledger,
        parent: u64,
        place: PlaceId,
        place_ref: &Arc<Place>,
        block_size: u32,
        reading: &mut Reading,
    ) {
        let missing = ledger.missing_ancestors(parent, place, block_size, &mut reading.ancestor_steps);
        if missing.is_empty() {
            return;
        }
        ledger.counters.proven_blocks += missing.len() as u64;
        let mut blocks = Vec::with_capacity(missing.len());
        let mut attributes = None;
        for slot in missing.into_iter().rev() {
            let elsewhere = |other: &Place| other.group == place_ref.group;
            if self.options.semantics.windows && ledger.state().held_where(slot, elsewhere) {
                // Where blocks move between levels, one that is elsewhere is held all the same.
                continue;
            }
            ledger.hold_known(slot, place, 1, &mut reading.draft);
            self.epoch.reports.prove(place, ledger.state().hash_of(slot));
            let Some(chain) = ledger.state().chain(slot, block_size) else { continue };
            attributes.get_or_insert_with(|| chain.attributes.clone());
            blocks.push(ledger.known_block(slot, chain, 1));
        }
        reading.draft.tell_proven(place_ref, blocks, block_size, attributes);
    }
}
