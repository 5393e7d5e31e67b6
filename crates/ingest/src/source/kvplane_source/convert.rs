//! From kvplane.v1 messages to inputs of a recorder.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Cursor, Epoch, LEVELS, Reason, Resumption, StateDigest, Tier, TrustState};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::trust_level;
use kvplane_stream::{
    Attributes, Change, ExtraKeys, Group, Layout, MirrorBlocks, MirrorChunk, MirrorEnd, MirrorEntry, Misfit,
    Parent, Place, RemovedBlock, StoreCause, StoredBlock, StoredChange,
};
use kvplane_wire::OwnedExtraKey;

pub(super) fn cursor(message: &proto::SubscribeResponse) -> Cursor {
    Cursor { epoch: Epoch::from_raw(message.epoch), sequence: message.sequence }
}

pub(super) fn entry(cursor: Cursor, batch: proto::Batch) -> Result<MirrorEntry, Misfit> {
    let mut changes = Vec::with_capacity(batch.events.len());
    let continuity = kvplane_proto::continuity(batch.continuity);
    for event in batch.events {
        // An event of a kind that this build does not know is passed over: the digest tells whether it
        // mattered.
        if let Some(kind) = event.kind {
            changes.push(change(kind)?);
        }
    }
    Ok(MirrorEntry {
        cursor,
        engine_sequence: batch.engine_sequence,
        timestamp: batch.timestamp,
        changes,
        trust: batch.trust.as_ref().map(trust),
        known_from: batch.known_from,
        continuity,
        digest: digest(batch.digest)?,
        age: batch.age_ms.map(Duration::from_millis),
        last_event_id: batch.last_event_id,
        units: (!batch.units.is_empty()).then(|| units(&batch.units)),
        whole_prompt: batch.whole_prompt,
    })
}

pub(super) fn chunk(chunk: proto::SnapshotChunk) -> Result<MirrorChunk, Misfit> {
    let end = if chunk.last {
        Some(MirrorEnd {
            trust: chunk.trust.as_ref().map(trust).ok_or(Misfit::Malformed("a snapshot without trust"))?,
            continuity: kvplane_proto::continuity(chunk.continuity)
                .ok_or(Misfit::Malformed("a snapshot without continuity"))?,
            engine_sequence: chunk.engine_sequence,
            known_from: chunk.known_from,
            digest: digest(chunk.digest)?,
            age: chunk.age_ms.map(Duration::from_millis),
            last_event_id: chunk.last_event_id,
            block_size: chunk.block_size,
            partial_blocks: chunk.partial_blocks,
            groups: chunk.groups.iter().map(group).collect(),
            resumption: Resumption {
                units: units(&chunk.units),
                drops_last: chunk.drops_last,
                whole_prompt: chunk.whole_prompt,
                ..Resumption::default()
            },
        })
    } else {
        None
    };
    let blocks = chunk.stored.into_iter().map(|mut stored| MirrorBlocks {
        place: stored.place.as_ref().map(place),
        block_size: stored.block_size,
        attributes: attributes(&mut stored),
        blocks: stored.blocks.into_iter().map(block).collect(),
    });
    Ok(MirrorChunk { index: chunk.index, blocks: blocks.collect(), end })
}

fn group(told: &proto::CacheGroup) -> Group {
    let size = told.block_size.map(|size| (size, told.block_size_sure));
    Group::reported(told.group, told.spec_kind.as_deref(), told.sliding_window, size)
}

/// Where nothing is said, a tier gives back single blocks.
fn units(told: &[u32]) -> [u32; LEVELS] {
    std::array::from_fn(|tier| told.get(tier).copied().unwrap_or(1).max(1))
}

fn digest(told: Option<proto::Digest>) -> Result<StateDigest, Misfit> {
    let told = told.ok_or(Misfit::Malformed("no digest"))?;
    Ok(StateDigest::from_parts(told.low, told.high))
}

fn trust(told: &proto::Trust) -> TrustState {
    let reasons = told.degradations.iter().map(|told| (told.reason.as_str(), told.since_ms));
    TrustState::reported(trust_level(told), reasons)
}

