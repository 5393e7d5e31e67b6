use bytes::Bytes;
use kvplane_proto::smg as proto;
use kvplane_proto::smg::kv_block_extra_key::Key;
use kvplane_proto::smg::kv_cache_event::Data;
use proptest::prelude::*;
use prost::Message as _;

use super::{Outline, SnapshotChunk, outline, subscribe_request};
use crate::{Batch, Decoder, Dialect, Event, ExtraKey, Layout, RejectReason, RejectedKind, Stored, checks};

fn block(hash: i64, tokens: &[u32]) -> proto::KvBlock {
    let (token_ids, block_size) = (tokens.to_vec(), tokens.len() as i32);
    proto::KvBlock { block_hash: hash, token_ids, block_size, ..proto::KvBlock::default() }
}

fn batch(events: Vec<Data>) -> proto::KvEventBatch {
    let events = events.into_iter().map(|data| proto::KvCacheEvent { event_id: 9, data: Some(data) });
    proto::KvEventBatch { sequence_number: 5, timestamp: 2.5, events: events.collect(), ..Default::default() }
}

fn decoded(message: &proto::KvEventBatch, look: impl FnOnce(&Batch<'_, '_>)) {
    let bytes = message.encode_to_vec();
    let mut decoder = Decoder::default();
    look(&decoder.decode_as(Dialect::Smg, &bytes).unwrap());
}

fn only_store<'b, 'f>(batch: &'b Batch<'_, 'f>) -> &'b Stored<'f> {
    let [Event::Stored(stored)] = &batch.events[..] else { panic!("{:?}", batch.events) };
    stored
}

#[test]
fn every_field_of_a_store_arrives() {
    let mut first = block(-2, &[1, 300, 70_000, u32::MAX]);
    first.lora_id = Some(-7);
    first.extra_keys = [
        Key::Text("salt".to_owned()),
        Key::Blob(Bytes::from_static(&[1, 2])),
        Key::Number(-3),
        Key::Multimodal(proto::KvMultimodalKey { identifier: "image".to_owned(), offset: -4 }),
    ]
    .map(|key| proto::KvBlockExtraKey { key: Some(key) })
    .to_vec();
    let mut second = block(3, &[5, 6, 7, 8]);
    second.lora_id = Some(-7);
    let stored = proto::KvBlocksStored {
        blocks: vec![block(1, &[9, 9, 9, 9]), first, second],
        parent_block_hash: Some(i64::MIN),
        tier: Some(proto::KvCacheTier::Host.into()),
        medium: Some("CPU_PINNED".to_owned()),
        group_idx: Some(2),
        kv_cache_spec_kind: Some("full_attention".to_owned()),
        kv_cache_spec_sliding_window: Some(128),
        locality: Some(proto::KvCacheLocality::Remote.into()),
        ownership: Some("store".to_owned()),
        session_id: Some("session".to_owned()),
        lora_name: Some("adapter".to_owned()),
        cache_salt: Some("salt".to_owned()),
    };
    let mut message = batch(vec![Data::Stored(stored)]);
    message.dp_rank = Some(3);
    decoded(&message, |batch| {
        assert_eq!((batch.timestamp, batch.rank, batch.unknown_fields), (2.5, Some(3), 0));
        // Another adapter id makes another run, which builds on the one before.
        let [Event::Stored(plain), Event::Stored(adapted)] = &batch.events[..] else { panic!() };
        let bits = |stored| batch.stored_hashes(stored).iter().map(|hash| hash.bits).collect::<Vec<_>>();
        assert_eq!((bits(plain), bits(adapted)), (vec![1], vec![u64::MAX - 1, 3]));
        assert_eq!(plain.parent.unwrap().bits, 1 << 63);
        assert_eq!(adapted.parent.unwrap().bits, 1);
        assert_eq!(batch.tokens(adapted).ids(), [1, 300, 70_000, u32::MAX, 5, 6, 7, 8]);
        assert_eq!(batch.layout(adapted), Layout::Dense);
        assert_eq!((adapted.block_size, adapted.lora_id, adapted.group), (4, Some(-7), Some(2)));
        assert_eq!((adapted.medium, adapted.locality), (Some("CPU_PINNED"), Some("REMOTE")));
        assert_eq!((adapted.spec_kind, adapted.sliding_window), (Some("full_attention"), Some(128)));
        assert_eq!((adapted.ownership, adapted.session_id), (Some("store"), Some("session")));
        assert_eq!((adapted.lora_name, adapted.cache_salt), (Some("adapter"), Some("salt")));
        assert_eq!(batch.extra_keys(plain, 0), []);
        let keys = [
            ExtraKey::Text("salt"),
            ExtraKey::Bytes(&[1, 2]),
            ExtraKey::Integer(-3),
            ExtraKey::Multimodal { id: "image", offset: -4 },
        ];
        assert_eq!(batch.extra_keys(adapted, 0), keys);
        assert_eq!(batch.extra_keys(adapted, 1), []);
    });
}

