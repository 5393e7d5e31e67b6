//! From entries and snapshots to kvplane.v1 messages.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvplane_catalog::age_ms;
use kvplane_core::{Continuity, Cursor, StateDigest, StreamId, Tier, Trust, TrustState};
use kvplane_ingest::Stream;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_stream::{
    Attributes, BlockImage, Chain, Change, Entry, ExtraKeys, Group, Layout, Parent, Place, Protocol,
    Snapshot, StoreCause, StoredBlock, StoredChange, Tokens, Wide,
};
use kvplane_wire::OwnedExtraKey;
use prost::Message as _;

use crate::encoding::{Messages, Plan, Planned};
use crate::plans::Plans;

/// Blocks in one snapshot message ...
const CHUNK_BLOCKS: usize = 2_048;
/// ... and tokens in it: with hashes it stays well below 1 MiB, whatever the block size.
const CHUNK_TOKENS: usize = 128 * 1_024;

/// An entry of the journal: encoded once, shared by all subscribers.
pub(super) fn entry(id: &StreamId, entry: &Entry) -> Bytes {
    entry.encoded(Protocol::Kvplane, |entry| {
        let batch = proto::Batch {
            engine_sequence: entry.engine_sequence,
            engine_digest: engine_digest(entry.engine_digest),
            timestamp: entry.timestamp,
            events: entry.changes.iter().map(|change| proto::Event { kind: Some(event(change)) }).collect(),
            trust: entry.trust.as_ref().map(trust),
            continuity: entry.continuity.map_or(0, |continuity| proto_continuity(continuity).into()),
            last_event_id: entry.next_event_id() - 1,
            digest: Some(state_digest(entry.digest)),
            known_from: entry.trust.as_ref().and(entry.known_from),
            units: entry.resumption.as_ref().map_or_else(Vec::new, |needs| needs.units.to_vec()),
            age_ms: entry.age.map(age_ms),
            whole_prompt: entry.resumption.as_ref().is_some_and(|needs| needs.whole_prompt),
        };
        let cursor = Cursor { epoch: entry.epoch, sequence: entry.sequence };
        response(id, cursor, Item::Batch(batch))
    })
}

fn engine_digest(digest: Option<u128>) -> Bytes {
    digest.map_or_else(Bytes::new, |digest| Bytes::copy_from_slice(&digest.to_be_bytes()))
}

pub(super) fn reset(stream: &Stream, cursor: Cursor, reason: proto::ResetReason) -> Bytes {
    let reset = proto::Reset { reason: reason.into(), via: via(stream) };
    response(stream.id(), cursor, Item::Reset(reset))
}

/// The planes that a stream came through.
pub(super) fn via(stream: &Stream) -> Vec<String> {
    stream.via().iter().map(ToString::to_string).collect()
}

pub(super) fn continuity_item(id: &StreamId, cursor: Cursor, continuity: Continuity) -> Bytes {
    response(id, cursor, Item::Standing(proto::Standing { continuity: proto_continuity(continuity).into() }))
}

pub(super) fn gone(id: &StreamId, cursor: Cursor) -> Bytes {
    response(id, cursor, Item::Gone(proto::Gone {}))
}

fn response(id: &StreamId, cursor: Cursor, item: Item) -> Bytes {
    let response = proto::SubscribeResponse {
        engine: id.engine.to_string(),
        rank: id.rank,
        epoch: cursor.epoch.as_u64(),
        sequence: cursor.sequence,
        item: Some(item),
    };
    response.encode_to_vec().into()
}

fn event(change: &Change) -> proto::event::Kind {
    use proto::event::Kind;
    match change {
        Change::Stored(change) => Kind::Stored(stored(change)),
        Change::Removed { place: at, blocks } => Kind::Removed(proto::Removed {
            place: Some(place(at)),
            blocks: blocks
                .iter()
                .map(|block| proto::RemovedBlock { hash: block.hash, copies: block.copies })
                .collect(),
        }),
        Change::Cleared { places, .. } => {
            Kind::Cleared(proto::Cleared { places: places.iter().map(|p| place(p)).collect() })
        }
        Change::Dropped { reason, .. } => Kind::Dropped(proto::Dropped { reason: reason.to_string() }),
    }
}

