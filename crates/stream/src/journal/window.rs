//! The replay window: recent entries, numbered without gaps.

use std::collections::VecDeque;
use std::sync::Arc;

use kvplane_core::{Continuity, Epoch, TrustState};

use crate::change::{Change, Entry, Transition};

/// A cursor cannot be served from the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It belongs to another life.
    OtherEpoch,
    /// What follows it is no longer kept.
    Expired,
    /// It is ahead of everything.
    Future,
}

/// Transitions from a number on, or why there are none.
#[derive(Debug)]
pub enum Range {
    /// The entries that hold them; the first may begin before the number.
    Entries {
        /// In order.
        entries: Vec<Arc<Entry>>,
        /// The last number there is.
        last: u64,
    },
    /// The number is just above the last, or higher within this life.
    TooNew {
        /// The last number there is.
        newest: u64,
    },
    /// The number is not of this life or no longer kept.
    Outside,
}

/// What an entry says besides what happened to blocks.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) trust: Option<TrustState>,
    pub(super) standing: Option<Continuity>,
}

#[derive(Debug)]
pub(super) struct Window {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
    epoch: Epoch,
    next_sequence: u64,
    next_event_id: u64,
}

impl Window {
    pub(super) fn new(max_entries: usize, max_bytes: usize, epoch: Epoch) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_entries,
            max_bytes,
            epoch,
            next_sequence: epoch.base().nth(1),
            next_event_id: epoch.base().nth(1),
        }
    }

    /// Another life: nothing of the old one can be replayed.
    pub(super) fn restart(&mut self, epoch: Epoch) {
        *self = Self::new(self.max_entries, self.max_bytes, epoch);
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    pub(super) fn next_event_id(&self) -> u64 {
        self.next_event_id
    }

    /// The highest number given out.
    pub(super) fn highest(&self) -> u64 {
        self.next_sequence.max(self.next_event_id)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(
        &mut self,
        epoch: Epoch,
        engine_sequence: Option<u64>,
        timestamp: f64,
        changes: Vec<Change>,
        notes: Notes,
        transitions: Vec<Transition>,
    ) {
        let Notes { trust, standing } = notes;
        let entry = Entry {
            epoch,
            sequence: self.next_sequence,
            engine_sequence,
            timestamp,
            cost: Entry::estimate(&changes, &transitions),
            changes,
            trust,
            standing,
            first_event_id: self.next_event_id,
            transitions,
            encodings: Default::default(),
        };
        self.next_sequence += 1;
        self.next_event_id = entry.next_event_id();
        self.bytes += entry.cost;
        self.entries.push_back(Arc::new(entry));
        // The newest entry always stays: a subscriber that is caught up must be able to go on.
        while self.entries.len() > 1 && (self.entries.len() > self.max_entries || self.bytes > self.max_bytes)
        {
            if let Some(old) = self.entries.pop_front() {
                self.bytes -= old.cost;
            }
        }
    }

    pub(super) fn read_after(&self, sequence: u64, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        if sequence >= self.next_sequence {
            return Err(Loss::Future);
        }
        let first = self.entries.front().map_or(self.next_sequence, |entry| entry.sequence);
        let Some(skip) = (sequence + 1).checked_sub(first) else { return Err(Loss::Expired) };
        Ok(self.entries.range((skip as usize).min(self.entries.len())..).take(max).cloned().collect())
    }

    pub(super) fn transitions_from(&self, start: u64) -> Range {
        let first = self.entries.front().map_or(self.next_event_id, |entry| entry.first_event_id);
        let newest = self.next_event_id - 1;
        if start < first || start < self.epoch.base().start() {
            return Range::Outside;
        }
        if start > newest {
            // Only a number that this life will give out one day is of this life.
            let horizon = self.epoch.base().nth(0) | ((1 << 20) - 1);
            return if start <= horizon.max(newest + 1) { Range::TooNew { newest } } else { Range::Outside };
        }
        let from = self.entries.partition_point(|entry| entry.next_event_id() <= start);
        Range::Entries { entries: self.entries.range(from..).cloned().collect(), last: newest }
    }
}