#[test]
fn a_block_that_is_not_full_is_a_run_of_its_own() {
    let mut last = block(3, &[9]);
    last.block_size = 2;
    let blocks = vec![block(1, &[1, 2]), block(2, &[3, 4]), last];
    let stored = proto::KvBlocksStored { blocks, ..Default::default() };
    decoded(&batch(vec![Data::Stored(stored)]), |batch| {
        let [Event::Stored(full), Event::Stored(partial)] = &batch.events[..] else { panic!() };
        assert_eq!((full.block_size, full.hashes.len(), full.parent), (2, 2, None));
        assert_eq!((partial.block_size, partial.parent.unwrap().bits), (1, 2));
    });
}

#[test]
fn where_blocks_lie_has_one_name_however_it_is_reported() {
    let named = |medium: Option<&str>, tier, level, name: &str| {
        let mut one = block(1, &[1]);
        one.cache_level = level;
        let medium = medium.map(str::to_owned);
        let stored =
            proto::KvBlocksStored { blocks: vec![one], tier, medium: medium.clone(), ..Default::default() };
        let removed = proto::KvBlocksRemoved {
            block_hashes: vec![1],
            cache_level: level,
            tier,
            medium,
            ..Default::default()
        };
        decoded(&batch(vec![Data::Stored(stored), Data::Removed(removed)]), |batch| {
            let [Event::Stored(stored), Event::Removed(removed)] = &batch.events[..] else { panic!() };
            assert_eq!((stored.medium, removed.medium), (Some(name), Some(name)));
        });
    };
    named(None, None, None, "GPU");
    named(None, Some(0), Some(1), "CPU");
    named(None, None, Some(2), "DISK");
    named(None, Some(4), Some(0), "EXTERNAL");
    named(Some("NVME"), Some(3), Some(2), "NVME");
    named(None, Some(17), None, "UNKNOWN_TIER");
    named(None, None, Some(17), "UNKNOWN_LEVEL");
}

#[test]
fn removals_and_clears_arrive() {
    let removed = proto::KvBlocksRemoved {
        block_hashes: vec![-1, 0, 7],
        group_idx: Some(1),
        locality: Some(1),
        ownership: Some("store".to_owned()),
        ..Default::default()
    };
    let cleared = proto::KvCacheCleared { ownership: Some("store".to_owned()) };
    let message = batch(vec![
        Data::Removed(removed),
        Data::Cleared(cleared),
        Data::Cleared(proto::KvCacheCleared::default()),
    ]);
    decoded(&message, |batch| {
        let [Event::Removed(removed), of_owner, of_all] = &batch.events[..] else { panic!() };
        let bits: Vec<_> = batch.removed_hashes(removed).iter().map(|hash| hash.bits).collect();
        assert_eq!(bits, [u64::MAX, 0, 7]);
        assert_eq!(
            (removed.group, removed.locality, removed.ownership),
            (Some(1), Some("LOCAL"), Some("store"))
        );
        assert_eq!(*of_owner, Event::Cleared { ownership: Some("store") });
        assert_eq!(*of_all, Event::Cleared { ownership: None });
    });
}

