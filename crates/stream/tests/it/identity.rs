//! What makes equal tokens different blocks: names that are inherited, keys that are left out, and hashes
//! that tell all the same.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{BlockKey, ContentHasher, Names, Tier};
use kvplane_stream::{Entry, Interpreter, JournalOptions, Ledger, Now, Transition};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedExtraKey, OwnedHash, OwnedStored};

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };
const TOKENS: [u32; 2] = [7, 8];

struct Engine {
    interpreter: Interpreter,
    ledger: Ledger,
    next: u64,
}

impl Engine {
    fn new() -> Self {
        let (mut interpreter, mut ledger) = Interpreter::with_ledger(JournalOptions::default(), 0, NOW);
        interpreter.heard_from_start(&mut ledger);
        Self { interpreter, ledger, next: 0 }
    }

    fn stores(&mut self, store: OwnedStored) -> Arc<Entry> {
        let before = self.ledger.cursor();
        let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(0), &[OwnedEvent::Stored(store)]);
        self.interpreter.apply(
            &mut self.ledger,
            self.next,
            &Decoder::default().decode(&payload).unwrap(),
            NOW,
        );
        self.next += 1;
        self.ledger.read_after(before, 1).unwrap().remove(0)
    }
}

/// One block with the same two tokens, whatever its hash is.
fn block(hash: u64, parent: Option<u64>) -> OwnedStored {
    OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        parent: parent.map(OwnedHash::Unsigned),
        token_ids: TOKENS.to_vec(),
        block_size: 2,
        medium: Some("GPU".into()),
        extra_keys: Some(vec![None]),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    }
}

fn keyed(keys: &[OwnedExtraKey], store: OwnedStored) -> OwnedStored {
    OwnedStored { extra_keys: Some(vec![Some(keys.to_vec())]), ..store }
}

/// The same block on the host, in a store that has its tokens and leaves out its keys.
fn on_host(store: OwnedStored) -> OwnedStored {
    OwnedStored { medium: Some("CPU".into()), extra_keys: None, lora_name: None, lora_id: None, ..store }
}

fn text(text: &str) -> OwnedExtraKey {
    OwnedExtraKey::Text(text.into())
}

fn image(id: &str, offset: i64) -> OwnedExtraKey {
    OwnedExtraKey::Multimodal(id.into(), offset)
}

/// The contents that an entry credits to a tier.
fn credited(entry: &Entry, of: Tier) -> Vec<u64> {
    let stored = entry.transitions.iter().filter_map(|transition| match transition {
        Transition::Stored { tier, blocks, .. } if *tier == of => Some(blocks),
        _ => None,
    });
    stored.flatten().map(|block| block.content).collect()
}

fn content(names: Names<'_>, keys: &[BlockKey<'_>]) -> u64 {
    ContentHasher::default().keyed(&TOKENS, keys.iter().copied(), names.namespace())
}

fn salted(salt: &str) -> Names<'_> {
    Names { cache_salt: Some(salt), ..Names::default() }
}

#[test]
fn a_salt_may_be_equal_to_the_adapters_name() {
    let adapter = |store| OwnedStored { lora_name: Some("a".into()), lora_id: Some(1), ..store };
    let mut engine = Engine::new();
    let unsalted = engine.stores(adapter(keyed(&[text("a")], block(1, None))));
    let salted = engine.stores(adapter(keyed(&[text("a"), text("a")], block(2, None))));
    let behind = engine.stores(adapter(keyed(&[text("a")], block(3, Some(2)))));
    let plain = Names { lora_name: Some("a"), ..Names::default() };
    let with_salt = Names { cache_salt: Some("a"), ..plain };
    assert_eq!(credited(&unsalted, Tier::Device), [content(plain, &[])]);
    assert_eq!(credited(&salted, Tier::Device), [content(with_salt, &[])]);
    assert_eq!(credited(&behind, Tier::Device), [content(with_salt, &[])]);
}

