//! What an engine said, borrowed from its frame: no event is lost, changed or guessed here.
//!
//! A decoded batch keeps its hashes and tokens in the decoder's reusable buffers and everything textual in
//! the frame; an event refers to ranges of both. So decoding allocates per batch, never per block.

use std::ops::Range;

use kvplane_core::BlockKey;

use crate::hash::Hash;

/// A store's token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens<'b> {
    /// One id per position. A position that was a text on the wire has id 0; the text is an extra key.
    Flat(&'b [u32]),
    /// EAGLE bigrams, two ids per position, one after the other.
    Bigrams(&'b [u32]),
}

impl<'b> Tokens<'b> {
    /// How many positions there are.
    pub fn positions(self) -> usize {
        match self {
            Self::Flat(ids) => ids.len(),
            Self::Bigrams(ids) => ids.len() / 2,
        }
    }

    /// The ids of `count` positions from `first`; `None` if they are not all there.
    pub fn slice(self, first: usize, count: usize) -> Option<&'b [u32]> {
        match self {
            Self::Flat(ids) => ids.get(first..first.checked_add(count)?),
            Self::Bigrams(ids) => ids.get(first.checked_mul(2)?..first.checked_add(count)?.checked_mul(2)?),
        }
    }

    /// The ids as they lie in memory.
    pub fn ids(self) -> &'b [u32] {
        match self {
            Self::Flat(ids) | Self::Bigrams(ids) => ids,
        }
    }
}

/// Something besides tokens that a block is made of: an entry of vLLM's `extra_keys` or of TensorRT-LLM's
/// `mm_keys`, or a text in the place of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExtraKey<'f> {
    /// Text: an adapter name, a cache salt, or something unknown.
    Text(&'f str),
    /// Bytes: a prompt-embedding digest.
    Bytes(&'f [u8]),
    /// A number.
    Integer(i64),
    /// A multimodal item and its offset relative to the block.
    Multimodal {
        /// The item's identity.
        id: &'f str,
        /// Offset of the item relative to the block's first token.
        offset: i64,
    },
    /// Anything else, as its msgpack bytes.
    Other(&'f [u8]),
}

impl<'f> ExtraKey<'f> {
    /// The key as it is hashed.
    pub fn as_block_key(self) -> BlockKey<'f> {
        match self {
            Self::Text(text) => BlockKey::Text(text),
            Self::Bytes(bytes) | Self::Other(bytes) => BlockKey::Bytes(bytes),
            Self::Integer(number) => BlockKey::Integer(number),
            Self::Multimodal { id, offset } => BlockKey::Multimodal { id, offset },
        }
    }
}

/// How a store's hashes lie on its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Every block has its tokens: hashes x block size = tokens.
    Dense,
    /// Tokens span more than the hashes: there are holes, and their places are not on the wire.
    Sparse,
    /// Hashes only: no tokens, or no block size.
    HashOnly,
}

/// Blocks became resident.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stored<'f> {
    pub(crate) hashes: Range<usize>,
    pub(crate) tokens: Range<usize>,
    pub(crate) bigrams: bool,
    /// Where the batch's ranges of extra keys lie, one per hash; `None` when the event had no such list.
    pub(crate) extra_keys: Option<Range<usize>>,
    /// The block before the first one; `None` at the start of a prompt, and for hash-only stores.
    pub parent: Option<Hash>,
    /// Tokens per block; 0 in a placeholder.
    pub block_size: u32,
    /// Deprecated numeric adapter id.
    pub lora_id: Option<i64>,
    /// Adapter name.
    pub lora_name: Option<&'f str>,
    /// Cache salt, where the engine sends it as a field (`SGLang`).
    pub cache_salt: Option<&'f str>,
    /// The medium as the engine names it.
    pub medium: Option<&'f str>,
    /// Cache group.
    pub group: Option<u32>,
    /// What the group's blocks are, as the engine names it.
    pub spec_kind: Option<&'f str>,
    /// The group's sliding window.
    pub sliding_window: Option<u32>,
    /// `LOCAL`, `REMOTE` or another word.
    pub locality: Option<&'f str>,
    /// Which secondary tier owns the copy.
    pub ownership: Option<&'f str>,
    /// Attribution only, not part of the block's identity.
    pub session_id: Option<&'f str>,
}

