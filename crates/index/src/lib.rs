//! Who holds how much of this prompt? Exactly, for every stream, while blocks come and go.
//!
//! An [`Index`] covers one keyspace: a model, a block size and a group. A prompt is a sequence of content
//! hashes (which already carry adapter, salt and further keys, see `kvplane_core`). Streams announce blocks
//! by their engine's own hashes; those are used to find parents and to remove blocks, and never compared
//! between streams.
//!
//! ```
//! use kvplane_core::Tier;
//! use kvplane_index::{Block, Buffer, Index, Options};
//!
//! let index = Index::new(&Options::default());
//! let stream = index.add_stream(7);
//! index.store(stream, Tier::Device, None, &[Block { hash: 1, content: 100 }, Block { hash: 2, content: 200 }])?;
//!
//! let mut reader = index.reader();
//! let mut buffer = Buffer::default();
//! let answer = reader.query(&[100, 200, 300], &mut buffer);
//! let matches = answer.matches();
//! assert_eq!((matches[0].owner, matches[0].depths), (7, [2, 2, 2, 2]));
//! # Ok::<(), kvplane_index::Refused>(())
//! ```

mod answer;
mod arena;
mod crowd;
mod edges;
mod epoch;
mod extent;
mod index;
#[cfg(all(test, loom))]
mod loom_tests;
mod map;
mod matching;
pub mod model;
mod pages;
mod prompt;
mod reader;
mod shared;
mod sides;
mod sync;
mod trie;
mod writer;

pub use answer::{Answer, Buffer};
pub use index::Index;
pub use prompt::Prompt;
pub use reader::Reader;

use kvplane_core::{Marks, Tier};

/// How many levels an answer has: one per tier that can be credited, each counting itself and everything
/// warmer. A block in [`Tier::Unknown`] is never credited, and does not reach an index.
pub const LEVELS: usize = Tier::Unknown as usize;

/// Blocks of the prompt that a stream holds, from the first on without a gap: by level, in the order of
/// [`Tier::ALL`]. `depths[T]` counts blocks that lie in T or in a warmer tier.
pub type Depths = [u32; LEVELS];

/// A stream's place in an index. Given out by [`Index::add_stream`], void after [`Index::remove_stream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(pub(crate) u32);

/// One block, as a store announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The engine's hash: names the block within its stream.
    pub hash: u64,
    /// Our hash of its content: the same for every engine.
    pub content: u64,
}

/// One change of a stream, for [`Index::apply`]. Each does what the method of the same name does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// [`Index::store`].
    Store {
        /// The tier that got a copy.
        tier: Tier,
        /// The block before the first; `None` at the start of a prompt.
        parent: Option<u64>,
        /// Consecutive blocks.
        blocks: &'a [Block],
    },
    /// [`Index::remove`].
    Remove {
        /// The tier that lost a copy.
        tier: Tier,
        /// The blocks, by the engine's hash.
        hashes: &'a [u64],
    },
    /// [`Index::set_sides`].
    SetSides(&'a [(u64, Marks)]),
}

impl Operation<'_> {
    /// How many blocks it names.
    fn len(&self) -> usize {
        match self {
            Self::Store { blocks, .. } => blocks.len(),
            Self::Remove { hashes, .. } => hashes.len(),
            Self::SetSides(marks) => marks.len(),
        }
    }
}

/// How much of a prompt one stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Whose: what was given to [`Index::add_stream`].
    pub owner: u64,
    /// How many blocks, by level.
    pub depths: Depths,
    /// Where its marks are found while the answer lives.
    pub(crate) marker: u32,
}

/// What an index may use.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that the index may take; further blocks are refused. Nothing is ever evicted.
    pub max_bytes: usize,
    /// Blocks of one stream that may wait for a parent that is not known.
    pub max_waiting: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_bytes: usize::MAX, max_waiting: 65_536 }
    }
}

/// Blocks that were not recorded: from now on the index may know less of the stream than the stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The index has reached its budget.
    #[error("the index's memory budget is used up")]
    Budget,
    /// Too many blocks of the stream wait for a parent.
    #[error("too many blocks wait for a parent that is not known")]
    Waiting,
}

/// What an index holds and what that takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Streams.
    pub streams: usize,
    /// (stream, block) pairs.
    pub blocks: usize,
    /// Different blocks, once each however many streams hold them. A block that is missing between two others
    /// of its prefix counts too.
    pub distinct: usize,
    /// Blocks that wait for a parent.
    pub waiting: usize,
    /// Bytes in use (what the index asked of the allocator).
    pub bytes: usize,
    /// Those of them that say which sides hold blocks.
    pub mark_bytes: usize,
    /// Blocks of past generations that are still to be reclaimed. They are in no answer.
    pub unreclaimed: usize,
}