fn stored(change: &StoredChange) -> proto::Stored {
    proto::Stored {
        cause: match change.cause {
            StoreCause::Announced => proto::StoreCause::Announced,
            StoreCause::Proven => proto::StoreCause::Proven,
            StoreCause::Attached => proto::StoreCause::Attached,
        }
        .into(),
        blocks: change.blocks.iter().map(block).collect(),
        layout: match change.layout {
            Layout::Dense => proto::Layout::Dense,
            Layout::Sparse => proto::Layout::Sparse,
            Layout::HashOnly => proto::Layout::HashOnly,
        }
        .into(),
        parent_hash: change.parent,
        span_token_ids: change.span.as_ref().map_or_else(Vec::new, |span| span.to_vec()),
        session_id: change.session_id.as_ref().map(ToString::to_string),
        ..stored_frame(Some(&change.place), change.block_size, &change.attributes)
    }
}

fn stored_frame(at: Option<&Place>, block_size: u32, attributes: &Attributes) -> proto::Stored {
    proto::Stored {
        place: at.map(place),
        block_size,
        lora_id: attributes.lora_id,
        lora_name: attributes.lora_name.as_deref().map(str::to_owned),
        cache_salt: attributes.cache_salt.as_deref().map(str::to_owned),
        bigrams: attributes.bigrams,
        ..proto::Stored::default()
    }
}

fn block(block: &StoredBlock) -> proto::Block {
    let (parent, root) = parent(block.parent());
    proto::Block {
        hash: block.hash,
        digest: digest(block.wide()),
        copies: block.copies,
        parent,
        root,
        token_ids: block.tokens().map_or_else(Vec::new, Tokens::to_vec),
        first_position: block.first_position(),
        content_hash: block.content(),
        extra_keys: extra_keys(block.extra_keys()),
    }
}

fn parent(parent: Option<Parent>) -> (Option<u64>, bool) {
    match parent {
        None => (None, false),
        Some(Parent::Root) => (None, true),
        Some(Parent::Block(hash)) => (Some(hash), false),
    }
}

fn digest(wide: Option<&Wide>) -> Bytes {
    wide.map_or_else(Bytes::new, |wide| Bytes::copy_from_slice(wide))
}

fn extra_keys(keys: Option<&ExtraKeys>) -> Vec<proto::ExtraKey> {
    use proto::extra_key::Key;
    let keys = keys.map_or(&[][..], |keys| &keys[..]);
    let one = |key: &OwnedExtraKey| match key {
        OwnedExtraKey::Text(text) => Key::Text(text.clone()),
        OwnedExtraKey::Bytes(bytes) => Key::Blob(Bytes::copy_from_slice(bytes)),
        OwnedExtraKey::Integer(number) => Key::Number(*number),
        OwnedExtraKey::Multimodal(id, offset) => {
            Key::Multimodal(proto::MultimodalKey { id: id.clone(), offset: *offset })
        }
    };
    keys.iter().map(|key| proto::ExtraKey { key: Some(one(key)) }).collect()
}

fn place(place: &Place) -> proto::Place {
    proto::Place {
        tier: match place.tier {
            Tier::Device => proto::Tier::Device,
            Tier::Host => proto::Tier::Host,
            Tier::Disk => proto::Tier::Disk,
            Tier::Remote => proto::Tier::Remote,
            Tier::Unknown => proto::Tier::Unknown,
        }
        .into(),
        medium: place.medium.as_deref().map(str::to_owned),
        locality: place.locality.as_deref().map(str::to_owned),
        ownership: place.ownership.as_deref().map(str::to_owned),
        group: place.group,
        spec_kind: place.spec_kind.as_deref().map(str::to_owned),
        sliding_window: place.sliding_window,
    }
}

