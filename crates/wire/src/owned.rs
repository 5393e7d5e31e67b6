//! Events that own their parts: what encoders take. Used by the simulator, the republisher and tests.

use kvplane_core::BlockKey;

use crate::event::{Batch, Event, ExtraKey, Removed, Stored};
use crate::hash::Hash;

/// A block hash as an engine would send it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OwnedHash {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer (old vLLM, `SGLang`); positive ones encode like unsigned ones.
    Signed(i64),
    /// A 16- or 32-byte digest.
    Bytes(Vec<u8>),
    /// A digest that is sent as hexadecimal digits (TensorRT-LLM).
    Hex(Vec<u8>),
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

impl OwnedExtraKey {
    /// The key as it is hashed.
    pub fn as_block_key(&self) -> BlockKey<'_> {
        match self {
            Self::Text(text) => BlockKey::Text(text),
            Self::Bytes(bytes) => BlockKey::Bytes(bytes),
            Self::Integer(number) => BlockKey::Integer(*number),
            Self::Multimodal(id, offset) => BlockKey::Multimodal { id, offset: *offset },
        }
    }
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
    /// Whether each position is a pair of ids, one after the other in `token_ids` (EAGLE in `SGLang`).
    pub bigrams: bool,
    /// Tokens per block.
    pub block_size: u32,
    /// Numeric adapter id.
    pub lora_id: Option<i64>,
    /// Adapter name.
    pub lora_name: Option<String>,
    /// Cache salt, where the engine sends it as a field (`SGLang`).
    pub cache_salt: Option<String>,
    /// Medium.
    pub medium: Option<String>,
    /// Extra keys, one list per block. TensorRT-LLM sends the multimodal items among them.
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
#[allow(clippy::large_enum_variant, reason = "most events are stores: a box would only add an allocation")]
pub enum OwnedEvent {
    /// Blocks became resident.
    Stored(OwnedStored),
    /// Copies went away.
    Removed(OwnedRemoved),
    /// Everything was dropped.
    Cleared,
}

impl OwnedEvent {
    /// A decoded event with its parts copied out of the batch.
    ///
    /// `None` for events that were rejected or are of an unknown kind, and for what no encoder writes: a
    /// store with extra keys of an unknown shape; a removal from wherever the blocks lie; moves. A token that
    /// was a text comes back as an extra key.
    pub fn from_decoded<'f>(batch: &Batch<'_, 'f>, event: &Event<'f>) -> Option<Self> {
        match event {
            Event::Stored(stored) => own_stored(batch, stored).map(Self::Stored),
            Event::Removed(removed) if removed.anywhere => None,
            Event::Removed(removed) => Some(Self::Removed(own_removed(batch, removed))),
            Event::Cleared { .. } => Some(Self::Cleared),
            Event::Moved(_) | Event::Created(_) | Event::Unknown { .. } | Event::Rejected(_) => None,
        }
    }
}

fn own_stored<'f>(batch: &Batch<'_, 'f>, stored: &Stored<'f>) -> Option<OwnedStored> {
    let lists = stored.extra_keys.clone().map(|ranges| &batch.extra_ranges[ranges]);
    let own_list = |keys: &[ExtraKey<'f>]| -> Option<Option<Vec<OwnedExtraKey>>> {
        let keys = keys.iter().map(own_key).collect::<Option<Vec<_>>>()?;
        Some(Some(keys).filter(|keys| !keys.is_empty()))
    };
    let extra_keys = match lists {
        Some(lists) => Some(
            lists.iter().map(|range| own_list(&batch.extra_keys[range.clone()])).collect::<Option<_>>()?,
        ),
        None => None,
    };
    Some(OwnedStored {
        block_hashes: own_hashes(batch, batch.stored_hashes(stored)),
        parent: stored.parent.map(|parent| own_hash(batch, parent)),
        token_ids: batch.tokens(stored).ids().to_vec(),
        bigrams: stored.bigrams,
        block_size: stored.block_size,
        lora_id: stored.lora_id,
        lora_name: stored.lora_name.map(str::to_owned),
        cache_salt: stored.cache_salt.map(str::to_owned),
        medium: stored.medium.map(str::to_owned),
        extra_keys,
        group: stored.group,
        spec_kind: stored.spec_kind.map(str::to_owned),
        sliding_window: stored.sliding_window,
        locality: stored.locality.map(str::to_owned),
        ownership: stored.ownership.map(str::to_owned),
        session_id: stored.session_id.map(str::to_owned),
    })
}

fn own_removed<'f>(batch: &Batch<'_, 'f>, removed: &Removed<'f>) -> OwnedRemoved {
    OwnedRemoved {
        block_hashes: own_hashes(batch, batch.removed_hashes(removed)),
        medium: removed.medium.map(str::to_owned),
        group: removed.group,
        locality: removed.locality.map(str::to_owned),
        ownership: removed.ownership.map(str::to_owned),
    }
}

fn own_hashes(batch: &Batch<'_, '_>, hashes: &[Hash]) -> Vec<OwnedHash> {
    hashes.iter().map(|hash| own_hash(batch, *hash)).collect()
}

fn own_hash(batch: &Batch<'_, '_>, hash: Hash) -> OwnedHash {
    match batch.wide(hash) {
        Some(digest) if hash.hex => OwnedHash::Hex(digest.to_vec()),
        Some(digest) => OwnedHash::Bytes(digest.to_vec()),
        None if hash.negative => OwnedHash::Signed(hash.bits as i64),
        None => OwnedHash::Unsigned(hash.bits),
    }
}

pub(crate) fn own_key(key: &ExtraKey<'_>) -> Option<OwnedExtraKey> {
    Some(match *key {
        ExtraKey::Text(text) => OwnedExtraKey::Text(text.to_owned()),
        ExtraKey::Bytes(bytes) => OwnedExtraKey::Bytes(bytes.to_vec()),
        ExtraKey::Integer(number) => OwnedExtraKey::Integer(number),
        ExtraKey::Multimodal { id, offset } => OwnedExtraKey::Multimodal(id.to_owned(), offset),
        ExtraKey::Other(_) => return None,
    })
}
