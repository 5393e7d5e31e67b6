//! The configuration's schema, from its types: for editors that check files, for the page of keys, and to
//! tell numbers from text where a layer has no types.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};
use serde_json::Value;

use super::Config;
use super::units::ByteSize;

/// JSON Schema of the whole tree.
pub(crate) fn schema() -> Schema {
    schema_for!(Config)
}

/// Keys whose values are numbers, or true and false; all others are text, also where they look like numbers.
pub(super) fn is_unquoted(key: &str) -> bool {
    static KEYS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let schema = schema();
        let tables = schema.as_value().get("$defs").and_then(Value::as_object).into_iter().flatten();
        let tables = tables.filter_map(|(_, table)| table.get("properties")?.as_object());
        let keys = tables.flatten().filter(|(_, property)| has_plain_type(property));
        keys.map(|(key, _)| key.clone()).collect()
    });
    KEYS.contains(key)
}

/// Whether a value is a number, or true or false, and nothing else but absent.
fn has_plain_type(property: &Value) -> bool {
    let plain = |name: &Value| matches!(name.as_str(), Some("integer" | "number" | "boolean"));
    match property.get("type") {
        Some(Value::Array(names)) => {
            let mut names = names.iter().filter(|name| name.as_str() != Some("null"));
            names.all(plain)
        }
        Some(name) => plain(name),
        None => false,
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Bytes, as a number or as text with B, KiB, MiB or GiB.",
            "type": ["string", "integer"],
            "pattern": "^ *[0-9]+ *(B|KiB|MiB|GiB)? *$",
            "minimum": 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinguished_from_text() {
        for key in [
            "max_batches",
            "ranks",
            "eagle",
            "device_only",
            "offload_chunk",
            "front_open",
            "routing_floor_score",
        ] {
            assert!(is_unquoted(key), "{key}");
        }
        for key in ["model", "events", "max_bytes", "ttl", "credit", "tls", "kind", "http"] {
            assert!(!is_unquoted(key), "{key}");
        }
    }

    #[test]
    fn no_name_is_a_number_here_and_text_there() {
        let schema = schema();
        let tables = schema.as_value()["$defs"].as_object().unwrap();
        for (name, table) in tables {
            for (key, property) in table.get("properties").and_then(Value::as_object).into_iter().flatten() {
                // A list is in brackets, and read alike under any name.
                if property["type"] == "array" {
                    continue;
                }
                assert_eq!(has_plain_type(property), is_unquoted(key), "{name}.{key}");
            }
        }
    }

    #[test]
    fn every_key_says_what_it_means() {
        let schema = schema();
        let tables = schema.as_value()["$defs"].as_object().unwrap();
        for (name, table) in tables {
            for (key, property) in table.get("properties").and_then(Value::as_object).into_iter().flatten() {
                assert!(property.get("description").is_some(), "{name}.{key}");
            }
        }
    }
}