impl Stored<'_> {
    /// Whether it says what its blocks are made of beside tokens, be it nothing. Some stores leave that out.
    pub fn names_keys(&self) -> bool {
        self.extra_keys.is_some()
    }
}

/// Copies of blocks went away.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed<'f> {
    pub(crate) hashes: Range<usize>,
    /// The medium as the engine names it.
    pub medium: Option<&'f str>,
    /// The engine does not say from where: wherever the group has the blocks.
    pub anywhere: bool,
    /// Cache group.
    pub group: Option<u32>,
    /// `LOCAL`, `REMOTE` or another word.
    pub locality: Option<&'f str>,
    /// Which secondary tier owns the copy.
    pub ownership: Option<&'f str>,
}

/// One block's change of level.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved<'f> {
    /// The block.
    pub hash: Hash,
    /// The medium that it leaves.
    pub from: &'f str,
    /// The medium that it is on from now on.
    pub to: &'f str,
    /// Cache group.
    pub group: Option<u32>,
    /// The group's attention window.
    pub window: Option<u32>,
}

/// A pool of blocks that came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// How many blocks the device has.
    pub device_blocks: u64,
    /// How many all other levels have.
    pub other_blocks: u64,
    /// Cache group.
    pub group: Option<u32>,
    /// The group's attention window.
    pub window: Option<u32>,
}

/// One event, in the order in which the engine sent it.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'f> {
    /// Blocks became resident.
    Stored(Stored<'f>),
    /// Copies of blocks went away.
    Removed(Removed<'f>),
    /// Everything was dropped (what "everything" is depends on the engine).
    Cleared {
        /// Which secondary tier was cleared, where the engine says so.
        ownership: Option<&'f str>,
    },
    /// A block moved between levels of the engine's cache, in one step.
    Moved(Moved<'f>),
    /// The engine's cache came to be: the first event of a life.
    Created(Created),
    /// An event of a kind that this build does not know; skipped.
    Unknown {
        /// The kind's name as sent.
        kind: &'f str,
    },
    /// An event that could not be read; skipped by itself.
    Rejected(Rejected),
}

/// What kind of event was rejected. Decides what that does to trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectedKind {
    /// A store: blocks are missing from now on.
    Store,
    /// A removal: blocks may be phantoms from now on.
    Removal,
    /// Its kind could not be read.
    Unknown,
}

impl RejectedKind {
    /// The word for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Removal => "removal",
            Self::Unknown => "unknown",
        }
    }
}

/// An event that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejected {
    /// What it would have been.
    pub kind: RejectedKind,
    /// What is wrong with it: a short stable word for counters and logs.
    pub reason: RejectReason,
}

/// Why an event was rejected. Stable words: they are metric labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// Neither an array nor a map with a kind.
    NoKind,
    /// Fewer elements than the kind needs, or a required key is absent.
    MissingField,
    /// A hash is nil, too long, or of an invalid type.
    BadHash,
    /// A token id is negative, too large or not a number.
    BadToken,
    /// Tokens without a positive block size, or an invalid size.
    BadBlockSize,
    /// More tokens are needed for the hashes than there are.
    TooFewTokens,
    /// A field has a type that it cannot have, or a list does not match the blocks.
    BadType,
    /// A name, a salt or a key is longer than any that is kept.
    NameTooLong,
}

/// The longest name, salt or extra key that an event may have: what an engine calls things is kept for as
/// long as it holds blocks of them.
pub const MAX_NAME: usize = 1024;

/// A name that is kept, unless it is too long.
pub(crate) fn bounded(name: &str) -> Result<&str, RejectReason> {
    if name.len() <= MAX_NAME { Ok(name) } else { Err(RejectReason::NameTooLong) }
}

