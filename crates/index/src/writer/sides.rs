//! Marks of a stream's blocks: set by its feed, and gone with the block.

use kvplane_core::Marks;

use super::{Stream, Writer};
use crate::trie::Trie;
use crate::{Refused, Slot};

impl Writer {
    /// Blocks of a stream have these marks and no others.
    pub(crate) fn set_sides(&mut self, slot: Slot, marks: &[(u64, Marks)]) -> Result<(), Refused> {
        let full = self.max_bytes < usize::MAX && self.bytes() >= self.max_bytes;
        let Some(stream) = self.stream_mut(slot) else { return Ok(()) };
        if marks.iter().any(|(_, marks)| *marks != Marks::default()) {
            stream.sided = true;
        } else if !stream.sided {
            return Ok(());
        }
        let mut outcome = Ok(());
        for &(hash, wanted) in marks {
            // Removed marks must be applied; without added ones the stream only seems to hold less.
            let allowed = if full { Marks::default() } else { wanted };
            if allowed != wanted {
                outcome = Err(Refused::Budget);
            }
            self.mark_block(slot.0, hash, allowed);
        }
        outcome
    }

    pub(super) fn mark_block(&mut self, slot: u32, hash: u64, marks: Marks) {
        let Some(stream) = self.streams[slot as usize].as_mut() else { return };
        let block = stream.map.get(hash).and_then(|(place, _)| self.trie.locate(place));
        match (stream.marker, block) {
            (Some(marker), Some(_)) => self.shared.sides.set(marker, self.trie.spot(block), marks),
            _ => stream.waiting.set_sides(hash, marks),
        }
    }
}

impl Stream {
    /// The stream lost a block by one of its names: no marks are left of it.
    pub(super) fn unmark(&self, trie: &Trie, place: u32) {
        if self.sided
            && let (Some(marker), Some(block)) = (self.marker, trie.locate(place))
        {
            trie.shared.sides.set(marker, trie.spot(Some(block)), Marks::default());
        }
    }
}
