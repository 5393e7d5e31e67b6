//! The replay window: recent entries, numbered without gaps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Epoch, Marks, Resumption, StateDigest, TrustState};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::change::{Change, Encodings, Entry, Transition};

/// A cursor cannot be served from the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It belongs to another life.
    OtherEpoch,
    /// What follows it is no longer kept.
    Expired,
    /// What follows it was never here: the state was taken over from another plane at a later moment.
    Replaced,
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
    pub(super) continuity: Option<Continuity>,
    pub(super) digest: StateDigest,
    pub(super) age: Option<Duration>,
    pub(super) untranslatable: bool,
    pub(super) known_from: Option<u64>,
    pub(super) resumption: Option<Arc<Resumption>>,
    pub(super) marks: Vec<(u64, Marks)>,
}

/// The replay window of a stream. Readers take its own short lock: they never wait for a batch being applied.
///
/// Where a stream is kept in a durable journal, readers get an entry once it is written there ([`Self::tell`]): then
/// no process that ends takes an entry along that somebody has.
#[derive(Debug)]
pub struct Window {
    max_entries: usize,
    max_bytes: usize,
    kept: Mutex<Kept>,
    /// Entries up to this number may be told. Numbers rise over all lives.
    reported: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    epoch: Epoch,
    next_sequence: u64,
    next_event_id: u64,
    /// Nothing before this number was ever here, although it is of the same life.
    begun_after: u64,
    /// Digest of the state before the first entry, where it is known.
    before: Option<StateDigest>,
    /// What kvplane itself did before the first batch that is kept had to go, without any batch after it.
    first_is_torn: bool,
    /// Where the stream stands. What entries say, unless it stands elsewhere since the last one.
    continuity: Continuity,
}

impl Kept {
    fn new(epoch: Epoch, continuity: Continuity) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            epoch,
            next_sequence: epoch.base().nth(1),
            next_event_id: epoch.base().nth(1),
            begun_after: 0,
            before: Some(StateDigest::default()),
            first_is_torn: false,
            continuity,
        }
    }
}

impl Window {
    pub(super) fn new(max_entries: usize, max_bytes: usize, epoch: Epoch) -> Self {
        let kept = Mutex::new(Kept::new(epoch, Continuity::Connecting));
        Self { max_entries, max_bytes, kept, reported: AtomicU64::new(u64::MAX) }
    }

    /// From now on entries are held back until they are [told](Self::tell). All that are here may be told.
    pub fn hold_back(&self) {
        self.reported.store(self.cursor().sequence, Ordering::Release);
    }

    /// Entries up to this one may be told.
    pub fn tell(&self, sequence: u64) {
        self.reported.fetch_max(sequence, Ordering::AcqRel);
    }

    /// All entries may be told, also those that come.
    pub fn tell_all(&self) {
        self.reported.store(u64::MAX, Ordering::Release);
    }

    /// Whether the entry with this number may be told.
    pub fn is_reported(&self, sequence: u64) -> bool {
        self.reported.load(Ordering::Acquire) >= sequence
    }

    /// How many of the entries may be told.
    fn reported(&self, kept: &Kept) -> usize {
        let reported = self.reported.load(Ordering::Acquire);
        let first = kept.entries.front().map_or(kept.next_sequence, |entry| entry.sequence);
        let count = reported.saturating_add(1).saturating_sub(first);
        usize::try_from(count).unwrap_or(usize::MAX).min(kept.entries.len())
    }

    /// Another life: nothing of the old one can be replayed.
    pub(super) fn restart(&self, epoch: Epoch) {
        let mut kept = self.kept.lock();
        let fresh = Kept::new(epoch, kept.continuity);
        let old = std::mem::replace(&mut *kept, fresh);
        drop(kept);
        drop(old); // after the lock
    }

