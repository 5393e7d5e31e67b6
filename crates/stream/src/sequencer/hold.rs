//! What waits for a verdict, and what is remembered to recognise duplicates.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::Origin;
use crate::persist::persist;

/// A batch that waits.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) digest: u128,
    pub(super) payload: Bytes,
    pub(super) origin: Origin,
    /// When it arrived, on the machine's own counter.
    pub(super) stamp: u64,
    /// False for a batch that arrived damaged: it proves that its number exists, and cannot be placed.
    pub(super) readable: bool,
}

/// Live batches that wait, by number. Bounded: on overflow everything is let go, which is a gap and no more.
#[derive(Debug)]
pub(super) struct Hold {
    batches: BTreeMap<u64, Held>,
    bytes: usize,
    max_batches: usize,
    max_bytes: usize,
}

impl Hold {
    pub(super) fn new(max_batches: usize, max_bytes: usize) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, max_batches, max_bytes }
    }

    /// Keeps a batch. True if that overflowed, and only this newest batch is left.
    pub(super) fn insert(&mut self, sequence: u64, held: Held) -> bool {
        let overflow =
            self.batches.len() >= self.max_batches || self.bytes + held.payload.len() > self.max_bytes;
        if overflow {
            self.clear();
        }
        self.bytes += held.payload.len();
        if let Some(old) = self.batches.insert(sequence, held) {
            self.bytes -= old.payload.len();
        }
        overflow
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Held> {
        self.batches.get(&sequence)
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.batches.first_key_value().map(|(&sequence, _)| sequence)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn take(&mut self, sequence: u64) -> Option<Held> {
        let held = self.batches.remove(&sequence)?;
        self.bytes -= held.payload.len();
        Some(held)
    }

    pub(super) fn take_first(&mut self) -> Option<(u64, Held)> {
        let (sequence, held) = self.batches.pop_first()?;
        self.bytes -= held.payload.len();
        Some((sequence, held))
    }

    pub(super) fn any(&self, wanted: impl Fn(u64, &Held) -> bool) -> bool {
        self.batches.iter().any(|(&sequence, held)| wanted(sequence, held))
    }

    /// Lets go of what arrived before a stamp.
    pub(super) fn remove_before(&mut self, stamp: u64) {
        self.batches.retain(|_, held| held.stamp >= stamp);
        self.bytes = self.batches.values().map(|held| held.payload.len()).sum();
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}

/// The digests of the last batches, and the ranges that were given up.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Consecutive by construction except where a range was lost.
    digests: VecDeque<(u64, u128)>,
    lost: VecDeque<Range<u64>>,
}

// Ranges that were given up are forgotten with the connection.
persist!(Recent { digests; lost: VecDeque::new() });

impl Recent {
    /// Enough to recognise any duplicate that a socket may hold back; 24 KiB a stream.
    const REMEMBERED: usize = 1024;
    /// A range that was lost so long ago has no late batches any more.
    const LOST_RANGES: usize = 16;

    pub(crate) fn remember(&mut self, sequence: u64, digest: u128) {
        if self.digests.len() == Self::REMEMBERED {
            self.digests.pop_front();
        }
        self.digests.push_back((sequence, digest));
    }

    pub(super) fn get(&self, sequence: u64) -> Option<u128> {
        let index = self.digests.binary_search_by_key(&sequence, |&(s, _)| s).ok()?;
        Some(self.digests[index].1)
    }

    pub(super) fn forget_from(&mut self, sequence: u64) {
        while self.digests.back().is_some_and(|&(s, _)| s >= sequence) {
            self.digests.pop_back();
        }
    }

    pub(super) fn lose(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.lost.len() == Self::LOST_RANGES {
            self.lost.pop_front();
        }
        self.lost.push_back(range);
    }

    /// The connection is another: nothing of the old one can be late any more.
    pub(super) fn forget_lost(&mut self) {
        self.lost.clear();
    }

    pub(super) fn is_lost(&self, sequence: u64) -> bool {
        self.lost.iter().any(|range| range.contains(&sequence))
    }

    pub(crate) fn clear(&mut self) {
        self.digests.clear();
        self.lost.clear();
    }
}
