//! Blocks as the workload knows them: numbers. Tokens and hashes follow from the number.

use kvplane_core::{ContentHasher, Namespace};

use super::rng::mix;

/// Tokens in a block.
pub(crate) const BLOCK_TOKENS: usize = 16;

/// Token ids are below this: the size of a common vocabulary.
const VOCABULARY: u64 = 128_256;

/// A block and everything before it. Prompts share a block exactly if they share the whole prompt up to it.
pub(crate) type BlockId = u32;

/// Every block that was ever made up, with the hash of its tokens.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    contents: Vec<u64>,
    hasher: ContentHasher,
    tokens: Vec<u32>,
}

impl Blocks {
    /// Makes up as many blocks; their ids follow one another from the first, which is returned.
    pub(crate) fn make(&mut self, count: usize) -> BlockId {
        let first = self.contents.len() as BlockId;
        for id in first..first + count as BlockId {
            self.tokens.clear();
            push_tokens(id, &mut self.tokens);
            self.contents.push(self.hasher.plain(&self.tokens, Namespace::PLAIN));
        }
        first
    }

    /// The hash of a block's tokens.
    pub(crate) fn content(&self, id: BlockId) -> u64 {
        self.contents[id as usize]
    }

    /// The hashes of a prompt's blocks.
    pub(crate) fn contents(&self, prompt: &[BlockId]) -> Vec<u64> {
        prompt.iter().map(|&id| self.content(id)).collect()
    }
}

/// The tokens of a prompt.
pub(crate) fn tokens(prompt: &[BlockId]) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(prompt.len() * BLOCK_TOKENS);
    for &id in prompt {
        push_tokens(id, &mut tokens);
    }
    tokens
}

fn push_tokens(id: BlockId, tokens: &mut Vec<u32>) {
    let first = u64::from(id) * BLOCK_TOKENS as u64;
    tokens.extend((first..first + BLOCK_TOKENS as u64).map(|place| (mix(place) % VOCABULARY) as u32));
}

/// How engines name blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineHashes {
    /// The same block has the same hash on every engine. The peers ask for this.
    Equal,
    /// Every engine has hashes of its own.
    Different,
}

impl EngineHashes {
    /// The hash by which an engine announces a block. Like a chain of hashes, it stands for the whole prompt
    /// up to the block.
    pub(crate) fn of(self, engine: u32, id: BlockId) -> u64 {
        match self {
            Self::Equal => mix(u64::from(id)),
            Self::Different => mix(u64::from(id) | u64::from(engine + 1) << 32),
        }
    }
}
