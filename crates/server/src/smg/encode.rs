//! From transitions to SMG's messages.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvplane_core::Tier;
use kvplane_proto::smg::{self, kv_block_extra_key::Key, kv_cache_event::Data};
use kvplane_stream::{Entry, Protocol, Snapshot, Transition, VisibleBlock};
use kvplane_wire::OwnedExtraKey;
use prost::Message as _;

use crate::encoding;

/// Blocks in one snapshot chunk ...
const CHUNK_BLOCKS: usize = 2_048;
/// ... and tokens: well below the 4 MiB that older clients accept, at five bytes a token.
const CHUNK_TOKENS: usize = 256 * 1_024;

/// An entry of a journal: encoded once, shared by all subscribers. Entries without visible events become
/// empty batches, so that sequences have no holes.
pub(super) fn entry(entry: &Entry) -> Bytes {
    entry.encoded(Protocol::Smg, |entry| {
        batch(entry.sequence, entry.timestamp, entry.first_event_id, &entry.transitions)
    })
}

/// One batch.
pub(super) fn batch(sequence: u64, timestamp: f64, first_event_id: u64, transitions: &[Transition]) -> Bytes {
    let events = (first_event_id..).zip(transitions).map(|(id, transition)| event(id, transition));
    let batch = smg::KvEventBatch {
        sequence_number: sequence,
        timestamp,
        events: events.collect(),
        ..smg::KvEventBatch::default()
    };
    batch.encode_to_vec().into()
}

fn event(event_id: u64, transition: &Transition) -> smg::KvCacheEvent {
    let data = match transition {
        Transition::Stored { tier, parent, blocks } => Data::Stored(stored(*tier, *parent, blocks)),
        Transition::Removed { tier, hashes } => Data::Removed(smg::KvBlocksRemoved {
            block_hashes: hashes.iter().map(|&hash| hash as i64).collect(),
            cache_level: Some(level(*tier)),
            tier: Some(smg_tier(*tier).into()),
            ..smg::KvBlocksRemoved::default()
        }),
        Transition::Cleared => Data::Cleared(smg::KvCacheCleared::default()),
    };
    smg::KvCacheEvent { event_id, data: Some(data) }
}

fn stored(tier: Tier, parent: Option<u64>, blocks: &[VisibleBlock]) -> smg::KvBlocksStored {
    let attributes = blocks.first().map(|block| &block.attributes);
    smg::KvBlocksStored {
        blocks: blocks.iter().map(|one| block(tier, one)).collect(),
        parent_block_hash: parent.map(|hash| hash as i64),
        tier: Some(smg_tier(tier).into()),
        lora_name: attributes.and_then(|a| a.lora_name.as_deref().map(str::to_owned)),
        cache_salt: attributes.and_then(|a| a.cache_salt.as_deref().map(str::to_owned)),
        ..smg::KvBlocksStored::default()
    }
}

fn block(tier: Tier, block: &VisibleBlock) -> smg::KvBlock {
    let keys = block.extra_keys.as_ref().map_or(&[][..], |keys| &keys[..]);
    smg::KvBlock {
        block_hash: block.hash as i64,
        // Of a bigram the first token: what the gateway itself has at that position.
        token_ids: if block.attributes.bigrams {
            block.tokens.iter().step_by(2).collect()
        } else {
            block.tokens.to_vec()
        },
        block_size: i32::try_from(block.block_size).unwrap_or(i32::MAX),
        lora_id: block.attributes.lora_id,
        cache_level: Some(level(tier)),
        extra_keys: keys.iter().map(|key| smg::KvBlockExtraKey { key: Some(extra_key(key)) }).collect(),
    }
}

fn extra_key(key: &OwnedExtraKey) -> Key {
    match key {
        OwnedExtraKey::Text(text) => Key::Text(text.clone()),
        OwnedExtraKey::Bytes(bytes) => Key::Blob(Bytes::copy_from_slice(bytes)),
        OwnedExtraKey::Integer(number) => Key::Number(*number),
        OwnedExtraKey::Multimodal(id, offset) => {
            Key::Multimodal(smg::KvMultimodalKey { identifier: id.clone(), offset: *offset })
        }
    }
}

fn smg_tier(tier: Tier) -> smg::KvCacheTier {
    match tier {
        Tier::Device => smg::KvCacheTier::Device,
        Tier::Host => smg::KvCacheTier::Host,
        Tier::Disk => smg::KvCacheTier::Disk,
        Tier::Remote | Tier::Unknown => smg::KvCacheTier::External,
    }
}

/// The older mirror of the tier.
fn level(tier: Tier) -> i32 {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Remote | Tier::Unknown => 3,
    }
}

/// A snapshot as SMG wants it: `count` chunks under consecutive sequences that end at the cut, the first
/// beginning with a clear, parents before children.
#[derive(Debug)]
pub(super) struct Plan {
    transitions: Vec<Transition>,
    ranges: Vec<Range<usize>>,
    cut: u64,
    blocks: u64,
    unknown_before: u64,
    /// What it is of: as long as somebody is sent it, others who begin are sent the same.
    _snapshot: Option<Arc<Snapshot>>,
}

impl Plan {
    /// Plans the chunks. Takes its time for a large state.
    pub(super) fn new(transitions: Vec<Transition>, cut: u64, unknown_before: u64) -> Self {
        Self::of(None, transitions, cut, unknown_before)
    }