#[test]
fn a_salt_stands_behind_images_and_before_embeddings() {
    let digest = OwnedExtraKey::Bytes(vec![9; 32]);
    let entry = Engine::new().stores(keyed(&[image("x", -1), text("s"), digest], block(1, None)));
    let further = [BlockKey::Multimodal { id: "x", offset: -1 }, BlockKey::Bytes(&[9; 32])];
    assert_eq!(credited(&entry, Tier::Device), [content(salted("s"), &further)]);
}

#[test]
fn a_numbered_adapter_is_no_plain_one_and_a_named_one_goes_by_its_name() {
    let mut engine = Engine::new();
    let numbered = engine.stores(OwnedStored { lora_id: Some(3), ..block(1, None) });
    let name = Some("a".to_owned());
    let named = engine.stores(OwnedStored { lora_id: Some(3), lora_name: name, ..block(2, None) });
    let by_name = Names { lora_name: Some("a"), ..Names::default() };
    let by_number = Names { lora_id: Some(3), ..Names::default() };
    assert_eq!(credited(&numbered, Tier::Device), [content(by_number, &[])]);
    assert_eq!(credited(&named, Tier::Device), [content(by_name, &[])]);
}

#[test]
fn a_colder_store_without_keys_is_what_its_hash_says() {
    let mut engine = Engine::new();
    engine.stores(keyed(&[text("s")], block(1, None)));
    engine.stores(keyed(&[image("x", 0)], block(2, Some(1))));
    let first = engine.stores(on_host(block(1, None)));
    let second = engine.stores(on_host(block(2, Some(1))));
    assert_eq!(credited(&first, Tier::Host), [content(salted("s"), &[])]);
    let picture = [BlockKey::Multimodal { id: "x", offset: 0 }];
    assert_eq!(credited(&second, Tier::Host), [content(salted("s"), &picture)]);
}

#[test]
fn a_colder_store_without_keys_of_an_unknown_hash_is_not_taken_for_plain() {
    let mut engine = Engine::new();
    engine.stores(block(1, None));
    for (hash, parent) in [(2, None), (3, Some(1))] {
        let entry = engine.stores(on_host(block(hash, parent)));
        assert!(
            entry.transitions.is_empty(),
            "salted or covered by an image, for all that is known: {entry:?}"
        );
    }
    // The device tells what they are: what was on the host all the time counts from now on.
    let root = engine.stores(keyed(&[text("s")], block(2, None)));
    assert_eq!(credited(&root, Tier::Device), [content(salted("s"), &[])]);
    assert_eq!(credited(&root, Tier::Host), [content(salted("s"), &[])]);
    let child = engine.stores(keyed(&[image("x", 1)], block(3, Some(1))));
    let picture = content(Names::default(), &[BlockKey::Multimodal { id: "x", offset: 1 }]);
    assert_eq!(credited(&child, Tier::Host), [picture]);
}

/// The bytes that Dynamo's own crate derived its hashes from: see tests/dynamo-vectors.
#[test]
fn what_dynamo_marks_hashes_as_in_dynamo() {
    let vectors: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../../../tests/dynamo-vectors/vectors.json")).unwrap();
    assert!(!vectors.is_empty());
    for vector in &vectors {
        let digits = vector["payload"].as_str().unwrap();
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
        let payload: Vec<u8> = (0..digits.len() / 2).map(byte).collect();
        let Engine { mut interpreter, mut ledger, next } = Engine::new();
        let before = ledger.cursor();
        interpreter.apply(&mut ledger, next, &Decoder::default().decode(&payload).unwrap(), NOW);
        let entry = ledger.read_after(before, 1).unwrap().remove(0);
        let expected: Vec<u64> = vector["tokens_hashes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hash| hash.as_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(credited(&entry, Tier::Device), expected, "{}", vector["name"]);
        let salts = entry.transitions.iter().flat_map(|transition| match transition {
            Transition::Stored { blocks, .. } => &blocks[..],
            _ => &[],
        });
        for block in salts {
            let asked = vector["asked"]["cache_salt"].as_str();
            assert_eq!(block.attributes.cache_salt.as_deref(), asked, "{}", vector["name"]);
        }
    }
}
