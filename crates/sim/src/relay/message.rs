//! From a cache's events to SMG's messages.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use kvplane_proto::Encoded;
use kvplane_proto::smg::kv_block_extra_key::Key;
use kvplane_proto::smg::kv_cache_event::Data;
use kvplane_proto::smg::{
    KvBlock, KvBlockExtraKey, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheTier,
    KvEventBatch, KvMultimodalKey, KvSnapshotChunk,
};
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use prost::Message as _;

/// A field that ends behind the message.
pub(super) const NONSENSE: Bytes = Bytes::from_static(&[0x1a, 0x7f]);

/// What the parts of a snapshot have in common.
pub(super) struct Cut {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) blocks: u64,
    pub(super) unknown_before: u64,
    pub(super) rank: Option<u32>,
}

/// A batch.
pub(super) fn batch(sequence: u64, timestamp: f64, rank: Option<u32>, events: &[OwnedEvent]) -> Bytes {
    let batch = KvEventBatch {
        sequence_number: sequence,
        timestamp,
        events: (1..).zip(events).map(|(id, event)| cache_event(id, event)).collect(),
        dp_rank: rank.map(|rank| rank as i32),
        ..KvEventBatch::default()
    };
    batch.encode_to_vec().into()
}

/// A part of a snapshot.
pub(super) fn part(cut: &Cut, index: u32, stores: &[OwnedEvent]) -> Bytes {
    let clear = (index == 0).then_some(&OwnedEvent::Cleared);
    let batch = KvEventBatch {
        sequence_number: cut.first + u64::from(index),
        events: clear.into_iter().chain(stores).map(|event| cache_event(0, event)).collect(),
        dp_rank: cut.rank.map(|rank| rank as i32),
        snapshot: Some(KvSnapshotChunk {
            index,
            count: cut.count,
            blocks: cut.blocks,
            unknown_before: cut.unknown_before,
        }),
        ..KvEventBatch::default()
    };
    batch.encode_to_vec().into()
}

/// A message as it is sent: with a load record of its own.
pub(super) fn with_load(message: &Bytes) -> Encoded {
    static SAMPLES: AtomicU64 = AtomicU64::new(1);
    let sample = SAMPLES.fetch_add(1, Ordering::Relaxed);
    let mut sent = BytesMut::from(&message[..]);
    // EngineLoad { 8: sample }, as the last field of the message.
    let mut load = vec![8 << 3];
    prost::encoding::encode_varint(sample, &mut load);
    sent.put_u8(8 << 3 | 2);
    prost::encoding::encode_varint(load.len() as u64, &mut sent);
    sent.put_slice(&load);
    Encoded(sent.freeze())
}

/// A load record without a batch.
pub(super) fn load_only() -> Encoded {
    // EngineLoad { 9: load_only }
    let batch = KvEventBatch { load: Some(Bytes::from_static(&[9 << 3, 1])), ..KvEventBatch::default() };
    Encoded(batch.encode_to_vec().into())
}

/// The stores of each block alone.
pub(super) fn one_by_one(stored: &OwnedStored) -> Vec<(u64, OwnedStored)> {
    let size = stored.block_size as usize;
    let mut parent = stored.parent.clone();
    let block = |(at, hash): (usize, &OwnedHash)| {
        let store = OwnedStored {
            block_hashes: vec![hash.clone()],
            parent: parent.replace(hash.clone()),
            token_ids: stored.token_ids.get(at * size..(at + 1) * size).unwrap_or_default().to_vec(),
            extra_keys: stored.extra_keys.as_ref().map(|keys| keys.get(at..=at).unwrap_or_default().to_vec()),
            ..stored.clone()
        };
        (bits(hash), store)
    };
    stored.block_hashes.iter().enumerate().map(block).collect()
}

/// The 64 bits that a relay keeps of a hash.
pub(super) fn bits(hash: &OwnedHash) -> u64 {
    match hash {
        OwnedHash::Unsigned(bits) => *bits,
        OwnedHash::Signed(bits) => *bits as u64,
        OwnedHash::Bytes(bytes) => bytes.last_chunk().map_or(0, |tail| u64::from_be_bytes(*tail)),
        OwnedHash::Hex(bytes) => bytes.first_chunk().map_or(0, |head| u64::from_be_bytes(*head)),
    }
}

fn cache_event(event_id: u64, event: &OwnedEvent) -> KvCacheEvent {
    let data = match event {
        OwnedEvent::Stored(stored) => Data::Stored(reported_store(stored)),
        OwnedEvent::Removed(removed) => Data::Removed(reported_removal(removed)),
        OwnedEvent::Cleared => Data::Cleared(KvCacheCleared::default()),
    };
    KvCacheEvent { event_id, data: Some(data) }
}

fn reported_store(stored: &OwnedStored) -> KvBlocksStored {
    KvBlocksStored {
        blocks: one_by_one(stored).into_iter().map(|(hash, store)| mirror_block(hash, store)).collect(),
        parent_block_hash: stored.parent.as_ref().map(|parent| bits(parent) as i64),
        tier: Some(KvCacheTier::Device.into()),
        medium: stored.medium.clone(),
        group_idx: stored.group,
        kv_cache_spec_kind: stored.spec_kind.clone(),
        kv_cache_spec_sliding_window: stored.sliding_window,
        ownership: stored.ownership.clone(),
        session_id: stored.session_id.clone(),
        lora_name: stored.lora_name.clone(),
        ..KvBlocksStored::default()
    }
}

fn mirror_block(hash: u64, store: OwnedStored) -> KvBlock {
    let keys = store.extra_keys.into_iter().flatten().flatten().flatten();
    KvBlock {
        block_hash: hash as i64,
        token_ids: store.token_ids,
        block_size: store.block_size as i32,
        lora_id: store.lora_id,
        extra_keys: keys.map(|key| KvBlockExtraKey { key: Some(reported_key(key)) }).collect(),
        ..KvBlock::default()
    }
}

fn reported_key(key: OwnedExtraKey) -> Key {
    match key {
        OwnedExtraKey::Text(text) => Key::Text(text),
        OwnedExtraKey::Bytes(bytes) => Key::Blob(bytes.into()),
        OwnedExtraKey::Integer(number) => Key::Number(number),
        OwnedExtraKey::Multimodal(identifier, offset) => {
            Key::Multimodal(KvMultimodalKey { identifier, offset })
        }
    }
}

fn reported_removal(removed: &OwnedRemoved) -> KvBlocksRemoved {
    KvBlocksRemoved {
        block_hashes: removed.block_hashes.iter().map(|hash| bits(hash) as i64).collect(),
        tier: Some(KvCacheTier::Device.into()),
        medium: removed.medium.clone(),
        group_idx: removed.group,
        ownership: removed.ownership.clone(),
        ..KvBlocksRemoved::default()
    }
}
