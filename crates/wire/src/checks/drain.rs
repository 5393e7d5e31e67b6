//! The same for what `TensorRT-LLM` has drained.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{bounded, look_at_all};
use crate::event::{Batch, Event, ExtraKey};
use crate::hash::Hash;
use crate::owned::{OwnedExtraKey, own_key};
use crate::trtllm::encode::{TrtBlock, TrtData, TrtEvent, TrtHash, TrtToken, TrtTokenId, encode_events};
use crate::trtllm::{PART_EVENTS, split};
use crate::{Decoder, Dialect};

/// Any bytes are a list of events or an error; its parts keep their promises, and decode to something
/// consistent with bounded memory.
pub fn drained_json(bytes: &[u8]) {
    decode(bytes);
    let Ok(drained) = split(&Bytes::copy_from_slice(bytes)) else { return };
    let placed: usize = drained.parts.iter().map(|part| part.count).sum();
    assert_eq!(placed + drained.unreadable, drained.events);
    for part in &drained.parts {
        assert!((1..=PART_EVENTS).contains(&part.count));
        assert_eq!(part.last_id - part.first_id + 1, part.count as u64);
        assert!(part.payload.len() < bytes.len());
        decode(&part.payload);

        // A part stands for itself: as a list of its own it is the same part.
        let alone = split(&[b"[", &part.payload[..], b"]"].concat().into());
        assert!(alone.is_ok_and(|alone| alone.parts == [part.clone()] && alone.unreadable == 0));
    }
    assert!(drained.parts.is_sorted_by_key(|part| part.rank));
}

/// What a server writes is read as it was meant: every rank's events, in their order.
pub fn drain_round_trip(events: &[TrtEvent]) {
    let body = Bytes::from(encode_events(events));
    drained_json(&body);
    let drained = split(&body).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((drained.events, drained.unreadable), (events.len(), 0));
    let mut meant: BTreeMap<u32, Vec<Said>> = BTreeMap::new();
    for event in events {
        meant.entry(event.attention_dp_rank.unwrap_or(0)).or_default().extend(Said::of_event(event));
    }
    let mut read: BTreeMap<u32, Vec<Said>> = BTreeMap::new();
    let mut decoder = Decoder::default();
    for part in &drained.parts {
        let batch = decoder.decode_as(Dialect::TrtllmJson, &part.payload);
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((batch.broken, batch.unknown_fields), (None, 0));
        let said = batch.events.iter().flat_map(|event| Said::of_decoded(&batch, event));
        read.entry(part.rank).or_default().extend(said);
    }
    assert_eq!(read, meant);
}

fn decode(payload: &[u8]) {
    let mut decoder = Decoder::default();
    if let Ok(batch) = decoder.decode_as(Dialect::TrtllmJson, payload) {
        look_at_all(&batch);
        let held = batch.events.capacity() * size_of::<Event<'_>>()
            + batch.extra_keys.capacity() * size_of::<ExtraKey<'_>>();
        assert!(held <= super::BATCH_FLOOR + super::BATCH_PER_FRAME_BYTE * payload.len(), "{held}");
        let (events, broken) = (format!("{:?}", batch.events), batch.broken);

        // Used buffers must not show.
        let again = decoder.decode_as(Dialect::TrtllmJson, payload);
        assert!(again.is_ok_and(|again| format!("{:?}", again.events) == events && again.broken == broken));
    }
    bounded(&decoder, payload);
}

/// What an event says, a block at a time: the same however blocks are put together.
#[derive(Debug, PartialEq)]
enum Said {
    Created { device_blocks: u64, group: Option<u32> },
    Stored(Box<StoredBlock>),
    Removed { hashes: Vec<TrtHash>, group: Option<u32> },
    Moved { hash: TrtHash, from: String, to: String, group: Option<u32> },
    Other(String),
}

#[derive(Debug, PartialEq)]
struct StoredBlock {
    hash: TrtHash,
    parent: Option<TrtHash>,
    tokens: Vec<u32>,
    medium: String,
    salt: Option<String>,
    keys: Vec<OwnedExtraKey>,
    group: Option<u32>,
    window: Option<u32>,
}

