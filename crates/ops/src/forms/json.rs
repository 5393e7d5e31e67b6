//! Messages as JSON, by their contract: with the names of fields, and with those that are zero.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MapKey, MessageDescriptor, ReflectMessage as _, Value};
use serde_json::{Map, Number, Value as Json};

/// More values than any engine says of itself. A megabyte of empty messages must not become a gigabyte of
/// JSON.
const MAX_VALUES: usize = 1 << 16;

static CONTRACTS: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(kvplane_proto::DESCRIPTORS).ok());

/// The response of a method; `None` if the bytes are none, or there is too much of it.
pub(super) fn of_response(service: &str, method: &str, message: &[u8]) -> Option<Json> {
    let service = CONTRACTS.as_ref()?.get_service_by_name(service)?;
    let response = service.methods().find(|found| found.name() == method)?.output();
    let message = DynamicMessage::decode(response, message).ok()?;
    Writer { left: MAX_VALUES }.message(&message)
}

struct Writer {
    /// How many values may still be written.
    left: usize,
}

impl Writer {
    fn message(&mut self, message: &DynamicMessage) -> Option<Json> {
        let kind = message.descriptor();
        match kind.full_name() {
            "google.protobuf.Struct" => self.value(message.get_field_by_name("fields")?.as_ref()),
            "google.protobuf.ListValue" => self.value(message.get_field_by_name("values")?.as_ref()),
            "google.protobuf.Value" => self.any(message),
            "google.protobuf.Timestamp" => Some(seconds(message)),
            _ => self.fields(&kind, message),
        }
    }

    fn fields(&mut self, kind: &MessageDescriptor, message: &DynamicMessage) -> Option<Json> {
        let mut json = Map::new();
        for field in kind.fields() {
            // What is absent, where zero means something else, is left out.
            if field.supports_presence() && !message.has_field(&field) {
                continue;
            }
            json.insert(field.name().to_owned(), self.value(message.get_field(&field).as_ref())?);
        }
        Some(json.into())
    }

    /// A `google.protobuf.Value` is whichever of its fields is set.
    fn any(&mut self, message: &DynamicMessage) -> Option<Json> {
        match message.fields().next() {
            Some((field, _)) if field.name() == "null_value" => Some(Json::Null),
            Some((_, value)) => self.value(value),
            None => Some(Json::Null),
        }
    }

    fn value(&mut self, value: &Value) -> Option<Json> {
        self.left = self.left.checked_sub(1)?;
        Some(match value {
            Value::Bool(flag) => (*flag).into(),
            Value::I32(number) | Value::EnumNumber(number) => (*number).into(),
            Value::I64(number) => (*number).into(),
            Value::U32(number) => (*number).into(),
            Value::U64(number) => (*number).into(),
            Value::F32(number) => float(f64::from(*number)),
            Value::F64(number) => float(*number),
            Value::String(text) => text.clone().into(),
            Value::Bytes(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
            Value::Message(message) => self.message(message)?,
            Value::List(list) => {
                list.iter().map(|value| self.value(value)).collect::<Option<Vec<_>>>()?.into()
            }
            Value::Map(map) => {
                // In the order of keys: the map has none.
                let mut entries: Vec<_> = map.iter().map(|(name, value)| (key(name), value)).collect();
                entries.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
                let mut json = Map::new();
                for (name, value) in entries {
                    json.insert(name, self.value(value)?);
                }
                json.into()
            }
        })
    }
}

/// JSON has no infinity.
fn float(number: f64) -> Json {
    // A `Struct` has no integers either: numbers that are whole are shown as such.
    const EXACT: f64 = (1_u64 << 53) as f64;
    if number.fract() == 0.0 && number.abs() < EXACT {
        return (number as i64).into();
    }
    Number::from_f64(number).map_or(Json::Null, Json::Number)
}

fn key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(flag) => flag.to_string(),
        MapKey::I32(number) => number.to_string(),
        MapKey::I64(number) => number.to_string(),
        MapKey::U32(number) => number.to_string(),
        MapKey::U64(number) => number.to_string(),
        MapKey::String(text) => text.clone(),
    }
}

/// A moment, in seconds since 1970.
fn seconds(timestamp: &DynamicMessage) -> Json {
    let whole = timestamp.get_field_by_name("seconds").and_then(|value| value.as_i64()).unwrap_or(0);
    let nanos = timestamp.get_field_by_name("nanos").and_then(|value| value.as_i32()).unwrap_or(0);
    float(whole as f64 + f64::from(nanos) / 1e9)
}
