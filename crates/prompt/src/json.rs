//! JSON as Python keeps it: keys in the order in which they came.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Values in one JSON text: two bytes can be one, which takes 32 in memory.
const MAX_NODES: usize = 256 << 10;
/// Objects with more keys than this are searched by hash.
const FEW_KEYS: usize = 16;
/// From here on a number without a fraction may have been an integer, which Python keeps exactly and a float does not.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// A JSON value. Its `Debug` shows the shape only: it is part of a prompt.
#[derive(Clone, PartialEq, Default)]
pub enum Json {
    /// `null`, Python's `None`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond `i64`.
    Large(u64),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    Array(Vec<Json>),
    /// Keys and values in order; no key twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one from bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The value of a key, of an object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let Self::Object(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The value of a key, unless it is `null`.
    pub fn given(&self, key: &str) -> Option<&Json> {
        self.get(key).filter(|value| **value != Self::Null)
    }

    /// The text, of a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// What it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Large(_) | Self::Float(_) => "a number",
            Self::String(_) => "text",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// As a template sees it.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Bool(value) => Value::from(*value),
            Self::Int(value) => Value::from(*value),
            Self::Large(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::String(text) => Value::from(text.as_str()),
            Self::Array(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(pairs) => {
                Value::from_pairs(pairs.iter().map(|(key, value)| (key.as_str(), value.to_value())))
            }
        }
    }

    /// As text that any reader of JSON takes.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Large(value) => out.push_str(&value.to_string()),
            Self::Float(value) => out.push_str(&python_float(*value)),
            Self::String(text) => write_string(text, false, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(pairs) => {
                out.push('{');
                for (at, (key, value)) in pairs.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    write_string(key, false, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(items) => write!(f, "[{} items]", items.len()),
            Self::Object(pairs) => write!(f, "{{{} keys}}", pairs.len()),
            other => f.write_str(other.kind()),
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Node(&Cell::new(MAX_NODES)).deserialize(deserializer)
    }
}

/// Reads one value. All within one another count together.
#[derive(Clone, Copy)]
struct Node<'c>(&'c Cell<usize>);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        let Some(left) = self.0.get().checked_sub(1) else {
            return Err(D::Error::custom(format_args!("has more than {MAX_NODES} values")));
        };
        self.0.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Large(value), Json::Int))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        if value.abs() >= TOO_LARGE && value.fract() == 0.0 {
            return Err(E::custom("a number is too large to be kept exactly"));
        }
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut pairs: Vec<(String, Json)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            let place = if pairs.len() <= FEW_KEYS {
                pairs.iter().position(|(name, _)| *name == key)
            } else {
                if places.is_empty() {
                    places.extend(pairs.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)));
                }
                places.get(&key).copied()
            };
            // Python keeps the first place and the last value.
            if let Some(at) = place {
                pairs[at].1 = value;
                continue;
            }
            if !places.is_empty() {
                places.insert(key.clone(), pairs.len());
            }
            pairs.push((key, value));
        }
        Ok(Json::Object(pairs))
    }
}

/// A string in quotes, escaped as `json.dumps` does.
pub(crate) fn write_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '"' | '\\' => true,
            c if (c as u32) < 0x20 => true,
            c => ensure_ascii && !(' '..='~').contains(&c),
        };
        if !escaped {
            continue;
        }
        out.push_str(&text[plain..at]);
        plain = at + c.len_utf8();
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

/// A float as Python's `repr` writes it: the shortest digits that are read back, with an exponent below 1e-4
/// and from 1e16 on.
pub(crate) fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let mut plain = format!("{value}");
    if !plain.contains('.') {
        plain.push_str(".0");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_the_last_value() {
        let json = Json::parse(br#"{"b":1,"a":{"z":[],"y":null},"b":2}"#).unwrap();
        assert_eq!(json.to_text(), r#"{"b":2,"a":{"z":[],"y":null}}"#);
        let many: String = (0..40).map(|at| format!("\"k{}\":{at},", at % 30)).collect();
        let json = Json::parse(format!("{{{}}}", many.trim_end_matches(',')).as_bytes()).unwrap();
        let Json::Object(pairs) = json else { panic!() };
        assert_eq!(pairs.len(), 30);
        assert_eq!((pairs[0].0.as_str(), &pairs[0].1), ("k0", &Json::Int(30)));
        assert_eq!((pairs[29].0.as_str(), &pairs[29].1), ("k29", &Json::Int(29)));
    }

    #[test]
    fn floats_as_python_writes_them() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e100, "1e+100"),
            (123_456.789, "123456.789"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }

    #[test]
    fn what_cannot_be_kept_exactly_is_rejected() {
        assert_eq!(Json::parse(b"18446744073709551615").unwrap(), Json::Large(u64::MAX));
        assert_eq!(Json::parse(b"-9223372036854775808").unwrap(), Json::Int(i64::MIN));
        for text in ["18446744073709551616", "-1e30", "123456789012345678901234567890"] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        let many = format!("[{}0]", "0,".repeat(MAX_NODES));
        assert!(Json::parse(many.as_bytes()).is_err());
        let deep = "[".repeat(4000) + &"]".repeat(4000);
        assert!(Json::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn debug_shows_no_text() {
        let json = Json::parse(br#"{"secret":["word"]}"#).unwrap();
        assert!(!format!("{json:?} {:?}", json.get("secret")).contains("word"));
        assert!(!format!("{:?}", Json::from("word")).contains("word"));
    }
}
