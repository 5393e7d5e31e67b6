//! What a peer says that a stream's engine holds, for a stream whose own past is not known.

use crate::persist::persist;

/// A batch, identified by its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The publisher's number of it.
    pub sequence: u64,
    /// Its payload's digest: no two batches have the same.
    pub digest: u128,
}

persist!(Position { sequence, digest });

/// The blocks that a peer says are on an engine's device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerDump {
    /// Tokens per block.
    pub block_size: u32,
    /// Parents before children.
    pub runs: Vec<DumpedRun>,
    /// The last batch that the peer had applied, where it says so and vouches for what it tells. Without one,
    /// nothing proves how old the dump is.
    pub position: Option<Position>,
}

persist!(PeerDump { block_size, runs, position });

/// Blocks that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedRun {
    /// The engine's hash of the block before the first; absent at the start of a prompt.
    pub parent: Option<u64>,
    /// Each with the engine's hash and the hash of its content.
    pub blocks: Vec<(u64, u64)>,
}

persist!(DumpedRun { parent, blocks });

/// What became of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpOutcome {
    /// Its blocks are held from now on; the number of those that were not known before.
    Taken(usize),
    /// The stream lacks no past, or nothing that a dump could give.
    NotWanted(&'static str),
    /// It may be taken later, unchanged: the peer has read what was not read here, or no block was heard of
    /// yet.
    Early(&'static str),
    /// It is of no use, and another one may be.
    Stale(&'static str),
}
