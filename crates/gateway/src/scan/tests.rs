use std::collections::HashSet;

use proptest::prelude::*;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::*;

fn fields(body: &str) -> Vec<(String, String)> {
    let scanned = scan(body.as_bytes()).unwrap();
    scanned
        .fields
        .iter()
        .map(|field| (field.name.to_string(), body[field.value.clone()].to_owned()))
        .collect()
}

#[test]
fn fields_have_their_values_as_written() {
    let body = r#" { "model" : "m" ,"messages":[{"role":"user","content":"a\"}]"}], "n":-1.5e+3,"o":{},"l":[ ],"t":true } "#;
    let expected = [
        ("model", r#""m""#),
        ("messages", r#"[{"role":"user","content":"a\"}]"}]"#),
        ("n", "-1.5e+3"),
        ("o", "{}"),
        ("l", "[ ]"),
        ("t", "true"),
    ];
    assert_eq!(fields(body), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let scanned = scan(body.as_bytes()).unwrap();
    assert_eq!((scanned.inside(), scanned.get("missing"), scanned.is_empty()), (2, None, false));
    assert!(scan(b"{}").unwrap().is_empty());
    // A name is the same however it is written.
    assert_eq!(fields(r#"{"mod\u0065l":1}"#), [("model".to_owned(), "1".to_owned())]);
}

#[test]
fn what_is_no_object_is_refused() {
    for body in [
        "",
        "[]",
        "7",
        "{",
        "{}x",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":[1,]}"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":+1}"#,
        r#"{"a":nul}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12"}"#,
        "{\"a\":\"\n\"}",
        r#"{"a":"b}"#,
        r#"{"a":[1}"#,
        "{a:1}",
        r#"{"a":NaN}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":[[]"#,
        "{,}",
        r#"{"a":[,]}"#,
    ] {
        assert!(scan(body.as_bytes()).is_err(), "{body}");
    }
    assert!(scan(b"{\"a\":\"\xff\"}").is_err());
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(scan(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
    assert!(scan(nested(MAX_DEPTH).as_bytes()).is_err());
}

#[test]
fn keys_twice_are_refused_at_any_depth() {
    for body in [r#"{"a":1,"a":1}"#, r#"{"a":[{"b":1,"c":{},"b":2}]}"#, r#"{"a":1,"\u0061":2}"#] {
        assert!(scan(body.as_bytes()).unwrap_err().to_string().contains("twice"), "{body}");
    }
    assert!(scan(br#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}"#).is_ok());
    let many = |last: usize| {
        let keys: Vec<String> = (0..40).chain([last]).map(|at| format!("\"k{at}\":0")).collect();
        scan(format!("{{{}}}", keys.join(",")).as_bytes()).is_ok()
    };
    assert!(many(40) && !many(7));
    let keys: Vec<String> = (0..=MAX_KEYS).map(|at| format!("\"{at}\":0")).collect();
    assert!(scan(format!("{{{}}}", keys.join(",")).as_bytes()).is_err());
}

#[test]
fn a_fault_quotes_nothing() {
    for body in [r#"{"secret":secret}"#, r#"{"secret":1,"secret":2}"#, "secret"] {
        assert!(!scan(body.as_bytes()).unwrap_err().to_string().contains("secret"));
    }
}

/// What is compared with: `serde_json`, and sets of keys.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Strict)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            entries.next_value_seed(Strict)?;
            if !keys.insert(key) {
                return Err(A::Error::custom("twice"));
            }
        }
        Ok(())
    }
}

fn is_strict_object(body: &str) -> bool {
    let mut reader = serde_json::Deserializer::from_str(body);
    body.trim_ascii_start().starts_with('{')
        && Strict.deserialize(&mut reader).is_ok()
        && reader.end().is_ok()
}

/// Pieces of JSON, in any order: mostly nearly valid.
fn nearly() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec!["{", "}", "[", "]", ",", ":", " "]),
        3 => prop::sample::select(vec!["\"a\":", "\"b\":", ",\"a\":", ",\"c\":", "{\"a\":1}", "[1,2]", "{}", "[]"]),
        2 => prop::sample::select(vec!["1", "-0", "1.5", "2e3", "\"x\"", "\"\\n\"", "\"\\u0041\"", "true", "null", "0", "\\"]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| format!("{{{}}}", pieces.concat()))
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map("[a-c\"\\\\é]{0,3}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn accepts_what_serde_json_accepts(body in nearly()) {
        prop_assert_eq!(scan(body.as_bytes()).is_ok(), is_strict_object(&body), "{}", body);
    }

    #[test]
    fn finds_every_value(map in prop::collection::btree_map("\\PC{0,4}", value(), 0..6), pretty in any::<bool>()) {
        let object = serde_json::Value::Object(map.clone().into_iter().collect());
        let body = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
        let scanned = scan(body.as_bytes()).unwrap();
        prop_assert_eq!(scanned.fields.len(), map.len());
        for (name, value) in &map {
            let found: serde_json::Value = serde_json::from_str(scanned.get(name).unwrap()).unwrap();
            prop_assert_eq!(&found, value);
        }
    }

    #[test]
    fn takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = scan(&bytes);
    }
}
