//! Writes `vectors.json`: events as Dynamo's vLLM workers cause them, and the hashes that `dynamo-kv-router` derives
//! from their bytes. Run it with `make dynamo-vectors`; kvplane's tests read the file.

use dynamo_kv_router::protocols::{
    BlockHashOptions, KvCacheEventData, WorkerWithDpRank, compute_block_hash_for_seq,
    compute_seq_hash_for_block,
};
use dynamo_kv_router::zmq_wire::{
    DYNAMO_CACHE_SALT_PREFIX, ZmqEventNormalizer, decode_event_batch, mark_mm_hash_for_extra_key,
};
use serde_json::{Value, json};

const BLOCK_SIZE: u32 = 4;

/// A store of consecutive blocks, as vLLM has it on the wire.
fn store(first_hash: u64, parent: Option<u64>, tokens: std::ops::Range<u32>, more: &Value) -> Value {
    let count = u64::from(tokens.end - tokens.start) / u64::from(BLOCK_SIZE);
    let mut event = json!({
        "type": "BlockStored",
        "block_hashes": (first_hash..first_hash + count).collect::<Vec<_>>(),
        "parent_block_hash": parent,
        "token_ids": tokens.collect::<Vec<_>>(),
        "block_size": BLOCK_SIZE,
        "medium": "GPU",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        event[key] = value.clone();
    }
    event
}

/// Each: a name, what a question asks with, and the stores of one prompt in order.
fn cases() -> Vec<(&'static str, Value, Vec<Value>)> {
    let salt = |text: &str| format!("{DYNAMO_CACHE_SALT_PREFIX}{text}");
    let image = mark_mm_hash_for_extra_key(0x0123_4567_89ab_cdef);
    let second = mark_mm_hash_for_extra_key(0xfedc_ba98_7654_3210);
    let upper = image.to_uppercase();
    vec![
        ("plain", json!({}), vec![store(1, None, 0..8, &json!({}))]),
        (
            "salt",
            json!({"cache_salt": "tenant-a"}),
            vec![store(1, None, 0..8, &json!({"extra_keys": [[salt("tenant-a")], null]}))],
        ),
        (
            "salt, later blocks in a store of their own",
            json!({"cache_salt": "tenant-a"}),
            vec![
                store(1, None, 0..4, &json!({"extra_keys": [[salt("tenant-a")]]})),
                store(2, Some(1), 4..12, &json!({"extra_keys": [null, null]})),
            ],
        ),
        (
            "salt equal to the adapter's name",
            json!({"cache_salt": "adapter-a", "lora_name": "adapter-a"}),
            vec![store(
                1,
                None,
                0..8,
                &json!({"lora_name": "adapter-a", "extra_keys": [["adapter-a", salt("adapter-a")], ["adapter-a"]]}),
            )],
        ),
        (
            "salt with a colon and other letters",
            json!({"cache_salt": "a:ü/ß"}),
            vec![store(1, None, 0..4, &json!({"extra_keys": [[salt("a:ü/ß")]]}))],
        ),
        (
            "image over two blocks",
            json!({}),
            vec![store(1, None, 0..12, &json!({"extra_keys": [[[image, 2]], [[image, -2]], null]}))],
        ),
        (
            "image without an offset, upper case",
            json!({}),
            vec![store(1, None, 0..8, &json!({"extra_keys": [null, [upper]]}))],
        ),
        (
            "two images in one block, and one of them twice",
            json!({}),
            vec![store(
                1,
                None,
                0..8,
                &json!({"extra_keys": [[[second, 0], [image, 2]], [[image, 0], [second, 1], [image, 2]]]}),
            )],
        ),
        (
            "adapter, images and salt",
            json!({"cache_salt": "tenant-a", "lora_name": "adapter-a"}),
            vec![store(
                1,
                None,
                0..8,
                &json!({
                    "lora_name": "adapter-a",
                    "extra_keys": [["adapter-a", [image, 1], salt("tenant-a")], ["adapter-a", [image, -3]]],
                }),
            )],
        ),
    ]
}

fn main() {
    let worker = WorkerWithDpRank::new(7, 0);
    let vectors = cases().into_iter().map(|(name, asked, stores)| {
        let payload = rmp_serde::to_vec(&json!([1.5, stores, 0])).expect("JSON is msgpack");
        let batch = decode_event_batch(&payload).expect("Dynamo reads it");
        let mut normalizer = ZmqEventNormalizer::new(BLOCK_SIZE);
        let mut blocks = Vec::new();
        for raw in batch.events {
            let event = normalizer.normalize(raw, 0, worker).expect("Dynamo takes it");
            let KvCacheEventData::Stored(stored) = event.event.data else { panic!("{name}: not a store") };
            blocks.extend(stored.blocks);
        }
        let contents: Vec<_> = blocks.iter().map(|block| block.tokens_hash).collect();
        let tokens: Vec<u32> = (0..contents.len() as u32 * BLOCK_SIZE).collect();
        let options = BlockHashOptions {
            lora_name: asked["lora_name"].as_str(),
            cache_namespace: asked["cache_salt"].as_str(),
            ..BlockHashOptions::default()
        };
        let text = |numbers: Vec<u64>| numbers.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "name": name,
            "block_size": BLOCK_SIZE,
            "stores": stores,
            "payload": payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "asked": asked,
            // What Dynamo asks for with the adapter and the plain salt alone.
            "asked_hashes": text(compute_block_hash_for_seq(&tokens, BLOCK_SIZE, options).iter().map(|h| h.0).collect()),
            "tokens_hashes": text(contents.iter().map(|hash| hash.0).collect()),
            "sequence_hashes": text(compute_seq_hash_for_block(&contents)),
        })
    });
    let vectors: Vec<Value> = vectors.collect();
    println!("{}", serde_json::to_string_pretty(&vectors).expect("values are JSON"));
}