impl RejectReason {
    /// The word for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoKind => "no_kind",
            Self::MissingField => "missing_field",
            Self::BadHash => "bad_hash",
            Self::BadToken => "bad_token",
            Self::BadBlockSize => "bad_block_size",
            Self::TooFewTokens => "too_few_tokens",
            Self::BadType => "bad_type",
            Self::NameTooLong => "name_too_long",
        }
    }
}

/// A whole message could not be read (to its end).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the message does.
    #[error("message ends early")]
    Truncated,
    /// A byte that no msgpack value begins with.
    #[error("not msgpack")]
    NotMsgpack,
    /// Bytes that no JSON has at that place.
    #[error("not JSON")]
    NotJson,
    /// A field that no protobuf message has.
    #[error("not protobuf")]
    NotProtobuf,
    /// The message is not `[timestamp, events, …]`.
    #[error("not an event batch")]
    NotABatch,
    /// Bytes follow the batch.
    #[error("bytes after the batch")]
    TrailingBytes,
}

impl DecodeError {
    /// The word for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::NotMsgpack => "not_msgpack",
            Self::NotJson => "not_json",
            Self::NotProtobuf => "not_protobuf",
            Self::NotABatch => "not_a_batch",
            Self::TrailingBytes => "trailing_bytes",
        }
    }
}

/// One published message, decoded. Borrows its frame (`'f`) and its decoder's buffers (`'d`).
#[derive(Debug)]
pub struct Batch<'d, 'f> {
    /// The publisher's wall clock, seconds; 0 in a dialect that has none.
    pub timestamp: f64,
    /// The data-parallel rank that the publisher wrote into the batch, or into its last event.
    pub rank: Option<i64>,
    /// The events, in order.
    pub events: Vec<Event<'f>>,
    /// How many unknown or repeated keys and trailing elements were passed over.
    pub unknown_fields: u32,
    /// Set when the message broke off: `events` holds what came before.
    pub broken: Option<DecodeError>,
    pub(crate) hashes: &'d [Hash],
    pub(crate) tokens: &'d [u32],
    /// Digests that were sent as bytes or as hexadecimal digits, one after the other.
    pub(crate) digests: &'d [u8],
    pub(crate) extra_keys: Vec<ExtraKey<'f>>,
    /// For each hash of a store that has extra keys: the range of its keys in `extra_keys`.
    pub(crate) extra_ranges: &'d [Range<usize>],
}

impl<'d, 'f> Batch<'d, 'f> {
    /// The hashes of a store.
    pub fn stored_hashes(&self, stored: &Stored<'f>) -> &'d [Hash] {
        &self.hashes[stored.hashes.clone()]
    }

    /// The hashes of a removal.
    pub fn removed_hashes(&self, removed: &Removed<'f>) -> &'d [Hash] {
        &self.hashes[removed.hashes.clone()]
    }

    /// The tokens of a store.
    pub fn tokens(&self, stored: &Stored<'f>) -> Tokens<'d> {
        let ids = &self.tokens[stored.tokens.clone()];
        if stored.bigrams { Tokens::Bigrams(ids) } else { Tokens::Flat(ids) }
    }

    /// How a store's hashes lie on its tokens.
    pub fn layout(&self, stored: &Stored<'f>) -> Layout {
        let positions = self.tokens(stored).positions();
        let covered = stored.hashes.len() * stored.block_size as usize;
        if stored.block_size == 0 || positions == 0 {
            Layout::HashOnly
        } else if covered == positions {
            Layout::Dense
        } else {
            Layout::Sparse
        }
    }

    /// The extra keys of a store's `index`th block; empty when it has none.
    pub fn extra_keys(&self, stored: &Stored<'f>, index: usize) -> &[ExtraKey<'f>] {
        let ranges = stored.extra_keys.clone().map_or(&[][..], |ranges| &self.extra_ranges[ranges]);
        ranges.get(index).map_or(&[], |range| &self.extra_keys[range.clone()])
    }

    /// The whole digest of a hash that was sent as bytes, or as hexadecimal digits.
    pub fn wide(&self, hash: Hash) -> Option<&'d [u8]> {
        let start = hash.wide_start as usize;
        if hash.is_wide() { self.digests.get(start..start + usize::from(hash.wide_len)) } else { None }
    }
}
