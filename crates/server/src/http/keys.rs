//! What a prompt's blocks are made of besides tokens, as JSON.
//!
//! ```text
//! extra_keys   one list per block, or null for a block without keys: [null, ["adapter", ["image", 0], "salt"], [{"bytes": "00ff"}, 7]]
//! multimodal   items of the prompt in order: [{"id": "image", "offset": 3, "length": 200}]
//! ```

use std::fmt;

use kvplane_core::MultimodalItem;
use kvplane_wire::OwnedExtraKey;
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Lists, and keys in all of them: a few bytes of JSON each, and ten times as much in memory.
const MOST: usize = 1 << 20;

/// The extra keys of every block.
#[derive(Debug)]
pub(super) struct KeyLists(pub(super) Vec<Vec<OwnedExtraKey>>);

/// One key.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum KeyJson {
    Text(String),
    Integer(i64),
    Multimodal(String, i64),
    Bytes { bytes: String },
}

/// An item of the prompt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemJson {
    id: Box<str>,
    offset: u64,
    length: u64,
}

impl From<ItemJson> for MultimodalItem {
    fn from(ItemJson { id, offset, length }: ItemJson) -> Self {
        Self { id, offset, length }
    }
}

impl KeyJson {
    fn into_key(self) -> Option<OwnedExtraKey> {
        Some(match self {
            Self::Text(text) => OwnedExtraKey::Text(text),
            Self::Integer(number) => OwnedExtraKey::Integer(number),
            Self::Multimodal(id, offset) => OwnedExtraKey::Multimodal(id, offset),
            Self::Bytes { bytes } => OwnedExtraKey::Bytes(from_hex(&bytes)?),
        })
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| u8::try_from(digit(high)? * 16 + digit(low)?).ok()).collect()
}

impl<'de> Deserialize<'de> for KeyLists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;
        impl<'de> Visitor<'de> for Lists {
            type Value = KeyLists;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list per block")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let (mut lists, mut room) = (Vec::new(), MOST);
                while let Some(list) = seq.next_element_seed(List { room: &mut room })? {
                    if lists.len() == MOST {
                        return Err(A::Error::custom("too many lists"));
                    }
                    lists.push(list);
                }
                Ok(KeyLists(lists))
            }
        }
        deserializer.deserialize_seq(Lists)
    }
}

/// The keys of one block.
struct List<'r> {
    /// How many more keys there may be.
    room: &'r mut usize,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = Vec<OwnedExtraKey>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<OwnedExtraKey>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of keys, or null")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut keys = Vec::new();
        while let Some(key) = seq.next_element::<KeyJson>()? {
            *self.room = self.room.checked_sub(1).ok_or_else(|| A::Error::custom("too many keys"))?;
            keys.push(key.into_key().ok_or_else(|| A::Error::custom("not hexadecimal"))?);
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(json: &str) -> Option<Vec<Vec<OwnedExtraKey>>> {
        serde_json::from_str::<KeyLists>(json).ok().map(|lists| lists.0)
    }

    #[test]
    fn keys_of_every_kind() {
        let read =
            lists(r#"[null, [], ["a", -7, ["image", -3], {"bytes": "00Ff"}], [{"bytes": ""}]]"#).unwrap();
        let keys = vec![
            OwnedExtraKey::Text("a".to_owned()),
            OwnedExtraKey::Integer(-7),
            OwnedExtraKey::Multimodal("image".to_owned(), -3),
            OwnedExtraKey::Bytes(vec![0, 255]),
        ];
        assert_eq!(read, [vec![], vec![], keys, vec![OwnedExtraKey::Bytes(vec![])]]);
        assert_eq!(lists("[]"), Some(vec![]));
    }

    #[test]
    fn what_is_no_key() {
        for wrong in [
            "{}",
            "null",
            "[1]",
            "[\"a\"]",
            "[[null]]",
            "[[1.5]]",
            "[[true]]",
            "[[9223372036854775808]]",
            "[[[\"image\"]]]",
            "[[[\"image\", 0, 1]]]",
            "[[[0, \"image\"]]]",
            "[[{\"bytes\": \"0\"}]]",
            "[[{\"bytes\": \"0g\"}]]",
            "[[{\"bytes\": \"00\", \"more\": 1}]]",
            "[[{\"text\": \"a\"}]]",
        ] {
            assert_eq!(lists(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn more_keys_than_there_may_be_are_refused() {
        let many = |one: &str, times: usize| format!("[{}]", vec![one; times].join(","));
        assert!(lists(&many("null", MOST)).is_some());
        assert!(lists(&many("null", MOST + 1)).is_none());
        assert!(lists(&format!("[{}]", many("1", MOST))).is_some());
        assert!(lists(&format!("[{},[1]]", many("1", MOST))).is_none());
    }
}