    /// A state that was taken over from elsewhere: entries are numbered on from its cursor.
    pub(super) fn restart_at(&self, cursor: Cursor, last_event_id: u64) {
        let mut kept = self.kept.lock();
        let fresh = Kept {
            next_sequence: cursor.sequence.saturating_add(1),
            next_event_id: last_event_id.saturating_add(1),
            begun_after: cursor.sequence,
            before: None,
            ..Kept::new(cursor.epoch, kept.continuity)
        };
        let old = std::mem::replace(&mut *kept, fresh);
        drop(kept);
        drop(old); // after the lock
    }

    /// Where the stream stands.
    pub fn continuity(&self) -> Continuity {
        self.kept.lock().continuity
    }

    /// The stream stands elsewhere, and no entry says so.
    pub(super) fn set_continuity(&self, continuity: Continuity) {
        self.kept.lock().continuity = continuity;
    }

    /// The position after everything in the window.
    pub fn cursor(&self) -> Cursor {
        let kept = self.kept.lock();
        Cursor { epoch: kept.epoch, sequence: kept.next_sequence - 1 }
    }

    /// The position after everything that may be told.
    pub fn reported_cursor(&self) -> Cursor {
        let kept = self.kept.lock();
        let reported = self.reported.load(Ordering::Acquire).max(kept.epoch.base().nth(0));
        Cursor { epoch: kept.epoch, sequence: reported.min(kept.next_sequence - 1) }
    }

    pub(super) fn next_event_id(&self) -> u64 {
        self.kept.lock().next_event_id
    }

