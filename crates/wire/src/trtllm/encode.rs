//! From events to the JSON that a `TensorRT-LLM` server answers a drain with.
//!
//! Fields stand in the order of its serializer, without spaces. What a version does not send is left out.

use serde::Serialize;

/// One event, with its number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrtEvent {
    /// Its number among the events of its rank.
    pub event_id: u64,
    /// What happened.
    pub data: TrtData,
    /// The attention window of the pool; left out by the first versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_size: Option<u32>,
    /// The rank, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dp_rank: Option<u32>,
    /// How hashes are made; left out by the first cache manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_algo: Option<HashAlgo>,
    /// The layer group; left out by the first cache manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_group_id: Option<u32>,
}

/// A block's hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum TrtHash {
    /// 64 bits.
    Number(u64),
    /// A digest in hexadecimal digits.
    Digest(String),
}

/// How a server hashes blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub enum HashAlgo {
    /// A mix of 64 bits, as both cache managers have it.
    #[default]
    #[serde(rename = "v1_block_key")]
    V1BlockKey,
    /// SHA-256, written as 64 hexadecimal digits.
    #[serde(rename = "v2_sha256")]
    V2Sha256,
    /// The first 64 bits of SHA-256, written as a number.
    #[serde(rename = "v2_sha256_64")]
    V2Sha256Short,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TrtData {
    /// The cache came to be.
    Created {
        /// Blocks of each level.
        num_blocks_per_cache_level: Vec<u64>,
    },
    /// Blocks became resident, each the parent of the next.
    Stored {
        /// The block before the first.
        parent_hash: Option<TrtHash>,
        /// The blocks.
        blocks: Vec<TrtBlock>,
    },
    /// Blocks went away, from whatever level.
    Removed {
        /// The blocks.
        block_hashes: Vec<TrtHash>,
    },
    /// A block's level or priority changed.
    Updated {
        /// The block.
        block_hash: TrtHash,
        /// Its level.
        cache_level: Option<TrtDiff>,
        /// Its priority.
        priority: Option<TrtDiff>,
    },
}

/// A change of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "event_diff")]
pub struct TrtDiff {
    /// What it is now.
    pub new_value: u32,
    /// What it was.
    pub old_value: u32,
}

/// One stored block.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename = "stored_block")]
pub struct TrtBlock {
    /// Its hash.
    pub block_hash: TrtHash,
    /// Its tokens; fewer than others have in a partial block.
    pub tokens: Vec<TrtToken>,
    /// Its level: 0 is the device, 1 the host, 2 a disk.
    pub cache_level: u32,
    /// How long it is kept.
    pub priority: u32,
    /// Multimodal items that it has a part of.
    pub mm_keys: Vec<TrtMmKey>,
    /// Cache salt.
    pub cache_salt: Option<String>,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "unique_token")]
pub struct TrtToken {
    /// What it is.
    pub token_id: TrtTokenId,
    /// What makes it another token than its id says; 0 for nothing.
    pub token_extra_id: u64,
}

/// A token's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TrtTokenId {
    /// A number.
    Number(u32),
    /// A multimodal item's digest in hexadecimal digits.
    Digest(String),
}

/// A multimodal item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "mm_key")]
pub struct TrtMmKey {
    /// Its digest in hexadecimal digits, or the user's own name for it.
    pub hash: String,
    /// Where in the item the block begins.
    pub start_offset: u64,
    /// The user's own name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl From<u32> for TrtToken {
    fn from(id: u32) -> Self {
        Self { token_id: TrtTokenId::Number(id), token_extra_id: 0 }
    }
}

impl HashAlgo {
    /// The name, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1BlockKey => "v1_block_key",
            Self::V2Sha256 => "v2_sha256",
            Self::V2Sha256Short => "v2_sha256_64",
        }
    }
}

/// A drained body: the events as a list.
pub fn encode_events(events: &[TrtEvent]) -> Vec<u8> {
    // Nothing here can fail to be written into memory.
    serde_json::to_vec(events).unwrap_or_default()
}