#[test]
fn a_bad_event_costs_itself_alone() {
    let mut too_small = block(1, &[1, 2]);
    too_small.block_size = 1;
    let mut negative = block(1, &[1, 2]);
    negative.block_size = -2;
    for bad in [too_small, negative] {
        let stored = |blocks| Data::Stored(proto::KvBlocksStored { blocks, ..Default::default() });
        let message = batch(vec![stored(vec![block(5, &[5]), bad]), stored(vec![block(6, &[6])])]);
        decoded(&message, |batch| {
            let [Event::Rejected(rejected), Event::Stored(good)] = &batch.events[..] else { panic!() };
            assert_eq!((rejected.kind, rejected.reason), (RejectedKind::Store, RejectReason::BadBlockSize));
            assert_eq!((batch.stored_hashes(good)[0].bits, batch.tokens(good).ids()), (6, &[6][..]));
        });
    }
}

#[test]
fn unknown_kinds_and_fields_are_counted() {
    // An event of a kind 5, which holds two bytes; a field 6 beside it.
    let message = [0x1a, 4, 0x2a, 2, 8, 1, 0x32, 1, 0];
    let mut decoder = Decoder::default();
    let batch = decoder.decode_as(Dialect::Smg, &message).unwrap();
    assert_eq!(batch.events, [Event::Unknown { kind: "unknown" }]);
    assert_eq!((batch.unknown_fields, batch.broken), (2, None));
}

#[test]
fn blocks_without_tokens_are_hashes_only() {
    let blocks = vec![proto::KvBlock { block_hash: 4, block_size: 16, ..Default::default() }];
    decoded(&batch(vec![Data::Stored(proto::KvBlocksStored { blocks, ..Default::default() })]), |batch| {
        assert_eq!(batch.layout(only_store(batch)), Layout::HashOnly);
    });
}

#[test]
fn the_load_is_no_part_of_a_batchs_identity() {
    let mut message = batch(vec![Data::Cleared(proto::KvCacheCleared::default())]);
    message.dp_rank = Some(2);
    message.snapshot = Some(proto::KvSnapshotChunk { index: 1, count: 3, blocks: 7, unknown_before: 4 });
    let plain = outline(&message.encode_to_vec()).unwrap();
    let snapshot = Some(SnapshotChunk { index: 1, count: 3, blocks: 7, unknown_before: 4 });
    assert_eq!(
        plain,
        Outline { sequence: 5, rank: Some(2), snapshot, load_only: false, digest: plain.digest }
    );
    message.load = Some(Bytes::from_static(&[8, 1]));
    let loaded = message.encode_to_vec();
    assert_eq!(outline(&loaded).unwrap(), plain);
    // The load somewhere in the middle, and twice.
    let load = [0x42, 2, 8, 3];
    let moved = [&load, &loaded[..2], &load[..], &loaded[2..]].concat();
    assert_eq!(outline(&moved).unwrap(), plain);
    message.load = Some(Bytes::from_static(&[9 << 3, 1]));
    assert!(outline(&message.encode_to_vec()).unwrap().load_only);
    message.timestamp += 1.0;
    assert_ne!(outline(&message.encode_to_vec()).unwrap().digest, plain.digest);
}

#[test]
fn a_negative_rank_is_none() {
    let mut message = batch(Vec::new());
    message.dp_rank = Some(-1);
    assert_eq!(outline(&message.encode_to_vec()).unwrap().rank, None);
}

#[test]
fn requests_are_what_the_contract_says() {
    for start in [0, 1, 127, 128, u64::MAX] {
        let request = proto::SubscribeKvEventsRequest::decode(&subscribe_request(start)[..]).unwrap();
        assert_eq!((request.start_sequence_number, request.load_records_before_first_batch), (start, true));
    }
}

