//! The vectors that docs/internals/hashing.md offers to others. An independent program in tests/interop
//! computes the same ones.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;

use kvplane_core::{BlockKey, ContentHasher, MultimodalItem, Names, chain_hash};
use serde_json::Value;

/// A key as questions have it.
fn key<'v>(value: &'v Value, bytes: &'v [u8]) -> BlockKey<'v> {
    match value {
        Value::String(text) => BlockKey::Text(text),
        Value::Number(number) => BlockKey::Integer(number.as_i64().unwrap()),
        Value::Array(item) => {
            BlockKey::Multimodal { id: item[0].as_str().unwrap(), offset: item[1].as_i64().unwrap() }
        }
        _ => BlockKey::Bytes(bytes),
    }
}

/// The bytes of a key that has any.
fn bytes(value: &Value) -> Vec<u8> {
    let digits = value["bytes"].as_str().unwrap_or_default();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn contents(vector: &Value) -> Vec<u64> {
    let ids: Vec<u32> =
        list(vector, "token_ids").iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect();
    let bigrams = vector["bigrams"] == true;
    let positions: Vec<&[u32]> = ids.windows(if bigrams { 2 } else { 1 }).collect();
    let lists: Vec<(&[Value], Vec<Vec<u8>>)> = list(vector, "extra_keys")
        .iter()
        .map(|keys| keys.as_array().map_or(&[][..], Vec::as_slice))
        .map(|keys| (keys, keys.iter().map(bytes).collect()))
        .collect();
    let keys_at = |at: usize| {
        lists.get(at).into_iter().flat_map(|(keys, bytes)| keys.iter().zip(bytes)).map(|(k, b)| key(k, b))
    };
    let names = Names {
        lora_name: vector["lora_name"].as_str(),
        lora_id: vector["lora_id"].as_i64(),
        cache_salt: vector["cache_salt"].as_str(),
    }
    .with_salt_among(keys_at(0));
    let items: Vec<MultimodalItem> = list(vector, "multimodal")
        .iter()
        .map(|item| MultimodalItem {
            id: item["id"].as_str().unwrap().into(),
            offset: item["offset"].as_u64().unwrap(),
            length: item["length"].as_u64().unwrap(),
        })
        .collect();
    let size = usize::try_from(vector["block_size"].as_u64().unwrap()).unwrap();
    let mut hasher = ContentHasher::default();
    let hash = |(at, block): (usize, &[&[u32]])| {
        let covered: Range<u64> = (at * size) as u64..((at + 1) * size) as u64;
        let keys = names.further_keys(keys_at(at)).chain(MultimodalItem::keys_of(&items, covered));
        hasher.keyed(&block.concat(), keys, names.namespace())
    };
    positions.chunks_exact(size).enumerate().map(hash).collect()
}

/// What `dynamo-kv-router` itself derives from events with its marks, and asks for: see tests/dynamo-vectors.
#[test]
fn the_vectors_of_dynamo() {
    let vectors: Vec<Value> =
        serde_json::from_str(include_str!("../../../tests/dynamo-vectors/vectors.json")).unwrap();
    assert!(!vectors.is_empty());
    for vector in &vectors {
        let expected = |name: &str| hashes(vector, name);
        let stores = list(vector, "stores");
        let all = |name: &str| stores.iter().flat_map(|store| list(store, name)).cloned().collect::<Vec<_>>();
        let mut prompt = stores[0].clone();
        (prompt["token_ids"], prompt["extra_keys"]) = (all("token_ids").into(), all("extra_keys").into());
        let found = contents(&prompt);
        assert_eq!(found, expected("tokens_hashes"), "{}", vector["name"]);
        assert_eq!(chain(&found), expected("sequence_hashes"), "{}", vector["name"]);
        let mut question = vector["asked"].clone();
        (question["token_ids"], question["block_size"]) =
            (all("token_ids").into(), vector["block_size"].clone());
        assert_eq!(contents(&question), expected("asked_hashes"), "{}", vector["name"]);
    }
}

fn hashes(vector: &Value, name: &str) -> Vec<u64> {
    list(vector, name).iter().map(|hash| hash.as_str().unwrap().parse().unwrap()).collect()
}

fn chain(contents: &[u64]) -> Vec<u64> {
    let mut prefix = None;
    contents.iter().map(|content| *prefix.insert(chain_hash(prefix, *content))).collect()
}

#[test]
fn the_vectors_of_the_documentation() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("vectors.json")).unwrap();
    assert!(!vectors.is_empty());
    for vector in &vectors {
        let contents = contents(vector);
        assert_eq!(contents, hashes(vector, "contents"), "{}", vector["name"]);
        assert_eq!(chain(&contents), hashes(vector, "chain"), "{}", vector["name"]);
    }
}