    /// Plans the chunks of one stream's snapshot.
    pub(super) fn of(
        snapshot: Option<Arc<Snapshot>>,
        transitions: Vec<Transition>,
        cut: u64,
        unknown_before: u64,
    ) -> Self {
        let mut pieces = Vec::with_capacity(transitions.len());
        for transition in transitions {
            split(transition, &mut pieces);
        }
        let mut chunks = Vec::new();
        let (mut start, mut blocks, mut tokens, mut total) = (0, 0, 0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            let (piece_blocks, piece_tokens) = size(piece);
            if at > start && (blocks + piece_blocks > CHUNK_BLOCKS || tokens + piece_tokens > CHUNK_TOKENS) {
                chunks.push(start..at);
                (start, blocks, tokens) = (at, 0, 0);
            }
            blocks += piece_blocks;
            tokens += piece_tokens;
            total += if matches!(piece, Transition::Stored { .. }) { piece_blocks as u64 } else { 0 };
        }
        // An empty state is sent too: one chunk with nothing but the clear.
        chunks.push(start..pieces.len());
        Self { transitions: pieces, ranges: chunks, cut, blocks: total, unknown_before, _snapshot: snapshot }
    }

    /// The number of the last chunk; what follows it is the tail.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }
}

impl encoding::Plan for Plan {
    fn messages(&self) -> usize {
        self.ranges.len()
    }

    fn encode(&self, index: usize) -> Bytes {
        let count = self.ranges.len();
        let range = self.ranges[index].clone();
        let mut events = Vec::with_capacity(range.len() + 1);
        if index == 0 {
            events.push(event(0, &Transition::Cleared));
        }
        events.extend(self.transitions[range].iter().map(|transition| event(0, transition)));
        let batch = smg::KvEventBatch {
            sequence_number: self.cut - (count - 1 - index) as u64,
            events,
            snapshot: Some(smg::KvSnapshotChunk {
                index: index as u32,
                count: count as u32,
                blocks: self.blocks,
                unknown_before: self.unknown_before,
            }),
            ..smg::KvEventBatch::default()
        };
        batch.encode_to_vec().into()
    }
}

/// Cuts a long chain so that no piece is larger than a chunk.
fn split(transition: Transition, pieces: &mut Vec<Transition>) {
    let Transition::Stored { tier, parent, blocks } = transition else {
        pieces.push(transition);
        return;
    };
    let mut previous = parent;
    let mut open: Vec<VisibleBlock> = Vec::new();
    let mut tokens = 0;
    for block in blocks {
        if !open.is_empty() && (open.len() >= CHUNK_BLOCKS || tokens + block.tokens.len() > CHUNK_TOKENS) {
            let last = open.last().map(|last| last.hash);
            pieces.push(Transition::Stored { tier, parent: previous, blocks: std::mem::take(&mut open) });
            (previous, tokens) = (last, 0);
        }
        tokens += block.tokens.len();
        open.push(block);
    }
    pieces.push(Transition::Stored { tier, parent: previous, blocks: open });
}

fn size(transition: &Transition) -> (usize, usize) {
    match transition {
        Transition::Stored { blocks, .. } => {
            (blocks.len(), blocks.iter().map(|block| block.tokens.len()).sum())
        }
        Transition::Removed { hashes, .. } => (hashes.len(), 0),
        Transition::Cleared => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: u64) -> Transition {
        let block = |hash| VisibleBlock {
            hash,
            content: hash,
            tokens: kvplane_stream::Tokens::from(vec![1; 16]),
            block_size: 16,
            attributes: Arc::default(),
            extra_keys: None,
        };
        Transition::Stored { tier: Tier::Device, parent: None, blocks: (0..length).map(block).collect() }
    }

    fn messages(plan: &Plan) -> Vec<smg::KvEventBatch> {
        use encoding::Plan as _;
        let decoded = |index| smg::KvEventBatch::decode(plan.encode(index)).unwrap();
        (0..plan.messages()).map(decoded).collect()
    }

    #[test]
    fn chunks_end_at_the_cut_and_the_first_clears() {
        let sent = messages(&Plan::new(vec![chain(5_000), chain(3)], 1_000, 0));
        assert_eq!(sent.iter().map(|m| m.sequence_number).collect::<Vec<_>>(), [998, 999, 1_000]);
        assert!(matches!(sent[0].events[0].data, Some(Data::Cleared(_))));
        let mut blocks = 0;
        let mut last = None;
        for (at, message) in sent.iter().enumerate() {
            let chunk = message.snapshot.unwrap();
            assert_eq!((chunk.index, chunk.count, chunk.blocks), (at as u32, 3, 5_003));
            assert!(message.encoded_len() < 1 << 20);
            for event in &message.events {
                let Some(Data::Stored(stored)) = &event.data else { continue };
                assert!(stored.parent_block_hash.is_none() || stored.parent_block_hash == last);
                last = stored.blocks.last().map(|block| block.block_hash);
                blocks += stored.blocks.len();
            }
        }
        assert_eq!(blocks, 5_003);
    }

    #[test]
    fn an_empty_state_is_one_chunk() {
        let sent = messages(&Plan::new(Vec::new(), 7, 0));
        assert_eq!((sent.len(), sent[0].sequence_number, sent[0].events.len()), (1, 7, 1));
    }

    #[test]
    fn hashes_keep_their_bits() {
        let bytes = batch(1, 0.0, 5, &[Transition::Removed { tier: Tier::Host, hashes: vec![u64::MAX - 1] }]);
        let message = smg::KvEventBatch::decode(bytes).unwrap();
        let Some(Data::Removed(removed)) = &message.events[0].data else { panic!() };
        assert_eq!((removed.block_hashes[0], removed.cache_level), (-2, Some(1)));
        assert_eq!(message.events[0].event_id, 5);
    }
}
