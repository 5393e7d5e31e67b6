//! Numbers of workers: 64 bits, which neither TOML nor every writer of JSON can write as a number.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The number of a worker, 0 to 2^64-1: a number, or text with its digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId(pub u64);

impl<'de> Deserialize<'de> for WorkerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl de::Visitor<'_> for Digits {
            type Value = WorkerId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 to 18446744073709551615, or its digits as text")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WorkerId, E> {
                Ok(WorkerId(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<WorkerId, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(number), &self);
                u64::try_from(number).map(WorkerId).map_err(|_| wrong())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WorkerId, E> {
                let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                let number = digits.and_then(|digits| digits.parse().ok());
                number.map(WorkerId).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Digits)
    }
}

impl Serialize for WorkerId {
    /// As text where TOML has no such number.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(number) => serializer.serialize_i64(number),
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

impl JsonSchema for WorkerId {
    fn schema_name() -> Cow<'static, str> {
        "WorkerId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "0 to 18446744073709551615: a number, or text with its digits.",
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^[0-9]{1,20}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_text_are_read_and_can_be_written_as_toml() {
        for json in ["0", "7", "18446744073709551615", "\"18446744073709551615\"", "\"9\""] {
            let read: WorkerId = serde_json::from_str(json).unwrap();
            assert_eq!(read.0.to_string(), json.trim_matches('"'));
            assert_eq!(
                serde_json::from_str::<WorkerId>(&serde_json::to_string(&read).unwrap()).unwrap(),
                read
            );
        }
        for wrong in
            ["-1", "1.0", "18446744073709551616", "\"\"", "\"+1\"", "\" 1\"", "\"x\"", "null", "true"]
        {
            assert!(serde_json::from_str::<WorkerId>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::to_string(&WorkerId(u64::MAX)).unwrap(), format!("\"{}\"", u64::MAX));
        assert_eq!(serde_json::to_string(&WorkerId(5)).unwrap(), "5");
    }
}
