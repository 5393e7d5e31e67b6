//! Prompts: hashed no further than somebody holds them, and never twice.

use std::ops::Range;

use kvplane_core::{Namespace, hash_blocks};

/// Where a question's hashes come from.
pub(crate) trait Hashes {
    /// Those that are known.
    fn known(&self) -> &[u64];
    /// Gets to know more; says whether there were any.
    fn more(&mut self) -> bool;
}

/// All are there.
pub(crate) struct Slice<'a>(pub(crate) &'a [u64]);

impl Hashes for Slice<'_> {
    #[inline]
    fn known(&self) -> &[u64] {
        self.0
    }

    fn more(&mut self) -> bool {
        false
    }
}

/// The hashes of a prompt that grows: a conversation keeps one from turn to turn, and only what is new is
/// hashed.
#[derive(Debug)]
pub struct Prompt {
    namespace: Namespace,
    block_size: usize,
    hashes: Vec<u64>,
}

/// Blocks that are hashed at a time while a prompt is followed.
const STEP: usize = 32;

impl Prompt {
    /// A prompt of which nothing is hashed. Blocks have `block_size` tokens, at least one.
    pub fn new(namespace: Namespace, block_size: u32) -> Self {
        Self { namespace, block_size: block_size.max(1) as usize, hashes: Vec::new() }
    }

    /// Another prompt, in the same memory.
    pub fn restart(&mut self, namespace: Namespace, block_size: u32) {
        self.hashes.clear();
        self.namespace = namespace;
        self.block_size = block_size.max(1) as usize;
    }

    /// Forgets all but the first blocks: the tokens behind them have changed.
    pub fn truncate(&mut self, blocks: usize) {
        self.hashes.truncate(blocks);
    }

    /// What has been hashed: the content hashes of the first blocks.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The prompt with its tokens.
    pub(crate) fn with<'a>(&'a mut self, tokens: &'a [u32]) -> impl Hashes + 'a {
        let (namespace, size) = (self.namespace, self.block_size);
        self.hashed_by(tokens.len() / size, move |blocks, hashes| {
            hash_blocks(&tokens[blocks.start * size..blocks.end * size], size, namespace, hashes);
        })
    }

    /// The prompt, of this many blocks, with somebody who appends the hashes of some of them.
    pub(crate) fn hashed_by<'a>(
        &'a mut self,
        blocks: usize,
        hash: impl FnMut(Range<usize>, &mut Vec<u64>) + 'a,
    ) -> impl Hashes + 'a {
        // A shorter prompt than last time: nothing may be said of what it does not have.
        self.hashes.truncate(blocks);
        Hashing { hashes: &mut self.hashes, blocks, hash }
    }
}

/// A prompt and what hashes its blocks.
struct Hashing<'a, F> {
    hashes: &'a mut Vec<u64>,
    blocks: usize,
    hash: F,
}

impl<F: FnMut(Range<usize>, &mut Vec<u64>)> Hashes for Hashing<'_, F> {
    #[inline]
    fn known(&self) -> &[u64] {
        self.hashes
    }

    fn more(&mut self) -> bool {
        let from = self.hashes.len();
        let to = (from + STEP).min(self.blocks);
        (self.hash)(from..to, self.hashes);
        to > from
    }
}
