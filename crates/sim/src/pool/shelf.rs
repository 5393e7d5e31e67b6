//! Chunks of blocks in a colder tier, of which the one that was not used for longest goes first.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::cache::Copies;
use crate::digest::Digest;

/// A tier's chunks, each found by its last hash.
#[derive(Debug)]
pub(super) struct Shelf {
    capacity: usize,
    chunks: FxHashMap<Digest, Kept>,
    /// Chunks by their last use.
    order: BTreeMap<u64, Digest>,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    used_at: u64,
    hashes: Vec<Digest>,
}

impl Shelf {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, chunks: FxHashMap::default(), order: BTreeMap::new(), clock: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn has(&self, chunk: &Digest) -> bool {
        self.chunks.contains_key(chunk)
    }

    /// Counts as a use of a chunk, if it is here.
    pub(super) fn touch(&mut self, chunk: &Digest) {
        if let Some(kept) = self.chunks.get_mut(chunk) {
            self.clock += 1;
            self.order.remove(&kept.used_at);
            kept.used_at = self.clock;
            self.order.insert(self.clock, *chunk);
        }
    }

    /// Makes room for this many chunks, at most for all that fit; the hashes of each one that went, oldest first.
    pub(super) fn make_room(&mut self, chunks: usize) -> Vec<Vec<Digest>> {
        let mut gone = Vec::new();
        while self.chunks.len() + chunks > self.capacity {
            let Some((_, chunk)) = self.order.pop_first() else { break };
            gone.extend(self.chunks.remove(&chunk).map(|kept| kept.hashes));
        }
        gone
    }

    /// Puts a chunk here, for which there is room.
    pub(super) fn put(&mut self, hashes: Vec<Digest>) {
        let Some(chunk) = hashes.last().copied() else { return };
        self.clock += 1;
        self.order.insert(self.clock, chunk);
        self.chunks.insert(chunk, Kept { used_at: self.clock, hashes });
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.order.clear();
    }

    /// The blocks of all chunks. A block at the start of several has as many copies.
    pub(super) fn copies(&self) -> Copies {
        let mut copies = Copies::new();
        let hashes = self.chunks.values().flat_map(|kept| &kept.hashes);
        hashes.for_each(|digest| *copies.entry(digest.bits()).or_default() += 1);
        copies
    }
}
