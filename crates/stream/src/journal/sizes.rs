//! The size of main blocks: configured, or learnt from the blocks themselves, of which some are not full.

use kvplane_core::Reason;
use kvplane_wire::Stored;

use super::Journal;
use super::apply::Effects;
use crate::clock::Now;

/// What a store of main blocks says of their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeTold {
    /// What was known, or is known from now on.
    Same,
    /// Nothing: the block is not full.
    NotFull,
    /// Something else.
    Other,
}

impl Journal {
    /// Holds the size of a store's main blocks against what is known of it.
    pub(super) fn check_size(&mut self, stored: &Stored<'_>, blocks: usize, effects: &mut Effects, now: Now) {
        if self.options.semantics.partial_blocks {
            self.check_partial_size(stored, blocks, effects, now);
            return;
        }
        match self.learn_main_size(stored.block_size, blocks, effects) {
            SizeTold::Other => {
                let is_first = !self.trust.has(Reason::BlockSize);
                self.contradict_size(now);
                self.sides.suspects_size = is_first && self.is_fraction(stored.block_size, blocks);
            }
            SizeTold::Same | SizeTold::NotFull if self.sides.suspects_size => {
                // What contradicted was not full.
                self.sides.suspects_size = false;
                if self.misdescribed_since_ms.is_none() {
                    self.trust_changed |= self.trust.resolve(Reason::BlockSize);
                }
                self.retell(effects, |journal| journal.sides.has_partial = true);
            }
            SizeTold::Same | SizeTold::NotFull => {}
        }
    }

    /// vLLM stores the last block of a prompt before it is full where a cache has several groups, with the size of what it has
    /// so far. So there the main group's size is known once it is sure, and until then nobody is told of any block. While a cache
    /// seems to have one group, a block is taken for full; what it said is taken back with the first larger one.
    pub(super) fn learn_main_size(&mut self, size: u32, blocks: usize, effects: &mut Effects) -> SizeTold {
        let told = self.sides.told_main_size();
        let Some(known) = self.block_size() else {
            // Where several groups are known, they say what the size is.
            if self.sides.has_partial {
                return SizeTold::NotFull;
            }
            self.learned_block_size = Some(size);
            return SizeTold::Same;
        };
        self.learned_block_size.get_or_insert(size);
        if size == known {
            return SizeTold::Same;
        }
        if self.sides.has_partial && self.is_fraction(size, blocks) {
            return SizeTold::NotFull;
        }
        let larger = told == Some(size) && size.is_multiple_of(known);
        if larger && self.options.block_size.is_none() && self.sides.main_has_kind() {
            // What was known is of a block that was not full: the group did not take it for sure.
            self.retell(effects, |journal| {
                journal.sides.has_partial = true;
                journal.fit_main_size();
            });
            return SizeTold::Same;
        }
        SizeTold::Other
    }

    /// Whether a store may be of one block that is not full.
    fn is_fraction(&self, size: u32, blocks: usize) -> bool {
        let divides = |known: u32| size > 0 && size < known && known.is_multiple_of(size);
        blocks == 1 && self.sides.main_has_kind() && self.block_size().is_some_and(divides)
    }

    /// Blocks that others build on are full, and tell the size of all; the last one of a prompt may be smaller.
    fn check_partial_size(&mut self, stored: &Stored<'_>, blocks: usize, effects: &mut Effects, now: Now) {
        let parent = stored.parent.and_then(|parent| self.state.find(parent.bits));
        let parent_size =
            parent.and_then(|parent| self.state.attached_chain(parent)).map(|chain| chain.block_size);
        let full = if blocks > 1 { Some(stored.block_size) } else { parent_size };
        if let Some(full) = full {
            self.learn_full_size(full, effects);
            if self.block_size() != Some(full) {
                self.contradict_size(now);
            }
        }
        if self.block_size().is_some_and(|size| stored.block_size > size) {
            self.contradict_size(now);
        }
    }

    fn contradict_size(&mut self, now: Now) {
        self.counters.block_size_contradictions += 1;
        if self.options.block_size.is_some() {
            self.degrade(Reason::BlockSize, now);
        }
    }
}
