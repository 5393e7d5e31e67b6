//! From events to the bytes that a vLLM of some version would send.
//!
//! The encoder stands in for msgspec: arrays are as long as their version's struct, with nil for what is
//! absent; maps begin with `type`, keep the order of declaration, and leave out a field that has its
//! default. What a version does not know is not sent.

mod profile;

#[cfg(test)]
mod tests;

use crate::msgpack::Writer;
use crate::owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};

pub use self::profile::{Profile, UnknownProfile};

/// Encodes one batch as the profile's engine does.
pub fn encode_batch(profile: Profile, timestamp: f64, rank: Option<u32>, events: &[OwnedEvent]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(if profile.batch_has_rank() { 3 } else { 2 });
    writer.double(timestamp);
    writer.array(events.len());
    for event in events {
        encode_event(profile, event, &mut writer);
    }
    if profile.batch_has_rank() {
        match rank {
            Some(rank) => writer.unsigned(u64::from(rank)),
            None => writer.nil(),
        }
    }
    writer.into_bytes()
}

/// Appends one event as the profile's engine writes it.
pub fn encode_event(profile: Profile, event: &OwnedEvent, writer: &mut Writer) {
    let (tag, fields) = match event {
        OwnedEvent::Stored(stored) => ("BlockStored", stored_fields(profile, stored)),
        OwnedEvent::Removed(removed) => ("BlockRemoved", removed_fields(profile, removed)),
        OwnedEvent::Cleared => ("AllBlocksCleared", Vec::new()),
    };
    if profile.events_are_maps() {
        let sent = || fields.iter().filter(|field| field.always || !field.value.is_nil());
        writer.map(1 + sent().count());
        writer.text("type");
        writer.text(tag);
        for field in sent() {
            writer.text(field.name);
            field.value.write(writer);
        }
    } else {
        writer.array(1 + fields.len());
        writer.text(tag);
        for field in &fields {
            field.value.write(writer);
        }
    }
}

/// A field that the profile's struct declares.
struct Field<'e> {
    name: &'static str,
    /// Without a default, so never left out.
    always: bool,
    value: Value<'e>,
}

enum Value<'e> {
    Nil,
    Hash(&'e OwnedHash),
    Hashes(&'e [OwnedHash]),
    Tokens(&'e [u32]),
    Unsigned(u64),
    Signed(i64),
    Text(&'e str),
    ExtraKeys(&'e [Option<Vec<OwnedExtraKey>>]),
}

fn stored_fields(profile: Profile, stored: &OwnedStored) -> Vec<Field<'_>> {
    let extra_keys = stored.extra_keys.as_deref().map_or(Value::Nil, Value::ExtraKeys);
    let mut fields = vec![
        required("block_hashes", Value::Hashes(&stored.block_hashes)),
        required("parent_block_hash", stored.parent.as_ref().map_or(Value::Nil, Value::Hash)),
        required("token_ids", Value::Tokens(&stored.token_ids)),
        required("block_size", Value::Unsigned(u64::from(stored.block_size))),
        required("lora_id", stored.lora_id.map_or(Value::Nil, Value::Signed)),
        required("medium", text(stored.medium.as_deref())),
        required("lora_name", text(stored.lora_name.as_deref())),
        optional("extra_keys", extra_keys),
        optional("group_idx", number(stored.group)),
        optional("kv_cache_spec_kind", text(stored.spec_kind.as_deref())),
        optional("kv_cache_spec_sliding_window", number(stored.sliding_window)),
        optional("locality", text(stored.locality.as_deref())),
        optional("ownership", text(stored.ownership.as_deref())),
        optional("session_id", text(stored.session_id.as_deref())),
    ];
    fields.truncate(profile.stored_fields());
    fields
}

fn removed_fields(profile: Profile, removed: &OwnedRemoved) -> Vec<Field<'_>> {
    let mut fields = vec![
        required("block_hashes", Value::Hashes(&removed.block_hashes)),
        required("medium", text(removed.medium.as_deref())),
        optional("group_idx", number(removed.group)),
        optional("locality", text(removed.locality.as_deref())),
        optional("ownership", text(removed.ownership.as_deref())),
    ];
    fields.truncate(profile.removed_fields());
    fields
}

fn required<'e>(name: &'static str, value: Value<'e>) -> Field<'e> {
    Field { name, always: true, value }
}

fn optional<'e>(name: &'static str, value: Value<'e>) -> Field<'e> {
    Field { name, always: false, value }
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
        }
    }
}

fn write_hash(hash: &OwnedHash, writer: &mut Writer) {
    match hash {
        OwnedHash::Unsigned(value) => writer.unsigned(*value),
        OwnedHash::Signed(value) => writer.signed(*value),
        OwnedHash::Bytes(bytes) => writer.binary(bytes),
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
