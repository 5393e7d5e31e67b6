//! From kvplane.v1 messages to inputs of a recorder.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Cursor, Epoch, LEVELS, Reason, Resumption, StateDigest, Tier, TrustState};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::trust_level;
use kvplane_stream::{
    Attributes, Change, ExtraKeys, Group, Layout, MirrorBlocks, MirrorChunk, MirrorEnd, MirrorEntry, Misfit,
    Parent, Place, RemovedBlock, StoreCause, StoredBlock, StoredChange, StoredParts, Tokens, Wide,
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
        engine_digest: engine_digest(&batch.engine_digest),
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

/// Sixteen bytes, or nothing that is known.
fn engine_digest(message: &[u8]) -> Option<u128> {
    message.try_into().ok().map(u128::from_be_bytes)
}

pub(super) fn chunk(chunk: proto::SnapshotChunk) -> Result<MirrorChunk, Misfit> {
    let end = if chunk.last {
        Some(MirrorEnd {
            trust: chunk.trust.as_ref().map(trust).ok_or(Misfit::Malformed("a snapshot without trust"))?,
            continuity: kvplane_proto::continuity(chunk.continuity)
                .ok_or(Misfit::Malformed("a snapshot without continuity"))?,
            engine_sequence: chunk.engine_sequence,
            engine_digest: engine_digest(&chunk.engine_digest),
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

fn group(message: &proto::CacheGroup) -> Group {
    let size = message.block_size.map(|size| (size, message.block_size_sure));
    Group::reported(message.group, message.spec_kind.as_deref(), message.sliding_window, size)
}

/// Where nothing is said, a tier gives back single blocks.
fn units(message: &[u32]) -> [u32; LEVELS] {
    std::array::from_fn(|tier| message.get(tier).copied().unwrap_or(1).max(1))
}

fn digest(message: Option<proto::Digest>) -> Result<StateDigest, Misfit> {
    let message = message.ok_or(Misfit::Malformed("no digest"))?;
    Ok(StateDigest::from_parts(message.low, message.high))
}

fn trust(message: &proto::Trust) -> TrustState {
    let reasons = message.degradations.iter().map(|message| (message.reason.as_str(), message.since_ms));
    TrustState::reported(trust_level(message), reasons)
}

fn change(kind: proto::event::Kind) -> Result<Change, Misfit> {
    use proto::event::Kind;
    Ok(match kind {
        Kind::Stored(message) => Change::Stored(stored(message)?),
        Kind::Removed(message) => Change::Removed {
            place: message.place.as_ref().map(place).ok_or(Misfit::Malformed("a removal without a place"))?,
            blocks: message
                .blocks
                .iter()
                .map(|block| RemovedBlock { hash: block.hash, copies: block.copies })
                .collect(),
        },
        Kind::Cleared(message) => {
            Change::Cleared { places: message.places.iter().map(place).collect(), elsewhere: Vec::new() }
        }
        Kind::Dropped(message) => Change::Dropped {
            reason: Reason::named(&message.reason).unwrap_or(Reason::UpstreamLower),
            elsewhere: Vec::new(),
        },
    })
}

fn stored(mut message: proto::Stored) -> Result<StoredChange, Misfit> {
    let cause = match message.cause() {
        proto::StoreCause::Announced => StoreCause::Announced,
        proto::StoreCause::Proven => StoreCause::Proven,
        proto::StoreCause::Attached => StoreCause::Attached,
    };
    let layout = match message.layout() {
        proto::Layout::Dense => Layout::Dense,
        proto::Layout::Sparse => Layout::Sparse,
        proto::Layout::HashOnly => Layout::HashOnly,
    };
    Ok(StoredChange {
        cause,
        layout,
        place: message.place.as_ref().map(place).ok_or(Misfit::Malformed("a store without a place"))?,
        block_size: message.block_size,
        parent: message.parent_hash,
        span: (!message.span_token_ids.is_empty())
            .then(|| Arc::from(std::mem::take(&mut message.span_token_ids))),
        attributes: attributes(&mut message),
        session_id: message.session_id.take().map(String::into_boxed_str),
        blocks: message.blocks.into_iter().map(block).collect(),
    })
}

fn attributes(message: &mut proto::Stored) -> Arc<Attributes> {
    Arc::new(Attributes {
        lora_id: message.lora_id,
        lora_name: message.lora_name.take().map(String::into_boxed_str),
        cache_salt: message.cache_salt.take().map(String::into_boxed_str),
        bigrams: message.bigrams,
    })
}

fn block(message: proto::Block) -> StoredBlock {
    let parent = match (message.root, message.parent) {
        (true, _) => Some(Parent::Root),
        (false, parent) => parent.map(Parent::Block),
    };
    StoredBlock::from(StoredParts {
        hash: message.hash,
        wide: (!message.digest.is_empty()).then(|| Wide::from(&message.digest[..])),
        copies: message.copies,
        parent,
        tokens: parent.is_some().then(|| Tokens::from(message.token_ids)),
        first_position: message.first_position,
        content: message.content_hash,
        extra_keys: extra_keys(message.extra_keys),
    })
}

fn extra_keys(message: Vec<proto::ExtraKey>) -> Option<ExtraKeys> {
    if message.is_empty() { None } else { Some(owned_keys(message).collect()) }
}

/// A block's extra keys as `kvplane.v1` has them. One of a kind that this build does not know is passed over.
pub fn owned_keys(message: Vec<proto::ExtraKey>) -> impl Iterator<Item = OwnedExtraKey> {
    use proto::extra_key::Key;
    message.into_iter().filter_map(|message| message.key).map(|key| match key {
        Key::Text(text) => OwnedExtraKey::Text(text),
        Key::Blob(bytes) => OwnedExtraKey::Bytes(Bytes::into(bytes)),
        Key::Number(number) => OwnedExtraKey::Integer(number),
        Key::Multimodal(item) => OwnedExtraKey::Multimodal(item.id, item.offset),
    })
}

fn place(message: &proto::Place) -> Arc<Place> {
    let tier = match message.tier() {
        proto::Tier::Device => Tier::Device,
        proto::Tier::Host => Tier::Host,
        proto::Tier::Disk => Tier::Disk,
        proto::Tier::Remote => Tier::Remote,
        proto::Tier::Unknown => Tier::Unknown,
    };
    let names = [message.medium.as_deref(), message.locality.as_deref(), message.ownership.as_deref()];
    Arc::new(Place::reported(
        tier,
        names,
        message.group,
        message.spec_kind.as_deref(),
        message.sliding_window,
    ))
}