    /// The highest number given out.
    pub(super) fn highest(&self) -> u64 {
        let kept = self.kept.lock();
        kept.next_sequence.max(kept.next_event_id)
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    pub(super) fn len(&self) -> usize {
        self.kept.lock().entries.len()
    }

    pub(super) fn push(
        &self,
        batch: Option<(u64, Option<u128>)>,
        timestamp: f64,
        changes: Vec<Change>,
        notes: Notes,
        transitions: Vec<Transition>,
    ) -> Arc<Entry> {
        let Notes { trust, continuity, digest, age, untranslatable, known_from, resumption, marks } = notes;
        let cost = Entry::estimate(&changes, &transitions) + std::mem::size_of_val(&marks[..]);
        // Freed after the lock.
        let mut expired: SmallVec<[Arc<Entry>; 4]> = SmallVec::new();
        let mut kept = self.kept.lock();
        let entry = Entry {
            epoch: kept.epoch,
            sequence: kept.next_sequence,
            engine_sequence: batch.map(|(sequence, _)| sequence),
            engine_digest: batch.and_then(|(_, digest)| digest),
            timestamp,
            cost,
            changes,
            trust,
            known_from,
            continuity,
            digest,
            age,
            first_event_id: kept.next_event_id,
            transitions,
            untranslatable,
            resumption,
            marks,
            encodings: Encodings::default(),
        };
        kept.continuity = entry.continuity.unwrap_or(kept.continuity);
        kept.next_sequence += 1;
        kept.next_event_id = entry.next_event_id();
        kept.bytes += cost;
        let entry = Arc::new(entry);
        kept.entries.push_back(entry.clone());
        // The newest entry always stays: a subscriber that is caught up must be able to go on.
        while kept.entries.len() > 1 && (kept.entries.len() > self.max_entries || kept.bytes > self.max_bytes)
        {
            let Some(old) = kept.entries.pop_front() else { break };
            kept.bytes -= old.cost;
            kept.before = Some(old.digest);
            let torn = kept.first_is_torn || !old.transitions.is_empty();
            kept.first_is_torn = old.engine_sequence.is_none() && torn;
            expired.push(old);
        }
        drop(kept);
        entry
    }

    /// What follows a cursor, at most `max` entries; empty when caught up.
    pub fn read_after(&self, cursor: Cursor, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        let kept = self.kept.lock();
        if cursor.epoch != kept.epoch {
            return Err(Loss::OtherEpoch);
        }
        if cursor.sequence >= kept.next_sequence {
            return Err(Loss::Future);
        }
        if cursor.sequence < kept.begun_after {
            return Err(Loss::Replaced);
        }
        let first = kept.entries.front().map_or(kept.next_sequence, |entry| entry.sequence);
        let Some(skip) = (cursor.sequence + 1).checked_sub(first) else { return Err(Loss::Expired) };
        let reported = self.reported(&kept);
        Ok(kept.entries.range((skip as usize).min(reported)..reported).take(max).cloned().collect())
    }

    /// Digest of the state at a cursor from which the window goes on, where it is known.
    pub fn digest_at(&self, cursor: Cursor) -> Option<StateDigest> {
        let kept = self.kept.lock();
        if cursor.epoch != kept.epoch {
            return None;
        }
        let first = kept.entries.front().map_or(kept.next_sequence, |entry| entry.sequence);
        match cursor.sequence.checked_sub(first) {
            Some(at) => Some(kept.entries.get(usize::try_from(at).ok()?)?.digest),
            None if cursor.sequence + 1 == first => kept.before,
            None => None,
        }
    }

    /// The state that the window begins behind has this digest.
    pub(super) fn begin_behind(&self, digest: StateDigest) {
        let mut kept = self.kept.lock();
        if kept.entries.is_empty() {
            kept.before = Some(digest);
        }
    }

    /// The position before the first entry that is kept.
    pub fn first_cursor(&self) -> Option<Cursor> {
        let kept = self.kept.lock();
        kept.entries.front().map(|entry| Cursor { epoch: kept.epoch, sequence: entry.sequence - 1 })
    }

    /// The cursor of a bare number, if it is one after which everything is still here. Numbers of different
    /// lives never meet, so a number says which life it is of.
    pub fn cursor_at(&self, sequence: u64) -> Result<Cursor, Loss> {
        let epoch = self.kept.lock().epoch;
        let cursor = Cursor { epoch, sequence };
        self.read_after(cursor, 0).map(|_| cursor)
    }

    /// The transitions from a number on.
    pub fn transitions_from(&self, start: u64) -> Range {
        let kept = self.kept.lock();
        let first = kept.entries.front().map_or(kept.next_event_id, |entry| entry.first_event_id);
        let reported = self.reported(&kept);
        let behind = kept.entries.get(reported).map_or(kept.next_event_id, |entry| entry.first_event_id);
        let newest = behind - 1;
        let base = kept.epoch.base();
        if start < first || start < base.start() {
            return Range::Outside;
        }
        if start > newest {
            // Only a number that this life will give out one day is of this life.
            let horizon = base.start() | ((1 << 20) - 1);
            return if start <= horizon.max(newest + 1) { Range::TooNew { newest } } else { Range::Outside };
        }
        let from = kept.entries.partition_point(|entry| entry.next_event_id() <= start);
        Range::Entries { entries: kept.entries.range(from..reported).cloned().collect(), last: newest }
    }

    /// The same by the numbers that batches were handed over with. What kvplane itself did stands before the
    /// batch that it came with.
    ///
    /// Such numbers do not say which epoch they belong to. A follower of this one asks for the next number
    /// at the most, so that anything above it is foreign.
    pub fn batches_from(&self, start: u64) -> Range {
        let kept = self.kept.lock();
        let reported = self.reported(&kept);
        let Some(last) = kept.entries.range(..reported).rev().find_map(|entry| entry.engine_sequence) else {
            return Range::Outside;
        };
        if start > last {
            return if start - last == 1 { Range::TooNew { newest: last } } else { Range::Outside };
        }
        let number_from =
            |at: usize| kept.entries.range(at..reported).find_map(|entry| entry.engine_sequence);
        let first = kept.entries.front().map_or(kept.next_sequence, |entry| entry.sequence);
        // What has no number is sorted by the batch that it came with, the next one: a few steps at the most.
        let from = kept.entries.partition_point(|entry| {
            number_from(((entry.sequence - first) as usize).min(reported))
                .is_some_and(|number| number < start)
        });
        if from == 0 && (kept.first_is_torn || number_from(0) != Some(start)) {
            return Range::Outside;
        }
        Range::Entries { entries: kept.entries.range(from.min(reported)..reported).cloned().collect(), last }
    }
}
