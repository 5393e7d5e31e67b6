//! What a request asks for and gets, and the truth about what it leaves.

use crate::cache::{Copies, GroupState};
use crate::keys::{Image, Keys};
use crate::pool::Report;

/// How a request differs from a plain one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionOptions {
    /// The rank to run on; in turn without.
    pub rank: Option<u32>,
    /// Cache salt.
    pub cache_salt: Option<String>,
    /// Adapter name.
    pub lora: Option<String>,
    /// Images in the prompt.
    pub images: Vec<Image>,
    /// Digest of prompt embeddings.
    pub embeddings: Option<Vec<u8>>,
    /// What its events tell of what was found for it.
    pub report: Report,
}

impl CompletionOptions {
    /// What makes its blocks differ from those of a plain request.
    pub fn keys(&self) -> Keys {
        Keys {
            lora: self.lora.clone(),
            salt: self.cache_salt.clone(),
            images: self.images.clone(),
            embeddings: self.embeddings.clone(),
        }
    }
}

/// What a request got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionResult {
    /// The rank that ran it.
    pub rank: u32,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub output: Vec<u32>,
}

/// The truth about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankState {
    /// The rank.
    pub rank: u32,
    /// Sequence of the next batch.
    pub next_sequence: u64,
    /// Blocks on the device, of all groups together: the 64 bits of each hash, and its copies.
    pub blocks: Copies,
    /// The same for the host tier, where there is one.
    pub host_blocks: Copies,
    /// The same for each group.
    pub groups: Vec<GroupState>,
    /// Requests in progress.
    pub running: usize,
}
