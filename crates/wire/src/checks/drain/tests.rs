use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::trtllm::encode::{HashAlgo, TrtDiff, TrtMmKey};

fn hash() -> impl Strategy<Value = TrtHash> {
    prop_oneof![
        4 => any::<u64>().prop_map(TrtHash::Number),
        1 => (0..300u64).prop_map(TrtHash::Number),
        2 => "[0-9a-f]{64}".prop_map(TrtHash::Digest),
    ]
}

fn token() -> impl Strategy<Value = TrtToken> {
    let id = prop_oneof![
        8 => (0..200_000u32).prop_map(TrtTokenId::Number),
        1 => any::<u32>().prop_map(TrtTokenId::Number),
        1 => "[0-9a-f]{1,3}".prop_map(TrtTokenId::Digest),
    ];
    let extra = prop_oneof![9 => Just(0), 1 => 0..4u64, 1 => any::<u64>()];
    (id, extra).prop_map(|(token_id, token_extra_id)| TrtToken { token_id, token_extra_id })
}

fn block() -> impl Strategy<Value = TrtBlock> {
    let tokens = prop_oneof![3 => vec(token(), 4), 1 => vec(token(), 1..6)];
    let item = ("\\PC{0,8}", 0..1000u64, option::of("[a-z]{0,4}"));
    let item = item.prop_map(|(hash, start_offset, uuid)| TrtMmKey { hash, start_offset, uuid });
    let mm_keys = prop_oneof![3 => Just(Vec::new()), 1 => vec(item, 1..3)];
    let salt = prop_oneof![3 => Just(None), 1 => option::of("[ab]"), 1 => option::of(any::<String>())];
    (hash(), tokens, prop_oneof![3 => Just(0), 1 => 0..5u32], 0..100u32, mm_keys, salt).prop_map(
        |(block_hash, tokens, cache_level, priority, mm_keys, cache_salt)| TrtBlock {
            block_hash,
            tokens,
            cache_level,
            priority,
            mm_keys,
            cache_salt,
        },
    )
}

fn data() -> impl Strategy<Value = TrtData> {
    let diff = || {
        option::of((0..4u32, 0..4u32))
            .prop_map(|diff| diff.map(|(new_value, old_value)| TrtDiff { new_value, old_value }))
    };
    prop_oneof![
        1 => vec(any::<u64>(), 1..3)
            .prop_map(|levels| TrtData::Created { num_blocks_per_cache_level: levels }),
        5 => (option::of(hash()), vec(block(), 0..6))
            .prop_map(|(parent_hash, blocks)| TrtData::Stored { parent_hash, blocks }),
        2 => vec(hash(), 0..4).prop_map(|block_hashes| TrtData::Removed { block_hashes }),
        2 => (hash(), diff(), diff()).prop_map(|(block_hash, cache_level, priority)| TrtData::Updated {
            block_hash, cache_level, priority,
        }),
    ]
}

/// A list as rank 0 merges it: every rank counts for itself, now and then with a hole.
fn events() -> impl Strategy<Value = Vec<TrtEvent>> {
    let algo = option::of(prop_oneof![Just(HashAlgo::V1BlockKey), Just(HashAlgo::V2Sha256)]);
    let number = || option::of(prop_oneof![0..5u32, any::<u32>()]);
    let hole = prop_oneof![9 => Just(0), 1 => 1..4u64];
    let event = (option::of(0..3u32), hole, data(), number(), number(), algo);
    vec(event, 0..12).prop_map(|events| {
        let mut next: BTreeMap<u32, u64> = BTreeMap::new();
        let numbered =
            |(rank, hole, data, window_size, layer_group_id, hash_algo): (Option<u32>, _, _, _, _, _)| {
                let next = next.entry(rank.unwrap_or(0)).or_default();
                let event_id = *next + hole;
                *next = event_id + 1;
                TrtEvent { event_id, data, window_size, attention_dp_rank: rank, hash_algo, layer_group_id }
            };
        events.into_iter().map(numbered).collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in events()) {
        drain_round_trip(&events);
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..400)) {
        drained_json(&bytes);
    }

    /// Noise of the bytes and words that the JSON is made of.
    #[test]
    fn likely_noise(words in vec(prop::sample::select(vec![
        "[", "]", "{", "}", ",", ":", "\"", "\\", " ", "1", "-", ".5", "null", "\"event_id\":", "\"data\":",
        "{\"type\":\"stored\",", "{\"type\":\"removed\",", "\"blocks\":[", "\"block_hash\":1", "\"tokens\":[",
        "{\"type\":\"unique_token\",\"token_id\":", ",\"token_extra_id\":0}", "\"\\u00", "\u{e4}",
    ]), 0..60)) {
        drained_json(words.concat().as_bytes());
        drained_json(format!("[{{\"event_id\":1,{}", words.concat()).as_bytes());
    }

    #[test]
    fn truncations(events in events(), cut in any::<prop::sample::Index>()) {
        let body = encode_events(&events);
        let cut = cut.index(body.len());
        drained_json(&body[..cut]);
        prop_assert!(split(&Bytes::copy_from_slice(&body[..cut])).is_err());
    }

    #[test]
    fn changed_bytes(events in events(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut body = encode_events(&events);
        for (index, byte) in changes {
            let index = index.index(body.len());
            body[index] = byte;
        }
        drained_json(&body);
    }
}