fn change(kind: proto::event::Kind) -> Result<Change, Misfit> {
    use proto::event::Kind;
    Ok(match kind {
        Kind::Stored(told) => Change::Stored(stored(told)?),
        Kind::Removed(told) => Change::Removed {
            place: told.place.as_ref().map(place).ok_or(Misfit::Malformed("a removal without a place"))?,
            blocks: told
                .blocks
                .iter()
                .map(|block| RemovedBlock { hash: block.hash, copies: block.copies })
                .collect(),
        },
        Kind::Cleared(told) => {
            Change::Cleared { places: told.places.iter().map(place).collect(), elsewhere: Vec::new() }
        }
        Kind::Dropped(told) => Change::Dropped {
            reason: Reason::named(&told.reason).unwrap_or(Reason::UpstreamLower),
            elsewhere: Vec::new(),
        },
    })
}

fn stored(mut told: proto::Stored) -> Result<StoredChange, Misfit> {
    let cause = match told.cause() {
        proto::StoreCause::Announced => StoreCause::Announced,
        proto::StoreCause::Proven => StoreCause::Proven,
        proto::StoreCause::Attached => StoreCause::Attached,
    };
    let layout = match told.layout() {
        proto::Layout::Dense => Layout::Dense,
        proto::Layout::Sparse => Layout::Sparse,
        proto::Layout::HashOnly => Layout::HashOnly,
    };
    Ok(StoredChange {
        cause,
        layout,
        place: told.place.as_ref().map(place).ok_or(Misfit::Malformed("a store without a place"))?,
        block_size: told.block_size,
        parent: told.parent_hash,
        span: (!told.span_token_ids.is_empty()).then(|| Arc::from(std::mem::take(&mut told.span_token_ids))),
        attributes: attributes(&mut told),
        session_id: told.session_id.take().map(String::into_boxed_str),
        blocks: told.blocks.into_iter().map(block).collect(),
    })
}

fn attributes(told: &mut proto::Stored) -> Arc<Attributes> {
    Arc::new(Attributes {
        lora_id: told.lora_id,
        lora_name: told.lora_name.take().map(String::into_boxed_str),
        cache_salt: told.cache_salt.take().map(String::into_boxed_str),
        bigrams: told.bigrams,
    })
}

fn block(told: proto::Block) -> StoredBlock {
    let parent = match (told.root, told.parent) {
        (true, _) => Some(Parent::Root),
        (false, parent) => parent.map(Parent::Block),
    };
    StoredBlock {
        hash: told.hash,
        wide: (!told.digest.is_empty()).then(|| Arc::from(&told.digest[..])),
        copies: told.copies,
        parent,
        tokens: parent.is_some().then(|| Arc::from(told.token_ids)),
        first_position: told.first_position,
        content: told.content_hash,
        extra_keys: extra_keys(told.extra_keys),
    }
}

fn extra_keys(told: Vec<proto::ExtraKey>) -> Option<ExtraKeys> {
    if told.is_empty() { None } else { Some(told_keys(told).collect()) }
}

/// A block's extra keys as `kvplane.v1` has them. One of a kind that this build does not know is passed over.
pub fn told_keys(told: Vec<proto::ExtraKey>) -> impl Iterator<Item = OwnedExtraKey> {
    use proto::extra_key::Key;
    told.into_iter().filter_map(|told| told.key).map(|key| match key {
        Key::Text(text) => OwnedExtraKey::Text(text),
        Key::Blob(bytes) => OwnedExtraKey::Bytes(Bytes::into(bytes)),
        Key::Number(number) => OwnedExtraKey::Integer(number),
        Key::Multimodal(item) => OwnedExtraKey::Multimodal(item.id, item.offset),
    })
}

fn place(told: &proto::Place) -> Arc<Place> {
    let tier = match told.tier() {
        proto::Tier::Device => Tier::Device,
        proto::Tier::Host => Tier::Host,
        proto::Tier::Disk => Tier::Disk,
        proto::Tier::Remote => Tier::Remote,
        proto::Tier::Unknown => Tier::Unknown,
    };
    let names = [told.medium.as_deref(), told.locality.as_deref(), told.ownership.as_deref()];
    Arc::new(Place::reported(tier, names, told.group, told.spec_kind.as_deref(), told.sliding_window))
}
