//! Which fields an event has, by name and by position.

use crate::event::RejectedKind;

/// An event's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// A field of any kind of event. The order is the order in which faults are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    SlidingWindow,
    Locality,
    Ownership,
    SessionId,
    CacheSalt,
    /// vLLM's adapter name, or `SGLang`'s map with a cache salt: both stand at the same position.
    LoraNameOrMetadata,
}

// === impl Kind ===

impl Kind {
    pub(super) fn of(tag: &[u8]) -> Option<Self> {
        match tag {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }

    /// The fields after the tag, where they are told by position.
    pub(super) fn positions(self) -> &'static [Field] {
        match self {
            Self::Stored => &[
                Field::Hashes,
                Field::Parent,
                Field::Tokens,
                Field::BlockSize,
                Field::LoraId,
                Field::Medium,
                Field::LoraNameOrMetadata,
                Field::ExtraKeys,
                Field::Group,
                Field::SpecKind,
                Field::SlidingWindow,
                Field::Locality,
                Field::Ownership,
                Field::SessionId,
            ],
            Self::Removed => &[Field::Hashes, Field::Medium, Field::Group, Field::Locality, Field::Ownership],
            Self::Cleared => &[Field::Ownership],
        }
    }

    /// The fields that the kind has, as bits.
    pub(super) fn known(self) -> u16 {
        match self {
            Self::Stored => u16::MAX,
            Self::Removed => {
                bits(&[Field::Hashes, Field::Medium, Field::Group, Field::Locality, Field::Ownership])
            }
            Self::Cleared => bits(&[Field::Ownership]),
        }
    }

    /// The fields without which there is no event. The parent may be nil but not absent: taking an absent
    /// one for the start of a prompt would be a guess.
    pub(super) fn required(self) -> u16 {
        match self {
            Self::Stored => bits(&[Field::Hashes, Field::Parent, Field::Tokens, Field::BlockSize]),
            Self::Removed => bits(&[Field::Hashes]),
            Self::Cleared => 0,
        }
    }

    /// What a rejected event of this kind is: a clear is a removal of everything.
    pub(super) fn rejected(self) -> RejectedKind {
        match self {
            Self::Stored => RejectedKind::Store,
            Self::Removed | Self::Cleared => RejectedKind::Removal,
        }
    }
}

// === impl Field ===

impl Field {
    /// How many fields there are.
    pub(super) const COUNT: usize = 16;

    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::SpecKind,
            b"kv_cache_spec_sliding_window" => Self::SlidingWindow,
            b"locality" => Self::Locality,
            b"ownership" => Self::Ownership,
            b"session_id" => Self::SessionId,
            b"cache_salt" => Self::CacheSalt,
            _ => return None,
        })
    }

    pub(super) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

fn bits(fields: &[Field]) -> u16 {
    fields.iter().fold(0, |bits, field| bits | field.bit())
}
