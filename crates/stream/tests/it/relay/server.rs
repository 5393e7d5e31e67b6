//! A naive server of relayed events: an engine's cache, a history, and what each kind of server does with a
//! subscription.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kvplane_proto::smg::kv_cache_event::Data;
use kvplane_proto::smg::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch, KvSnapshotChunk,
};
use kvplane_stream::Ended;
use prost::Message as _;

/// Blocks per part of a snapshot: few, so that there are several parts.
const PART: usize = 2;

/// What a server does with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Keeps a history, and sends what follows the number; from 0 all of it, or a snapshot.
    Keeps,
    /// The same, but from 0 always a snapshot.
    Snapshots,
    /// Has no history: any number but 0 is out of range.
    LiveOnly,
    /// Has no history, and takes any number for 0.
    Ignores,
}

pub struct Server {
    style: Style,
    history: VecDeque<(u64, Bytes)>,
    window: usize,
    pub next: u64,
    /// Copies by hash. A block's parent is the hash below it.
    pub held: BTreeMap<i64, u32>,
    pending: Vec<Data>,
    clock: u64,
}

impl Server {
    pub fn new(style: Style, window: usize) -> Self {
        Self {
            style,
            history: VecDeque::new(),
            window,
            next: 0,
            held: BTreeMap::new(),
            pending: Vec::new(),
            clock: 0,
        }
    }

    /// Another life: nothing held, numbers from 0. Timestamps never repeat.
    pub fn restart(&mut self) {
        *self = Self { clock: self.clock, ..Self::new(self.style, self.window) };
    }

    /// A conversation reaches `depth` blocks.
    pub fn store(&mut self, conversation: i64, depth: i64) {
        let first = (0..depth).find(|at| !self.held.contains_key(&hash(conversation, *at)));
        let Some(first) = first else { return };
        for at in first..depth {
            *self.held.entry(hash(conversation, at)).or_default() += 1;
        }
        let blocks = (first..depth).map(|at| block(hash(conversation, at))).collect();
        self.pending.push(stored(blocks));
    }

    /// One copy of the `pick`th block goes, if no block builds on it.
    pub fn evict(&mut self, pick: usize) {
        let Some(&hash) = self.held.keys().nth(pick % self.held.len().max(1)) else { return };
        if self.held.contains_key(&(hash + 1)) {
            return;
        }
        let copies = self.held.remove(&hash).unwrap_or_default();
        if copies > 1 {
            self.held.insert(hash, copies - 1);
        }
        self.pending.push(Data::Removed(KvBlocksRemoved { block_hashes: vec![hash], ..Default::default() }));
    }

    pub fn clear(&mut self) {
        self.held.clear();
        self.pending.push(Data::Cleared(KvCacheCleared::default()));
    }

    /// Whether everything that happened has been published.
    pub fn nothing_pending(&self) -> bool {
        self.pending.is_empty()
    }

    /// One more batch.
    pub fn publish(&mut self) -> Bytes {
        self.clock += 1;
        let events = std::mem::take(&mut self.pending);
        let bytes = encode(self.next, self.clock as f64, events, None);
        self.history.push_back((self.next, bytes.clone()));
        if self.history.len() > self.window {
            self.history.pop_front();
        }
        self.next += 1;
        bytes
    }

    /// A batch whose number is used up and that nobody ever sees.
    pub fn lose(&mut self) {
        self.publish();
        self.history.pop_back();
    }

    /// Takes a subscription: what it sends at once, or a refusal.
    pub fn subscribe(&mut self, start: u64) -> Result<VecDeque<Bytes>, Ended> {
        let first = self.history.front().map_or(self.next, |(sequence, _)| *sequence);
        match (self.style, start) {
            (Style::LiveOnly, 0) | (Style::Ignores, _) => Ok(VecDeque::new()),
            (Style::LiveOnly, _) => Err(Ended::OutOfRange),
            (Style::Keeps, 0) if first == 0 && self.whole() => Ok(self.after(None)),
            (_, 0) => Ok(self.snapshot()),
            (_, start) if start + 1 < first || start >= self.next => Err(Ended::OutOfRange),
            (_, start) => Ok(self.after(Some(start))),
        }
    }

    fn whole(&self) -> bool {
        self.history.len() as u64 == self.next
    }

    fn after(&self, start: Option<u64>) -> VecDeque<Bytes> {
        let follows = |sequence: u64| start.is_none_or(|start| sequence > start);
        self.history
            .iter()
            .filter(|(sequence, _)| follows(*sequence))
            .map(|(_, bytes)| bytes.clone())
            .collect()
    }

    /// What is held, in parts that end at the last batch. What is pending is not published yet, so it comes
    /// first.
    fn snapshot(&mut self) -> VecDeque<Bytes> {
        while !self.pending.is_empty() || self.next < 16 {
            self.publish();
        }
        let blocks: Vec<KvBlock> = self
            .held
            .iter()
            .flat_map(|(hash, copies)| std::iter::repeat_n(block(*hash), *copies as usize))
            .collect();
        let parts: Vec<&[KvBlock]> =
            if blocks.is_empty() { vec![&[]] } else { blocks.chunks(PART).collect() };
        let count = parts.len() as u64;
        let part = |(index, part): (usize, &&[KvBlock])| {
            let mut events = Vec::new();
            if index == 0 {
                events.push(Data::Cleared(KvCacheCleared::default()));
            }
            events.extend(part.iter().map(|block| stored(vec![block.clone()])));
            let chunk = KvSnapshotChunk {
                index: index as u32,
                count: count as u32,
                blocks: blocks.len() as u64,
                unknown_before: 0,
            };
            // Parts need not be numbers that batches had: they end at the last one.
            encode((self.next + index as u64).saturating_sub(count), 0.0, events, Some(chunk))
        };
        parts.iter().enumerate().map(part).collect()
    }
}

/// Equal blocks have equal hashes in every life, so that hashes prove nothing. Negative ones occur.
fn hash(conversation: i64, depth: i64) -> i64 {
    (conversation - 1) * 1_000 + depth
}

fn block(hash: i64) -> KvBlock {
    KvBlock { block_hash: hash, token_ids: vec![hash as u32; 4], block_size: 4, ..Default::default() }
}

fn stored(blocks: Vec<KvBlock>) -> Data {
    let first = blocks.first().map_or(0, |block| block.block_hash);
    let parent_block_hash = (first.rem_euclid(1_000) != 0).then_some(first - 1);
    Data::Stored(KvBlocksStored { blocks, parent_block_hash, ..Default::default() })
}

fn encode(sequence: u64, timestamp: f64, events: Vec<Data>, snapshot: Option<KvSnapshotChunk>) -> Bytes {
    let events = events.into_iter().map(|data| KvCacheEvent { event_id: 0, data: Some(data) }).collect();
    let batch = KvEventBatch { sequence_number: sequence, timestamp, events, snapshot, ..Default::default() };
    batch.encode_to_vec().into()
}
