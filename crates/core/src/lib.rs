//! The words every other room uses: who speaks (engine, rank), when (epoch, sequence), what an answer
//! is worth (continuity, trust), where a block lies (tier) and what a block is (content hash).
//!
//! This room does no IO, owns no clock and starts no thread.

mod backoff;
mod credit;
mod digest;
mod dynamo;
mod error;
mod expected;
mod hash;
mod identity;
mod keys;
mod numbers;
mod reason;
mod resume;
mod sglang;
mod tier;
mod trouble;
mod trust;

pub use backoff::{Backoff, jitter};
pub use credit::{is_caught_up, is_credited};
pub use digest::{PlaceSeed, StateDigest};
pub use dynamo::{dynamo_salt, dynamo_salt_key};
pub use error::{Blame, ErrorCode, PublicError};
pub use expected::in_plain_words;
pub use hash::{BlockKey, ContentHasher, Namespace, chain_hash, digest, hash_blocks};
pub use identity::{EngineId, EngineKind, ParseKindError, PlaneId, StreamId, default_worker_id};
pub use keys::{MultimodalItem, Names};
pub use numbers::{Cursor, Epoch, NumberBase};
pub use reason::Reason;
pub use resume::{
    HeldBlocks, LEVELS, MARK_CHANNELS, Marks, Need, PromptLength, Resumption, Side, common_divisor,
    common_multiple,
};
pub use sglang::{sglang_event_hash, sglang_namespaced_hash, sglang_page_digest, sglang_salt_digest};
pub use tier::{Locality, SpecKind, Tier};
pub use trouble::{LinkTrouble, Trouble};
pub use trust::{Continuity, Degradation, Trust, TrustState};