fn some_batch() -> impl Strategy<Value = proto::KvEventBatch> {
    let block = (any::<i64>(), prop::collection::vec(any::<u32>(), 0..6), prop::option::of(0..3i32))
        .prop_map(|(hash, tokens, level)| {
            let mut block = block(hash, &tokens);
            block.cache_level = level;
            block
        });
    let stored = (prop::collection::vec(block, 1..6), prop::option::of(any::<i64>())).prop_map(
        |(blocks, parent_block_hash)| {
            Data::Stored(proto::KvBlocksStored { blocks, parent_block_hash, ..Default::default() })
        },
    );
    let removed = prop::collection::vec(any::<i64>(), 0..6).prop_map(|block_hashes| {
        Data::Removed(proto::KvBlocksRemoved { block_hashes, ..Default::default() })
    });
    let cleared = Just(Data::Cleared(proto::KvCacheCleared::default()));
    prop::collection::vec(prop_oneof![4 => stored, 2 => removed, 1 => cleared], 0..6).prop_map(batch)
}

proptest! {
    #[test]
    fn what_prost_writes_is_read_block_by_block(message in some_batch()) {
        let bytes = message.encode_to_vec();
        checks::smg_batch(&bytes);
        let mut decoder = Decoder::default();
        let batch = decoder.decode_as(Dialect::Smg, &bytes).unwrap();
        prop_assert_eq!((batch.broken, batch.unknown_fields), (None, 0));
        // A block is what it was, whatever run it has come into.
        let mut read = Vec::new();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    let mut parent = stored.parent.map(|hash| hash.bits as i64);
                    let tokens = batch.tokens(stored);
                    let size = if tokens.ids().is_empty() { 0 } else { stored.block_size as usize };
                    for (at, hash) in batch.stored_hashes(stored).iter().enumerate() {
                        let own = tokens.slice(at * size, size).unwrap().to_vec();
                        read.push((parent, hash.bits as i64, own));
                        parent = Some(hash.bits as i64);
                    }
                }
                Event::Removed(removed) => {
                    read.extend(batch.removed_hashes(removed).iter().map(|hash| (None, hash.bits as i64, vec![1])));
                }
                other => prop_assert_eq!(other, &Event::Cleared { ownership: None }),
            }
        }
        let mut sent = Vec::new();
        for event in &message.events {
            match event.data.as_ref().unwrap() {
                Data::Stored(stored) => {
                    let mut parent = stored.parent_block_hash;
                    for block in &stored.blocks {
                        sent.push((parent, block.block_hash, block.token_ids.clone()));
                        parent = Some(block.block_hash);
                    }
                }
                Data::Removed(removed) => {
                    sent.extend(removed.block_hashes.iter().map(|hash| (None, *hash, vec![1])));
                }
                Data::Cleared(_) => {}
            }
        }
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn damaged_messages_are_read_as_far_as_they_go(message in some_batch(), at: prop::sample::Index, byte: u8) {
        let mut bytes = message.encode_to_vec();
        checks::smg_batch(&bytes[..at.index(bytes.len() + 1)]);
        let place = at.index(bytes.len());
        bytes[place] = byte;
        checks::smg_batch(&bytes);
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        checks::smg_batch(&bytes);
    }

    #[test]
    fn many_tiny_events_do_not_fill_memory(count in 0..20_000usize, data in prop::collection::vec(any::<u8>(), 0..3)) {
        let event = [&[0x1a, data.len() as u8][..], &data].concat();
        checks::smg_batch(&event.repeat(count));
    }
}

#[test]
fn a_name_that_is_too_long_costs_its_event_alone() {
    let long = "x".repeat(crate::MAX_NAME + 1);
    let key = proto::KvBlockExtraKey { key: Some(Key::Text(long.clone())) };
    let mut keyed = block(1, &[1]);
    keyed.extra_keys = vec![key];
    let stores = [
        proto::KvBlocksStored { blocks: vec![block(1, &[1])], ownership: Some(long), ..Default::default() },
        proto::KvBlocksStored { blocks: vec![keyed], ..Default::default() },
    ];
    for stored in stores {
        let good = proto::KvBlocksStored { blocks: vec![block(2, &[2])], ..Default::default() };
        decoded(&batch(vec![Data::Stored(stored), Data::Stored(good)]), |batch| {
            let [Event::Rejected(rejected), Event::Stored(_)] = &batch.events[..] else {
                panic!("{:?}", batch.events)
            };
            assert_eq!((rejected.kind, rejected.reason), (RejectedKind::Store, RejectReason::NameTooLong));
        });
    }
}
