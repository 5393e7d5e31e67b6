//! A naive engine: a multiset of block hashes, a sequence counter and a replay ring. The oracle.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kvplane_core::{ContentHasher, Namespace, digest};
use kvplane_stream::{DumpedRun, PeerDump, Position};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

pub const BLOCK: u32 = 4;

pub struct Engine {
    pub held: BTreeMap<u64, u32>,
    pub next_sequence: u64,
    pub ring: VecDeque<(u64, Bytes)>,
    ring_length: usize,
    /// Every life begins by clearing the cache, as `SGLang`'s do.
    clears_at_start: bool,
    clock: u64,
    pending: Vec<OwnedEvent>,
    /// It never tells a clear, as `TokenSpeed` does not: a flush removes block by block.
    pub flushes_by_removals: bool,
    /// Stores and flushes so far, over all lives.
    steps: u64,
    /// The step in which each block was stored last.
    pub stored_at: BTreeMap<u64, u64>,
    /// What was held when each batch of this life was published.
    history: Vec<BTreeMap<u64, u32>>,
    /// What a peer that hears everything could have dumped after each batch, in every life.
    pub dumps: Vec<PeerDump>,
    /// A batch of this life was never sent: a peer that misses it dumps nothing any more.
    peer_lost: bool,
}

/// The same conversation has the same hashes in every life: equal hashes must prove nothing.
pub fn block_hash(conversation: u8, depth: usize) -> u64 {
    (u64::from(conversation) + 1) << 32 | depth as u64
}

fn block_tokens(conversation: u8, depth: usize) -> impl Iterator<Item = u32> {
    (0..BLOCK).map(move |i| u32::from(conversation) * 1000 + depth as u32 * BLOCK + i)
}

impl Engine {
    pub fn new(ring_length: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            next_sequence: 0,
            ring: VecDeque::new(),
            ring_length,
            clears_at_start: false,
            clock: 0,
            pending: Vec::new(),
            flushes_by_removals: false,
            steps: 0,
            stored_at: BTreeMap::new(),
            history: Vec::new(),
            dumps: Vec::new(),
            peer_lost: false,
        }
    }

    /// An engine whose lives begin by clearing the cache.
    pub fn clearing(ring_length: usize) -> Self {
        Self { clears_at_start: true, pending: vec![OwnedEvent::Cleared], ..Self::new(ring_length) }
    }

    /// A new life: nothing held, sequence from 0. The clock goes on: timestamps never repeat.
    pub fn restart(&mut self) {
        self.held.clear();
        self.next_sequence = 0;
        self.ring.clear();
        self.history.clear();
        self.peer_lost = false;
        self.pending.clear();
        if self.clears_at_start {
            self.pending.push(OwnedEvent::Cleared);
        }
    }

    /// A request of a conversation reaches `depth` blocks: what is missing from its prefix on is computed.
    pub fn extend(&mut self, conversation: u8, depth: usize, second_copy: bool) {
        let mut cached =
            (0..depth).take_while(|&d| self.held.contains_key(&block_hash(conversation, d))).count();
        if second_copy && cached == depth && cached > 0 {
            cached -= 1; // a prompt of whole blocks recomputes its last block
        }
        if cached == depth {
            return;
        }
        let hashes: Vec<u64> = (cached..depth).map(|d| block_hash(conversation, d)).collect();
        self.steps += 1;
        for &hash in &hashes {
            *self.held.entry(hash).or_default() += 1;
            self.stored_at.insert(hash, self.steps);
        }
        self.pending.push(OwnedEvent::Stored(OwnedStored {
            block_hashes: hashes.into_iter().map(OwnedHash::Unsigned).collect(),
            parent: cached.checked_sub(1).map(|d| OwnedHash::Unsigned(block_hash(conversation, d))),
            token_ids: (cached..depth).flat_map(|d| block_tokens(conversation, d)).collect(),
            block_size: BLOCK,
            medium: Some("GPU".into()),
            group: Some(0),
            spec_kind: Some("full_attention".into()),
            ..OwnedStored::default()
        }));
    }

    /// Evicts one copy of the `pick`th held block, wherever in its chain it is.
    pub fn evict(&mut self, pick: usize) {
        let Some(&hash) = self.held.keys().nth(pick % self.held.len().max(1)) else { return };
        let copies = self.held.get_mut(&hash).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(&hash);
        }
        self.pending.push(removed(vec![hash]));
    }

    /// Whether everything that happened has been published.
    pub fn nothing_pending(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets every block; returns the step in which it does.
    pub fn clear(&mut self) -> u64 {
        self.steps += 1;
        let held = std::mem::take(&mut self.held);
        if self.flushes_by_removals {
            let copies = held.into_iter().flat_map(|(hash, copies)| vec![hash; copies as usize]);
            self.pending.extend(copies.map(|hash| removed(vec![hash])));
        } else {
            self.pending.push(OwnedEvent::Cleared);
        }
        self.steps
    }

    /// Something else that goes into the next batch.
    pub fn tell(&mut self, event: OwnedEvent) {
        self.pending.push(event);
    }

    /// Publishes what happened since the last batch.
    pub fn publish(&mut self) -> (u64, Bytes) {
        self.clock += 1;
        let events = std::mem::take(&mut self.pending);
        let payload = Bytes::from(encode_batch(Profile::Vllm0_24, self.clock as f64, Some(0), &events));
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.history.push(self.held.clone());
        if !self.peer_lost {
            self.dumps.push(self.dump(Position { sequence, digest: digest(&payload) }));
        }
        self.ring.push_back((sequence, payload.clone()));
        while self.ring.len() > self.ring_length {
            self.ring.pop_front();
        }
        (sequence, payload)
    }

    /// What was held at a batch of this life; nothing before the first. `None` if this life has no such
    /// batch.
    pub fn held_at(&self, sequence: Option<u64>) -> Option<BTreeMap<u64, u32>> {
        match sequence {
            None => Some(BTreeMap::new()),
            Some(sequence) => self.history.get(sequence as usize).cloned(),
        }
    }

    /// Publishing failed: the number is used up, the events are gone, the ring never sees them.
    pub fn publish_failed(&mut self) {
        let _ = self.publish();
        self.ring.pop_back();
        if !self.peer_lost {
            self.dumps.pop();
        }
        self.peer_lost = true;
    }

    /// What is held up to the first hole of every conversation.
    fn dump(&self, position: Position) -> PeerDump {
        let runs = (0..3).filter_map(|conversation| {
            let held = (0..).take_while(|&depth| self.held.contains_key(&block_hash(conversation, depth)));
            let blocks: Vec<_> = held
                .map(|depth| {
                    let tokens: Vec<u32> = block_tokens(conversation, depth).collect();
                    let content = ContentHasher::default().plain(&tokens, Namespace::PLAIN);
                    (block_hash(conversation, depth), content)
                })
                .collect();
            (!blocks.is_empty()).then_some(DumpedRun { parent: None, blocks })
        });
        PeerDump { block_size: BLOCK, runs: runs.collect(), position: Some(position) }
    }
}

fn removed(hashes: Vec<u64>) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes.into_iter().map(OwnedHash::Unsigned).collect(),
        medium: Some("GPU".into()),
        group: Some(0),
        ..OwnedRemoved::default()
    })
}