fn group(group: &Group) -> proto::CacheGroup {
    proto::CacheGroup {
        group: group.group,
        spec_kind: group.spec_kind.as_deref().map(str::to_owned),
        sliding_window: group.sliding_window,
        block_size: group.block_size,
        block_size_sure: group.size_is_sure,
    }
}

pub(super) fn proto_continuity(continuity: Continuity) -> proto::Continuity {
    match continuity {
        Continuity::Connecting => proto::Continuity::Connecting,
        Continuity::Recovering => proto::Continuity::Recovering,
        Continuity::Live => proto::Continuity::Live,
        Continuity::Down => proto::Continuity::Down,
    }
}

pub(super) fn state_digest(digest: StateDigest) -> proto::Digest {
    let (low, high) = digest.parts();
    proto::Digest { low, high }
}

pub(super) fn level(trust: Trust) -> proto::TrustLevel {
    match trust {
        Trust::Exact => proto::TrustLevel::Exact,
        Trust::Lower => proto::TrustLevel::Lower,
        Trust::Unverified => proto::TrustLevel::Unverified,
        Trust::Unsound => proto::TrustLevel::Unsound,
    }
}

pub(super) fn trust(state: &TrustState) -> proto::Trust {
    let degradations = state
        .active()
        .iter()
        .map(|d| proto::Degradation { reason: d.reason.to_string(), since_ms: d.since_ms })
        .collect();
    proto::Trust { level: level(state.level()).into(), degradations }
}

/// A snapshot, cut into messages.
#[derive(Debug)]
pub(super) struct SnapshotPlan {
    id: StreamId,
    snapshot: Arc<Snapshot>,
    /// Blocks, parents first.
    order: Vec<u32>,
    /// Which of them each message has.
    ranges: Vec<Range<usize>>,
}

impl SnapshotPlan {
    /// What subscribers that are sent one snapshot share. Orders the blocks, which takes its time.
    pub(super) fn messages_of(id: StreamId, snapshot: Arc<Snapshot>) -> Messages<Self> {
        static PLANS: Plans<Planned<SnapshotPlan>> = Plans::new();
        let plan = PLANS.of(&snapshot.clone(), 0, |_| Planned::new(Self::new(id, snapshot)));
        Messages::of(plan)
    }

    fn new(id: StreamId, snapshot: Arc<Snapshot>) -> Self {
        let order = snapshot.parents_first();
        let mut ranges = Vec::new();
        let (mut start, mut size) = (0, ChunkSize::default());
        for (at, &block) in order.iter().enumerate() {
            if size.is_full() {
                ranges.push(start..at);
                (start, size) = (at, ChunkSize::default());
            }
            size.add(&snapshot, &snapshot.image.blocks[block as usize]);
        }
        // An empty state is sent too.
        ranges.push(start..order.len());
        Self { id, snapshot, order, ranges }
    }
}

impl Plan for SnapshotPlan {
    fn messages(&self) -> usize {
        self.ranges.len()
    }

    fn encode(&self, index: usize) -> Bytes {
        let mut groups = Groups::default();
        for &block in &self.order[self.ranges[index].clone()] {
            groups.add(&self.snapshot, &self.snapshot.image.blocks[block as usize]);
        }
        let last = index + 1 == self.ranges.len();
        let index = index as u32;
        let mut chunk = proto::SnapshotChunk { index, last, stored: groups.stored, ..Default::default() };
        if last {
            chunk.trust = Some(trust(&self.snapshot.trust));
            chunk.continuity = proto_continuity(self.snapshot.continuity).into();
            chunk.engine_sequence = self.snapshot.engine_sequence;
            chunk.engine_digest = engine_digest(self.snapshot.engine_digest);
            chunk.known_from = self.snapshot.known_from;
            chunk.age_ms = self.snapshot.age.map(age_ms);
            chunk.digest = Some(state_digest(self.snapshot.digest));
            chunk.last_event_id = self.snapshot.last_event_id;
            chunk.block_size = self.snapshot.block_size;
            chunk.partial_blocks = self.snapshot.partial_blocks;
            chunk.groups = self.snapshot.groups.iter().map(group).collect();
            chunk.units = self.snapshot.resumption.units.to_vec();
            chunk.drops_last = self.snapshot.resumption.drops_last;
            chunk.whole_prompt = self.snapshot.resumption.whole_prompt;
        }
        response(&self.id, self.snapshot.cursor, Item::Snapshot(chunk))
    }
}

