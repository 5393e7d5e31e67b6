//! Which fields an event has, by name and by position.

use crate::event::RejectedKind;

/// An event's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// A field of any kind of event. The order is the order in which faults are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
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
    /// TensorRT-LLM's multimodal items, one list per block.
    MultimodalKeys,
    /// `SGLang`'s map behind the medium, by position only.
    Metadata,
    /// What stands at that position: vLLM's adapter name, or the map.
    LoraNameOrMetadata,
}

// === impl Kind ===

impl Kind {
    pub(crate) fn of(tag: &[u8]) -> Option<Self> {
        match tag {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }

    /// The tag on the wire.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::Stored => "BlockStored",
            Self::Removed => "BlockRemoved",
            Self::Cleared => "AllBlocksCleared",
        }
    }

    /// The fields after the tag, where they are given by position.
    pub(crate) fn positions(self) -> &'static [Field] {
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
    pub(crate) fn known(self) -> u32 {
        match self {
            Self::Stored => u32::MAX,
            Self::Removed => {
                bits(&[Field::Hashes, Field::Medium, Field::Group, Field::Locality, Field::Ownership])
            }
            Self::Cleared => bits(&[Field::Ownership]),
        }
    }

    /// The fields without which there is no event. The parent may be nil but not absent: taking an absent
    /// one for the start of a prompt would be a guess.
    pub(crate) fn required(self) -> u32 {
        match self {
            Self::Stored => bits(&[Field::Hashes, Field::Parent, Field::Tokens, Field::BlockSize]),
            Self::Removed => bits(&[Field::Hashes]),
            Self::Cleared => 0,
        }
    }

    /// What a rejected event of this kind is: a clear is a removal of everything.
    pub(crate) fn rejected(self) -> RejectedKind {
        match self {
            Self::Stored => RejectedKind::Store,
            Self::Removed | Self::Cleared => RejectedKind::Removal,
        }
    }
}

// === impl Field ===

impl Field {
    /// How many fields there are.
    pub(crate) const COUNT: usize = 18;

    pub(crate) fn named(name: &[u8]) -> Option<Self> {
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
            b"mm_keys" => Self::MultimodalKeys,
            _ => return None,
        })
    }

    /// The key in a map. Fields that stand in arrays only have a name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hashes => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::Tokens => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName => "lora_name",
            Self::ExtraKeys => "extra_keys",
            Self::Group => "group_idx",
            Self::SpecKind => "kv_cache_spec_kind",
            Self::SlidingWindow => "kv_cache_spec_sliding_window",
            Self::Locality => "locality",
            Self::Ownership => "ownership",
            Self::SessionId => "session_id",
            Self::CacheSalt => "cache_salt",
            Self::MultimodalKeys => "mm_keys",
            Self::Metadata | Self::LoraNameOrMetadata => "metadata",
        }
    }

    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

fn bits(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |bits, field| bits | field.bit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let positions = Kind::Stored.positions().iter().copied();
        let by_name: Vec<_> = positions
            .chain([Field::LoraName, Field::CacheSalt, Field::MultimodalKeys])
            .filter(|field| *field != Field::LoraNameOrMetadata)
            .collect();
        for field in &by_name {
            assert_eq!(Field::named(field.name().as_bytes()), Some(*field));
        }
        assert_eq!(by_name.len(), Field::COUNT - 2);
        for kind in [Kind::Stored, Kind::Removed, Kind::Cleared] {
            assert_eq!(Kind::of(kind.tag().as_bytes()), Some(kind));
        }
    }
}