impl Said {
    fn of_event(event: &TrtEvent) -> Vec<Self> {
        let group = event.layer_group_id.or(event.window_size);
        match &event.data {
            TrtData::Created { num_blocks_per_cache_level: levels } => {
                vec![Self::Created { device_blocks: levels[0], group }]
            }
            TrtData::Removed { block_hashes } => vec![Self::Removed { hashes: block_hashes.clone(), group }],
            TrtData::Updated { block_hash, cache_level, .. } => {
                let moved = cache_level.filter(|level| level.old_value != level.new_value);
                let said = moved.map(|level| Self::Moved {
                    hash: block_hash.clone(),
                    from: medium(level.old_value).to_owned(),
                    to: medium(level.new_value).to_owned(),
                    group,
                });
                said.into_iter().collect()
            }
            TrtData::Stored { parent_hash, blocks } => {
                let before = blocks.iter().map(|block| Some(block.block_hash.clone()));
                let parents = std::iter::once(parent_hash.clone()).chain(before);
                let block = |(block, parent): (&TrtBlock, _)| {
                    Self::Stored(Box::new(StoredBlock {
                        hash: block.block_hash.clone(),
                        parent,
                        tokens: block.tokens.iter().map(token_number).collect(),
                        medium: medium(block.cache_level).to_owned(),
                        salt: block.cache_salt.clone(),
                        keys: keys(block),
                        group,
                        window: event.window_size,
                    }))
                };
                blocks.iter().zip(parents).map(block).collect()
            }
        }
    }

    fn of_decoded<'f>(batch: &Batch<'_, 'f>, event: &Event<'f>) -> Vec<Self> {
        match event {
            Event::Created(created) => {
                vec![Self::Created { device_blocks: created.device_blocks, group: created.group }]
            }
            Event::Removed(removed) if removed.anywhere => {
                let hashes = batch.removed_hashes(removed).iter().map(|hash| hash_of(batch, *hash));
                vec![Self::Removed { hashes: hashes.collect(), group: removed.group }]
            }
            Event::Moved(moved) => vec![Self::Moved {
                hash: hash_of(batch, moved.hash),
                from: moved.from.to_owned(),
                to: moved.to.to_owned(),
                group: moved.group,
            }],
            Event::Stored(stored) => {
                let hashes = batch.stored_hashes(stored);
                let parents = std::iter::once(stored.parent).chain(hashes.iter().copied().map(Some));
                let size = stored.block_size as usize;
                let tokens = batch.tokens(stored).ids().chunks(size);
                let block = |(index, ((hash, parent), tokens)): (usize, ((&_, Option<_>), &[u32]))| {
                    Self::Stored(Box::new(StoredBlock {
                        hash: hash_of(batch, *hash),
                        parent: parent.map(|parent| hash_of(batch, parent)),
                        tokens: tokens.to_vec(),
                        medium: stored.medium.unwrap_or_default().to_owned(),
                        salt: stored.cache_salt.map(str::to_owned),
                        keys: batch.extra_keys(stored, index).iter().filter_map(own_key).collect(),
                        group: stored.group,
                        window: stored.sliding_window,
                    }))
                };
                hashes.iter().zip(parents).zip(tokens).enumerate().map(block).collect()
            }
            other => vec![Self::Other(format!("{other:?}"))],
        }
    }
}

fn hash_of(batch: &Batch<'_, '_>, hash: Hash) -> TrtHash {
    match batch.wide(hash) {
        Some(digest) => TrtHash::Digest(digest.iter().map(|byte| format!("{byte:02x}")).collect()),
        None => TrtHash::Number(hash.bits),
    }
}

fn medium(level: u32) -> &'static str {
    ["GPU", "CPU", "DISK"].get(level as usize).copied().unwrap_or("UNKNOWN_LEVEL")
}

fn token_number(token: &TrtToken) -> u32 {
    match token.token_id {
        TrtTokenId::Number(id) => id,
        TrtTokenId::Digest(_) => 0,
    }
}

/// A block's extra keys by the rules of `trtllm/block.rs`, the long way.
fn keys(block: &TrtBlock) -> Vec<OwnedExtraKey> {
    let mut keys = Vec::new();
    for (at, token) in block.tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &block.tokens[before]);
        if let TrtTokenId::Digest(id) = &token.token_id
            && before.is_none_or(|before| before.token_id != token.token_id)
        {
            keys.push(OwnedExtraKey::Multimodal(id.clone(), at as i64));
        }
        if token.token_extra_id != before.map_or(0, |before| before.token_extra_id)
            && token.token_extra_id != 0
        {
            keys.push(OwnedExtraKey::Integer(at as i64));
            keys.push(OwnedExtraKey::Integer(token.token_extra_id.cast_signed()));
        }
    }
    let items = block.mm_keys.iter();
    keys.extend(
        items.map(|item| OwnedExtraKey::Multimodal(item.hash.clone(), item.start_offset.cast_signed())),
    );
    keys
}
