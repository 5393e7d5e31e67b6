//! A consistent picture of the state, taken a few slots at a time while batches go on being applied.
//!
//! Beginning a cut fixes its moment. Until it is complete, a caller that is about to change a slot that has
//! not been visited yet first saves what it looked like ([`State::touch`]). So the picture is exactly the
//! state at the cut's moment, and nobody waits for more than one step of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Chain, Place, SlotId, State, Wide};

/// Where copies of a block lay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldingImage {
    /// Index into [`Image::places`].
    pub place: u16,
    /// How many.
    pub copies: u32,
}

/// One dictionary entry at the moment of the cut.
#[derive(Debug, Clone)]
pub struct BlockImage {
    /// The engine's hash.
    pub hash: u64,
    /// The whole digest, if it was sent as bytes.
    pub wide: Option<Wide>,
    /// What the block is.
    pub chains: SmallVec<[Chain; 1]>,
    /// Where it lay; empty for a hole that others build on.
    pub holdings: SmallVec<[HoldingImage; 1]>,
}

/// A whole state at one moment.
#[derive(Debug, Default)]
pub struct Image {
    /// The places, by the numbers that holdings use.
    pub places: Vec<Arc<Place>>,
    /// The blocks, in no order.
    pub blocks: Vec<BlockImage>,
}

/// The state was replaced or emptied while the picture was being taken: begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutAborted;

#[derive(Debug)]
pub(super) struct Cut {
    pub(super) id: u32,
    /// The next slot to visit.
    next: usize,
    /// Slots that existed at the moment of the cut.
    limit: usize,
    saved: Vec<BlockImage>,
    places: Vec<Arc<Place>>,
    /// Slots that have been taken care of before they were visited.
    seen: Vec<u64>,
}

impl Cut {
    /// A slot needs no picture any more, or must not get one: it is of a block that came later.
    pub(super) fn note(&mut self, at: usize) {
        if at < self.limit {
            self.seen[at / 64] |= 1 << (at % 64);
        }
    }

    fn has_seen(&self, at: usize) -> bool {
        self.seen[at / 64] & 1 << (at % 64) != 0
    }
}

impl State {
    /// Fixes the moment. `id` must not have been used before.
    pub fn begin_cut(&mut self, id: u32) {
        let places = self.places.iter().map(|(_, place)| place.clone()).collect();
        let limit = self.slots.len();
        let seen = vec![0; limit.div_ceil(64)];
        self.cut = Some(Cut { id, next: 0, limit, saved: Vec::new(), places, seen });
    }

    /// Visits up to `slots` more slots and appends what they looked like. The places, when complete.
    pub fn step_cut(
        &mut self,
        id: u32,
        slots: usize,
        blocks: &mut Vec<BlockImage>,
    ) -> Result<Option<Vec<Arc<Place>>>, CutAborted> {
        let Some(mut cut) = self.cut.take_if(|cut| cut.id == id) else { return Err(CutAborted) };
        let end = (cut.next + slots).min(cut.limit);
        for at in cut.next..end {
            if !cut.has_seen(at)
                && let Some(block) = self.picture(at as SlotId)
            {
                blocks.push(block);
            }
        }
        cut.next = end;
        // What changed before it was visited was saved then. Handed out with each step, so that it does not
        // pile up.
        blocks.append(&mut cut.saved);
        if end < cut.limit {
            self.cut = Some(cut);
            return Ok(None);
        }
        Ok(Some(cut.places))
    }

    /// Gives a cut up.
    pub fn abandon_cut(&mut self, id: u32) {
        self.cut.take_if(|cut| cut.id == id);
    }

    /// Must be called before a slot changes.
    pub(super) fn touch(&mut self, slot: SlotId) {
        let Some(cut) = &self.cut else { return };
        let at = slot as usize;
        if at < cut.next || at >= cut.limit || cut.has_seen(at) {
            return;
        }
        let block = self.picture(slot);
        if let Some(cut) = &mut self.cut {
            cut.note(at);
            cut.saved.extend(block);
        }
    }

    fn picture(&self, slot: SlotId) -> Option<BlockImage> {
        let slot = &self.slots[slot as usize];
        if !slot.in_use() {
            return None;
        }
        let holdings: SmallVec<[HoldingImage; 1]> = slot
            .holdings
            .iter()
            .filter(|holding| self.places.is_current(holding))
            .map(|holding| HoldingImage { place: holding.place.0, copies: holding.copies })
            .collect();
        if holdings.is_empty() && slot.children == 0 {
            return None;
        }
        Some(BlockImage {
            hash: slot.hash,
            wide: self.wide.get(&slot.hash).cloned(),
            chains: slot.chains.iter().cloned().collect(),
            holdings,
        })
    }
}
