//! The blocks that a stream stored last: the likely parents of the next ones. Finding one here spares a look
//! at the map.

use crate::trie::Block;

/// How many are kept: about as many as an engine has prompts that grow at the same time.
const TAILS: usize = 64;

/// A block, where it lies, and after how many splits of the trie that was so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    hash: u64,
    pub(super) place: u32,
    pub(super) block: Block,
    pub(super) splits: u32,
}

/// Blocks by hash, each in the one slot that its hash names.
#[derive(Debug)]
pub(super) struct Tails(Box<[Tail; TAILS]>);

/// No place.
const NONE: u32 = u32::MAX;

impl Default for Tails {
    fn default() -> Self {
        let none = Tail { hash: 0, place: NONE, block: Block { extent: 0, offset: 0 }, splits: 0 };
        Self(Box::new([none; TAILS]))
    }
}

#[inline]
fn slot(hash: u64) -> usize {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TAILS.ilog2())) as usize
}

impl Tails {
    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<&Tail> {
        let tail = &self.0[slot(hash)];
        (tail.hash == hash && tail.place != NONE).then_some(tail)
    }

    #[inline]
    pub(super) fn set(&mut self, hash: u64, place: u32, block: Block, splits: u32) {
        self.0[slot(hash)] = Tail { hash, place, block, splits };
    }

    /// The block lies there no more.
    #[inline]
    pub(super) fn forget(&mut self, hash: u64) {
        let tail = &mut self.0[slot(hash)];
        if tail.hash == hash {
            tail.place = NONE;
        }
    }
}
