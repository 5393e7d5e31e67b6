//! Blocks whose parent is not known: held, bounded, in no answer. They follow their parent when it comes.

use kvplane_core::Marks;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::LEVELS;

/// A block that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    parent: u64,
    pub(super) content: u64,
    pub(super) copies: [u32; LEVELS],
    /// The marks that it has once it is placed.
    pub(super) sides: Marks,
}

/// The blocks of one stream that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    blocks: FxHashMap<u64, Block>,
    by_parent: FxHashMap<u64, SmallVec<[u64; 1]>>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn bytes(&self) -> usize {
        const PER_BLOCK: usize = 96;
        self.blocks.len() * PER_BLOCK
    }

    /// A block waits for its parent, or for one more copy of itself. Refused when too many wait.
    pub(super) fn add(&mut self, hash: u64, parent: u64, content: u64, tier: usize, max: usize) -> bool {
        if let Some(block) = self.blocks.get_mut(&hash)
            && (block.parent, block.content) == (parent, content)
        {
            block.copies[tier] += 1;
            return true;
        }
        if self.remove(hash).is_none() && self.blocks.len() >= max {
            return false;
        }
        let mut copies = [0; LEVELS];
        copies[tier] = 1;
        self.blocks.insert(hash, Block { parent, content, copies, sides: Marks::default() });
        self.by_parent.entry(parent).or_default().push(hash);
        true
    }

    pub(super) fn remove(&mut self, hash: u64) -> Option<Block> {
        let block = self.blocks.remove(&hash)?;
        if let Some(children) = self.by_parent.get_mut(&block.parent) {
            children.retain(|child| *child != hash);
            if children.is_empty() {
                self.by_parent.remove(&block.parent);
            }
        }
        Some(block)
    }

    /// One copy goes; the block goes with its last. Says whether there was one.
    pub(super) fn take_copy(&mut self, hash: u64, tier: usize) -> bool {
        let Some(block) = self.blocks.get_mut(&hash) else { return false };
        if block.copies[tier] == 0 {
            return false;
        }
        block.copies[tier] -= 1;
        if block.copies == [0; LEVELS] {
            self.remove(hash);
        }
        true
    }

    /// A block that waits will have these marks.
    pub(super) fn set_sides(&mut self, hash: u64, sides: Marks) {
        if let Some(block) = self.blocks.get_mut(&hash) {
            block.sides = sides;
        }
    }

    /// Who waited for a block, and waits no more.
    pub(super) fn take_children(&mut self, parent: u64) -> Vec<(u64, Block)> {
        let children = self.by_parent.remove(&parent).unwrap_or_default();
        children.into_iter().filter_map(|hash| self.blocks.remove(&hash).map(|block| (hash, block))).collect()
    }
}
