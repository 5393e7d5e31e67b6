//! From events to the bytes that an engine of some version would send.
//!
//! The encoder stands in for msgspec: a field that its struct declares is written in the order of
//! declaration, by position or by name, with nil for what is absent; maps begin with `type`. Which fields
//! those are, and which are left out instead, is the [profile's](profile) table. What a version does not know
//! is not sent.

mod profile;

#[cfg(test)]
mod tests;

use crate::field::{Field, Kind};
use crate::msgpack::Writer;
use crate::owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};

use self::profile::{Declared, Shape};
pub use self::profile::{Profile, UnknownProfile};

/// Encodes one batch as the profile's engine does.
pub fn encode_batch(profile: Profile, timestamp: f64, rank: Option<u32>, events: &[OwnedEvent]) -> Vec<u8> {
    encode_shaped(profile.shape(), timestamp, rank, events)
}

/// Encodes one batch as the newest vLLM does, and with each salted store its salt as a field, which vLLM does
/// not send and its listeners pass over or know from other engines.
pub fn encode_republished(timestamp: f64, rank: u32, events: &[OwnedEvent]) -> Vec<u8> {
    encode_shaped(&profile::REPUBLISHED, timestamp, Some(rank), events)
}

fn encode_shaped(shape: &Shape, timestamp: f64, rank: Option<u32>, events: &[OwnedEvent]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(if shape.batch_has_rank { 3 } else { 2 });
    writer.double(timestamp);
    writer.array(events.len());
    for event in events {
        write_event(shape, event, &mut writer);
    }
    if shape.batch_has_rank {
        match rank {
            Some(rank) => writer.unsigned(u64::from(rank)),
            None => writer.nil(),
        }
    }
    writer.into_bytes()
}

/// Appends one event as the profile's engine writes it.
pub fn encode_event(profile: Profile, event: &OwnedEvent, writer: &mut Writer) {
    write_event(profile.shape(), event, writer);
}

fn write_event(shape: &Shape, event: &OwnedEvent, writer: &mut Writer) {
    let (kind, declared): (_, &[Declared]) = match event {
        OwnedEvent::Stored(_) => (Kind::Stored, shape.stored),
        OwnedEvent::Removed(_) => (Kind::Removed, shape.removed),
        OwnedEvent::Cleared => (Kind::Cleared, &[]),
    };
    let value = |field| match event {
        OwnedEvent::Stored(stored) => stored_value(stored, field),
        OwnedEvent::Removed(removed) => removed_value(removed, field),
        OwnedEvent::Cleared => Value::Nil,
    };
    let sent = || {
        declared
            .iter()
            .map(|declared| (declared, value(declared.field)))
            .filter(|(declared, value)| !(declared.omitted_when_nil && value.is_nil()))
    };
    if shape.events_are_maps {
        writer.map(1 + sent().count());
        writer.text("type");
        writer.text(kind.tag());
        for (declared, value) in sent() {
            writer.text(declared.field.name());
            value.write(writer);
        }
    } else {
        writer.array(1 + sent().count());
        writer.text(kind.tag());
        for (_, value) in sent() {
            value.write(writer);
        }
    }
}

