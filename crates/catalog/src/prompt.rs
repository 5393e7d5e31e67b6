//! What is asked for.

use std::ops::Range;

use kvplane_core::{ContentHasher, MultimodalItem, Names, Namespace, PromptLength};
use kvplane_wire::OwnedExtraKey;

use crate::roster::Shape;

/// A prompt, in one of the forms in which it can be given.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// Token ids; hashed once for every block size in use.
    Tokens {
        /// The whole prompt.
        ids: &'a [u32],
        /// Its adapter and salt.
        namespace: Namespace,
    },
    /// Token ids, and what some blocks are made of besides.
    Keyed {
        /// The whole prompt.
        ids: &'a [u32],
        /// Its adapter and salt.
        names: Names<'a>,
        /// What else its blocks are made of.
        keys: PromptKeys<'a>,
    },
    /// Hashes of its blocks; streams of another block size cannot answer.
    Hashes {
        /// From the first block on.
        hashes: &'a [u64],
        /// Each is of the whole prefix that ends with its block, not of the block's content alone.
        chained: bool,
        /// Tokens per block; `None` for callers that do not say: hashes of different block sizes never meet.
        block_size: Option<u32>,
    },
}

/// What blocks of a prompt are made of besides tokens, adapter and salt.
#[derive(Debug, Clone, Copy)]
pub enum PromptKeys<'a> {
    /// Items at positions of the prompt: in order, without overlap. They are keys of blocks of any size.
    Items(&'a [MultimodalItem]),
    /// The keys of each block, as vLLM tells them: adapter and salt may be among them. Streams of another
    /// block size cannot answer.
    Blocks {
        /// Tokens per block.
        block_size: u32,
        /// From the first block on; blocks behind the last list have none.
        lists: &'a [Vec<OwnedExtraKey>],
    },
}

impl Prompt<'_> {
    /// The block size of those who can answer, where it is not any.
    pub(crate) fn block_size(&self) -> Option<u32> {
        match self {
            Self::Hashes { block_size, .. } => *block_size,
            Self::Keyed { keys: PromptKeys::Blocks { block_size, .. }, .. } => Some(*block_size),
            Self::Tokens { .. } | Self::Keyed { keys: PromptKeys::Items(_), .. } => None,
        }
    }
}

impl Prompt<'_> {
    /// The prompt's tokens. Hashes of its blocks do not say where it ends.
    pub(crate) fn tokens(&self) -> Option<u64> {
        match self {
            Self::Tokens { ids, .. } | Self::Keyed { ids, .. } => Some(ids.len() as u64),
            Self::Hashes { .. } => None,
        }
    }

    /// How long the prompt is for streams of a shape, where that is known.
    pub(crate) fn length(&self, shape: Shape) -> Option<PromptLength> {
        let tokens = self.tokens()?;
        Some(PromptLength { tokens, block_size: shape.size, bigrams: shape.bigrams })
    }
}

/// The tokens of a prompt as a keyspace cuts them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// All ids, as the keyspace sees them.
    pub(crate) ids: &'a [u32],
    /// Positions per block.
    pub(crate) positions: u32,
    /// Ids per block.
    pub(crate) ids_per_block: u32,
    pub(crate) names: Names<'a>,
}

impl Cut<'_> {
    /// Whole blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.ids.len() / self.ids_per_block.max(1) as usize
    }
}

impl PromptKeys<'_> {
    /// Appends the content hashes of some blocks.
    pub(crate) fn hash(self, cut: Cut<'_>, blocks: Range<usize>, hashes: &mut Vec<u64>) {
        let mut hasher = ContentHasher::default();
        let namespace = cut.names.namespace();
        let size = cut.ids_per_block as usize;
        hashes.extend(blocks.map(|block| {
            let tokens = &cut.ids[block * size..(block + 1) * size];
            match self {
                Self::Items(items) => {
                    let start = block as u64 * u64::from(cut.positions);
                    let keys = MultimodalItem::keys_of(items, start..start + u64::from(cut.positions));
                    hasher.keyed(tokens, keys, namespace)
                }
                Self::Blocks { lists, .. } => {
                    let keys = lists.get(block).map_or(&[][..], Vec::as_slice);
                    let further = cut.names.further_keys(keys.iter().map(OwnedExtraKey::as_block_key));
                    hasher.keyed(tokens, further, namespace)
                }
            }
        }));
    }
}
