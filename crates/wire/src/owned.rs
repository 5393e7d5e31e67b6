//! Events that own their parts: what encoders take. Used by the simulator, the republisher and tests.

/// A block hash as an engine would send it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OwnedHash {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer (old vLLM, SGLang); positive ones encode like unsigned ones.
    Signed(i64),
    /// A 16- or 32-byte digest.
    Bytes(Vec<u8>),
}

/// One entry of a block's `extra_keys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedExtraKey {
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A number.
    Integer(i64),
    /// A multimodal item and its offset relative to the block.
    Multimodal(String, i64),
}

/// Blocks became resident.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OwnedStored {
    /// The blocks.
    pub block_hashes: Vec<OwnedHash>,
    /// The block before the first.
    pub parent: Option<OwnedHash>,
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Numeric adapter id.
    pub lora_id: Option<i64>,
    /// Adapter name.
    pub lora_name: Option<String>,
    /// Medium.
    pub medium: Option<String>,
    /// Extra keys, one list per block.
    pub extra_keys: Option<Vec<Option<Vec<OwnedExtraKey>>>>,
    /// Cache group.
    pub group: Option<u32>,
    /// Kind of the group.
    pub spec_kind: Option<String>,
    /// Sliding window of the group.
    pub sliding_window: Option<u32>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<String>,
    /// Owner among secondary tiers.
    pub ownership: Option<String>,
    /// Attribution.
    pub session_id: Option<String>,
}

/// Copies of blocks went away.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OwnedRemoved {
    /// The blocks.
    pub block_hashes: Vec<OwnedHash>,
    /// Medium.
    pub medium: Option<String>,
    /// Cache group.
    pub group: Option<u32>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<String>,
    /// Owner among secondary tiers.
    pub ownership: Option<String>,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedEvent {
    /// Blocks became resident.
    Stored(OwnedStored),
    /// Copies went away.
    Removed(OwnedRemoved),
    /// Everything was dropped.
    Cleared,
}
