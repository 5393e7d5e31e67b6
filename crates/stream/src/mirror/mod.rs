//! A stream that another plane records: what that plane says of it, and a copy that is checked at every step.
//!
//! Every entry of the other plane becomes one entry here, with its epoch and its numbers. So a subscriber's
//! cursor is good at both planes. Nothing is concluded here: the copy sets what it receives, and compares the
//! digest of the result and the number of its last transition with what it receives of them. What does not
//! fit voids the copy; then it needs a snapshot.
//!
//! ```text
//!             chunk, chunk, …, last                     entry
//!   void ────────────────────────────> a state ──┐ ───────────────> the next state
//!    ^ reset to another life, misfit             │
//!    └───────────────────────────────────────────┘
//! ```
//!
//! [`link`] says where the stream stands: what the other plane says, and nothing better than what the way to
//! it allows.

mod link;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Cursor, LEVELS, Resumption, StateDigest, TrustState};

use crate::change::{Change, StoredBlock};
use crate::ledger::Group;
use crate::state::{Attributes, Chain, Place, Refusal};

pub(crate) use link::Mirror;
pub(crate) use snapshot::check;
pub use snapshot::{MirrorSnapshot, MirroredState};

/// An entry, as another plane sent it.
#[derive(Debug)]
pub struct MirrorEntry {
    /// Its life and number.
    pub cursor: Cursor,
    /// The engine's own number of the batch.
    pub engine_sequence: Option<u64>,
    /// Digest of that batch as the engine sent it, where the other plane knows it.
    pub engine_digest: Option<u128>,
    /// The engine's wall clock, seconds.
    pub timestamp: f64,
    /// What happened, in order.
    pub changes: Vec<Change>,
    /// The trust after it, where it changed.
    pub trust: Option<TrustState>,
    /// From where on everything is known, sent with the trust.
    pub known_from: Option<u64>,
    /// Where the stream stands after it, where that changed.
    pub continuity: Option<Continuity>,
    /// Digest of the resident state after it.
    pub digest: StateDigest,
    /// How old the proof was that the engine is there, when the other plane recorded this.
    pub age: Option<Duration>,
    /// The number of the last transition up to here.
    pub last_event_id: u64,
    /// Main blocks that each tier gives back at once, where anything about what the stream needs changed.
    pub units: Option<[u32; LEVELS]>,
    /// Tiers behind the device are asked for the whole prompt; sent with `units`.
    pub whole_prompt: bool,
}

/// Blocks of a snapshot that have everything but themselves in common.
#[derive(Debug)]
pub struct MirrorBlocks {
    /// Where they lie; `None` for holes that others build on.
    pub place: Option<Arc<Place>>,
    /// Tokens per block.
    pub block_size: u32,
    /// Adapter and salt.
    pub attributes: Arc<Attributes>,
    /// The blocks.
    pub blocks: Vec<StoredBlock>,
}

/// A part of a snapshot.
#[derive(Debug)]
pub struct MirrorChunk {
    /// From 0.
    pub index: u32,
    /// Parents before children, over all chunks.
    pub blocks: Vec<MirrorBlocks>,
    /// On the last one.
    pub end: Option<MirrorEnd>,
}

/// What a snapshot says besides its blocks.
#[derive(Debug)]
pub struct MirrorEnd {
    /// What the state is worth.
    pub trust: TrustState,
    /// Where the stream stood.
    pub continuity: Continuity,
    /// The engine's own number at the cut.
    pub engine_sequence: Option<u64>,
    /// Digest of that batch as the engine sent it, where the other plane knows it.
    pub engine_digest: Option<u128>,
    /// From where on everything is known.
    pub known_from: Option<u64>,
    /// Digest of the state.
    pub digest: StateDigest,
    /// How old the proof was that the engine is there.
    pub age: Option<Duration>,
    /// The last transition that is part of it.
    pub last_event_id: u64,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Blocks may be smaller than that.
    pub partial_blocks: bool,
    /// The groups of the engine's cache.
    pub groups: Vec<Group>,
    /// What the stream needs besides its main blocks. What the groups need is worked out from them.
    pub resumption: Resumption,
}

/// Why a copy cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// It belongs to another life.
    #[error("a message of another epoch")]
    Epoch,
    /// It is not the next.
    #[error("a message that does not follow")]
    Order,
    /// The state after it differs.
    #[error("state digest mismatch")]
    Digest,
    /// It brought other transitions here than there.
    #[error("number of the last transition mismatch")]
    EventIds,
    /// It cannot be.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// There is no room for it.
    #[error("the budget of the state is used up")]
    Budget,
}

impl Misfit {
    /// In one word, for status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Epoch => "other_epoch",
            Self::Order => "out_of_order",
            Self::Digest => "digest",
            Self::EventIds => "event_ids",
            Self::Malformed(_) => "malformed",
            Self::Budget => "budget",
        }
    }
}

impl From<Refusal> for Misfit {
    fn from(_: Refusal) -> Self {
        // What waits is bounded there as it is here: it is our budget that is smaller.
        Self::Budget
    }
}

/// What a block is, where it was sent.
pub(crate) fn mirrored_chain(
    block: &StoredBlock,
    block_size: u32,
    attributes: &Arc<Attributes>,
) -> Option<Chain> {
    let tokens = block.tokens().cloned().unwrap_or_default();
    let keys = block.extra_keys().cloned();
    let mut chain = Chain::new((block_size, block.parent()?), tokens, attributes.clone(), keys);
    (chain.attached, chain.content) = (block.content().is_some(), block.content().unwrap_or(0));
    Some(chain)
}