enum Value<'e> {
    Nil,
    Hash(&'e OwnedHash),
    Hashes(&'e [OwnedHash]),
    Tokens(&'e [u32]),
    Bigrams(&'e [u32]),
    Unsigned(u64),
    Signed(i64),
    Text(&'e str),
    ExtraKeys(&'e [Option<Vec<OwnedExtraKey>>]),
    MultimodalKeys(&'e [Option<Vec<OwnedExtraKey>>]),
    /// A map with the salt.
    Metadata(&'e str),
}

fn stored_value(stored: &OwnedStored, field: Field) -> Value<'_> {
    match field {
        Field::Hashes => Value::Hashes(&stored.block_hashes),
        Field::Parent => stored.parent.as_ref().map_or(Value::Nil, Value::Hash),
        Field::Tokens if stored.bigrams => Value::Bigrams(&stored.token_ids),
        Field::Tokens => Value::Tokens(&stored.token_ids),
        Field::BlockSize => Value::Unsigned(u64::from(stored.block_size)),
        Field::LoraId => stored.lora_id.map_or(Value::Nil, Value::Signed),
        Field::Medium => text(stored.medium.as_deref()),
        Field::LoraName => text(stored.lora_name.as_deref()),
        Field::ExtraKeys => stored.extra_keys.as_deref().map_or(Value::Nil, Value::ExtraKeys),
        Field::Group => number(stored.group),
        Field::SpecKind => text(stored.spec_kind.as_deref()),
        Field::SlidingWindow => number(stored.sliding_window),
        Field::Locality => text(stored.locality.as_deref()),
        Field::Ownership => text(stored.ownership.as_deref()),
        Field::SessionId => text(stored.session_id.as_deref()),
        Field::CacheSalt => text(stored.cache_salt.as_deref()),
        Field::MultimodalKeys => stored.extra_keys.as_deref().map_or(Value::Nil, Value::MultimodalKeys),
        Field::Metadata | Field::LoraNameOrMetadata => {
            stored.cache_salt.as_deref().map_or(Value::Nil, Value::Metadata)
        }
    }
}

fn removed_value(removed: &OwnedRemoved, field: Field) -> Value<'_> {
    match field {
        Field::Hashes => Value::Hashes(&removed.block_hashes),
        Field::Medium => text(removed.medium.as_deref()),
        Field::Group => number(removed.group),
        Field::Locality => text(removed.locality.as_deref()),
        Field::Ownership => text(removed.ownership.as_deref()),
        _ => Value::Nil,
    }
}

fn text(text: Option<&str>) -> Value<'_> {
    text.map_or(Value::Nil, Value::Text)
}

fn number<'e>(number: Option<u32>) -> Value<'e> {
    number.map_or(Value::Nil, |number| Value::Unsigned(u64::from(number)))
}

// === impl Value ===

impl Value<'_> {
    fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Nil => writer.nil(),
            Self::Hash(hash) => write_hash(hash, writer),
            Self::Hashes(hashes) => {
                writer.array(hashes.len());
                hashes.iter().for_each(|hash| write_hash(hash, writer));
            }
            Self::Tokens(ids) => {
                writer.array(ids.len());
                ids.iter().for_each(|id| writer.unsigned(u64::from(*id)));
            }
            Self::Bigrams(ids) => {
                let pairs = ids.chunks_exact(2);
                writer.array(pairs.len());
                for pair in pairs {
                    writer.array(2);
                    for id in pair {
                        writer.unsigned(u64::from(*id));
                    }
                }
            }
            Self::Unsigned(value) => writer.unsigned(*value),
            Self::Signed(value) => writer.signed(*value),
            Self::Text(text) => writer.text(text),
            Self::ExtraKeys(blocks) => {
                writer.array(blocks.len());
                for keys in *blocks {
                    match keys {
                        Some(keys) => write_keys(keys, writer),
                        None => writer.nil(),
                    }
                }
            }
            Self::MultimodalKeys(blocks) => {
                writer.array(blocks.len());
                blocks.iter().for_each(|keys| write_items(keys.as_deref().unwrap_or_default(), writer));
            }
            Self::Metadata(salt) => {
                writer.map(1);
                writer.text(Field::CacheSalt.name());
                writer.text(salt);
            }
        }
    }
}

fn write_hash(hash: &OwnedHash, writer: &mut Writer) {
    match hash {
        OwnedHash::Unsigned(value) => writer.unsigned(*value),
        OwnedHash::Signed(value) => writer.signed(*value),
        OwnedHash::Bytes(bytes) => writer.binary(bytes),
        OwnedHash::Hex(bytes) => {
            writer.text(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
    }
}

/// A block's multimodal items as TensorRT-LLM lists them; it has no other keys.
fn write_items(keys: &[OwnedExtraKey], writer: &mut Writer) {
    let items = || {
        keys.iter().filter_map(|key| match key {
            OwnedExtraKey::Multimodal(id, offset) => Some((id, *offset)),
            _ => None,
        })
    };
    writer.array(items().count());
    for (id, offset) in items() {
        writer.map(3);
        writer.text("type");
        writer.text("mm_key");
        writer.text("hash");
        writer.text(id);
        writer.text("start_offset");
        writer.signed(offset);
    }
}

fn write_keys(keys: &[OwnedExtraKey], writer: &mut Writer) {
    writer.array(keys.len());
    for key in keys {
        match key {
            OwnedExtraKey::Text(text) => writer.text(text),
            OwnedExtraKey::Bytes(bytes) => writer.binary(bytes),
            OwnedExtraKey::Integer(value) => writer.signed(*value),
            OwnedExtraKey::Multimodal(id, offset) => {
                writer.array(2);
                writer.text(id);
                writer.signed(*offset);
            }
        }
    }
}
