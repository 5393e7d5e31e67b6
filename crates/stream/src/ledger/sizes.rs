//! The size of main blocks: configured, or learnt from the blocks themselves, of which some are not full.

use super::{Draft, Ledger};

/// What a store of main blocks says of their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeVerdict {
    /// What was known, or is known from now on.
    Same,
    /// Nothing: the block is not full.
    NotFull,
    /// Something else.
    Other,
}

impl Ledger {
    /// The block size, configured or learned.
    pub fn block_size(&self) -> Option<u32> {
        self.options.block_size.or(self.learned_block_size)
    }

    /// vLLM stores the last block of a prompt before it is full where a cache has several groups, with the
    /// size of what it has so far. So there the main group's size is known once it is sure, and until then
    /// no block is sent. While a cache seems to have one group, a block is taken for full; what it
    /// said is taken back with the first larger one.
    pub(crate) fn learn_main_size(&mut self, size: u32, blocks: usize, draft: &mut Draft) -> SizeVerdict {
        let announced = self.sides.announced_main_size();
        let Some(known) = self.block_size() else {
            // Where several groups are known, they say what the size is.
            if self.sides.has_partial {
                return SizeVerdict::NotFull;
            }
            self.learned_block_size = Some(size);
            return SizeVerdict::Same;
        };
        self.learned_block_size.get_or_insert(size);
        if size == known {
            return SizeVerdict::Same;
        }
        if self.sides.has_partial && self.is_fraction(size, blocks) {
            return SizeVerdict::NotFull;
        }
        let larger = announced == Some(size) && size.is_multiple_of(known);
        if larger && self.options.block_size.is_none() && self.sides.main_has_kind() {
            // What was known is of a block that was not full: the group did not take it for sure.
            self.retell(draft, |ledger| {
                ledger.sides.has_partial = true;
                ledger.fit_main_size();
            });
            return SizeVerdict::Same;
        }
        SizeVerdict::Other
    }

    /// Whether a store may be of one block that is not full.
    pub(crate) fn is_fraction(&self, size: u32, blocks: usize) -> bool {
        let divides = |known: u32| size > 0 && size < known && known.is_multiple_of(size);
        blocks == 1 && self.sides.main_has_kind() && self.block_size().is_some_and(divides)
    }

    /// A block that contradicted the size of main blocks was not full.
    pub(crate) fn expect_partial_blocks(&mut self, draft: &mut Draft) {
        self.retell(draft, |ledger| ledger.sides.has_partial = true);
    }

    /// A block that another builds on is full: the size of all blocks is known. Until then no block
    /// was announced.
    pub(crate) fn learn_full_size(&mut self, block_size: u32, draft: &mut Draft) {
        if self.learned_block_size.is_some() {
            return;
        }
        self.retell(draft, |ledger| ledger.learned_block_size = Some(block_size));
    }

    /// The full size that a store shows where blocks may be stored before they are full: its own if it has
    /// several blocks, else that of what it builds on.
    pub(crate) fn full_size(&self, block_size: u32, blocks: usize, parent: Option<u64>) -> Option<u32> {
        let parent = parent.and_then(|parent| self.state.find(parent));
        let parent_size =
            parent.and_then(|parent| self.state.attached_chain(parent)).map(|chain| chain.block_size);
        if blocks > 1 { Some(block_size) } else { parent_size }
    }
}
