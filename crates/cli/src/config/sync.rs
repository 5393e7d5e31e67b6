//! `journal.sync`.

use std::borrow::Cow;

use kvplane_ingest::DurableSync;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::units::Span;

/// When the durable journal is forced onto the disk: `"100ms"`, `"always"`, `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncRule(pub(crate) DurableSync);

impl<'de> Deserialize<'de> for SyncRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(Self(match text.as_str() {
            "always" => DurableSync::Always,
            "off" => DurableSync::Off,
            every => match every.parse::<Span>() {
                Ok(every) if !every.0.is_zero() => DurableSync::Every(every.0),
                _ => {
                    let wrong = format!("{text:?} is not a duration, \"always\" or \"off\"");
                    return Err(de::Error::custom(wrong));
                }
            },
        }))
    }
}

impl Serialize for SyncRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            DurableSync::Always => serializer.serialize_str("always"),
            DurableSync::Off => serializer.serialize_str("off"),
            DurableSync::Every(every) => serializer.collect_str(&Span(every)),
        }
    }
}

impl JsonSchema for SyncRule {
    fn schema_name() -> Cow<'static, str> {
        "SyncRule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A duration, `always` or `off`.",
            "type": "string",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Journal;

    #[test]
    fn what_is_written_is_what_is_read() {
        for sync in ["always", "off", "100ms", "2s"] {
            let journal: Journal = toml::from_str(&format!("sync = {sync:?}")).unwrap();
            let shown = toml::to_string(&journal).unwrap();
            assert!(shown.contains(&format!("sync = {sync:?}")), "{shown}");
        }
        for wrong in ["", "0ms", "now", "10"] {
            let read = toml::from_str::<Journal>(&format!("sync = {wrong:?}"));
            assert!(read.unwrap_err().to_string().contains("always"), "{wrong}");
        }
    }
}