/// How much a message has.
#[derive(Default)]
struct ChunkSize {
    blocks: usize,
    tokens: usize,
}

impl ChunkSize {
    fn is_full(&self) -> bool {
        self.blocks >= CHUNK_BLOCKS || self.tokens >= CHUNK_TOKENS
    }

    /// A block is sent once for each place that holds it, and once for each other size that it is known at.
    fn add(&mut self, snapshot: &Snapshot, image: &BlockImage) {
        let (chain, others) = snapshot.chains_of(image);
        let copies = image.holdings.len().max(1);
        self.blocks += copies;
        self.tokens += copies * chain.map_or(0, |chain| chain.tokens.len());
        for other in others {
            self.blocks += 1;
            self.tokens += other.tokens.len();
        }
    }
}

/// Blocks of one chunk, joined where they have everything but themselves in common.
#[derive(Default)]
struct Groups {
    stored: Vec<proto::Stored>,
    /// Place, block size and attributes of the last group.
    last: Option<(Option<u16>, u32, Option<Arc<Attributes>>)>,
}

impl Groups {
    fn add(&mut self, snapshot: &Snapshot, image: &BlockImage) {
        let (chain, others) = snapshot.chains_of(image);
        for other in others {
            self.add_in(snapshot, (image, Some(other)), None, 0);
        }
        if image.holdings.is_empty() {
            self.add_in(snapshot, (image, chain), None, 0);
        }
        for holding in &image.holdings {
            self.add_in(snapshot, (image, chain), Some(holding.place), holding.copies);
        }
    }

    fn add_in(
        &mut self,
        snapshot: &Snapshot,
        (image, chain): (&BlockImage, Option<&Chain>),
        place: Option<u16>,
        copies: u32,
    ) {
        let block_size = chain.map_or(0, |chain| chain.block_size);
        let attributes = chain.map(|chain| &chain.attributes);
        let same = self.last.as_ref().is_some_and(|(last_place, last_size, last_attributes)| {
            (*last_place, *last_size, last_attributes.as_ref()) == (place, block_size, attributes)
        });
        if !same {
            self.last = Some((place, block_size, attributes.cloned()));
            let none = Attributes::default();
            let attributes = attributes.map_or(&none, |attributes| attributes);
            let place = place.map(|at| &*snapshot.image.places[usize::from(at)]);
            let mut group = stored_frame(place, block_size, attributes);
            let layout = if chain.is_some() { proto::Layout::Dense } else { proto::Layout::HashOnly };
            group.layout = layout.into();
            self.stored.push(group);
        }
        let (parent, root) = parent(chain.map(Chain::parent));
        let block = proto::Block {
            hash: image.hash,
            digest: digest(image.wide.as_ref()),
            copies,
            parent,
            root,
            token_ids: chain.map_or_else(Vec::new, |chain| chain.tokens.to_vec()),
            first_position: None,
            content_hash: chain.filter(|chain| chain.attached).map(|chain| chain.content),
            extra_keys: extra_keys(chain.and_then(|chain| chain.extra_keys.as_ref())),
        };
        if let Some(group) = self.stored.last_mut() {
            group.blocks.push(block);
        }
    }
}
