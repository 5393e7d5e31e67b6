//! What a journal counts, and what of it is worth a log line.

use crate::persist::persist;
use kvplane_wire::RejectedKind;

/// What was rejected and passed over; for status and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalCounters {
    /// Batches applied.
    pub batches: u64,
    /// Events applied.
    pub events: u64,
    /// Blocks announced as stored.
    pub blocks_stored: u64,
    /// Copies announced as removed.
    pub blocks_removed: u64,
    /// Clears.
    pub clears: u64,
    /// Rejected events by (kind, reason).
    pub rejected: Vec<((RejectedKind, &'static str), u64)>,
    /// Events of an unknown kind.
    pub unknown_events: u64,
    /// Unknown fields and trailing elements passed over.
    pub unknown_fields: u64,
    /// Removals of blocks that no place held.
    pub unknown_removals: u64,
    /// Removals of blocks that another place held, and not the one that was named.
    pub misplaced_removals: u64,
    /// Blocks that a later store proved to be held.
    pub proven_blocks: u64,
    /// Blocks that were announced again, without a copy.
    pub reannounced_blocks: u64,
    /// Epochs in which more copies were announced than the engine has blocks.
    pub over_counts: u64,
    /// Flushes that the stream showed.
    pub flushes_proven: u64,
    /// Flushes that it did not show in time.
    pub flushes_unproven: u64,
    /// Blocks not recorded because a budget was used up.
    pub unrecorded_blocks: u64,
    /// Sparse stores.
    pub sparse_stores: u64,
    /// Hash-only stores.
    pub placeholder_stores: u64,
    /// Batches that name another rank than the stream's.
    pub foreign_rank: u64,
    /// Stores whose block size contradicts the configured one.
    pub block_size_contradictions: u64,
}

persist!(JournalCounters {
    batches, events, blocks_stored, blocks_removed, clears, unknown_events, unknown_fields, unknown_removals,
    misplaced_removals, proven_blocks, reannounced_blocks, over_counts, flushes_proven, flushes_unproven,
    unrecorded_blocks, sparse_stores, placeholder_stores, foreign_rank, block_size_contradictions;
    rejected: Vec::new(),
});

impl JournalCounters {
    /// Counts a rejection; returns how many of its kind there have been.
    pub(crate) fn reject(&mut self, kind: RejectedKind, reason: &'static str) -> u64 {
        let key = (kind, reason);
        if let Some((_, count)) = self.rejected.iter_mut().find(|(known, _)| *known == key) {
            *count += 1;
            return *count;
        }
        self.rejected.push((key, 1));
        1
    }
}

/// Something in a batch that was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOver {
    /// What it would have been: `store`, `removal`, or `event` when that is unknown.
    pub kind: &'static str,
    /// Why, as a stable word.
    pub reason: &'static str,
    /// How many there have been, this one included.
    pub count: u64,
}
