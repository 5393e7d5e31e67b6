//! The counters of a stream, which `/metrics` and `/v1/status` show alike.

use std::collections::BTreeMap;

use kvplane_ingest::StreamStatus;

use crate::family::Family;
use crate::family::list::stream_counters;

/// A counter of a stream, for status and metrics alike.
pub type OfStream = (Family, fn(&StreamStatus) -> u64);

/// Every counter of a stream that has no labels of its own.
pub const COUNTERS: [OfStream; 36] = [
    (stream_counters::BATCHES, |s| s.journal.batches),
    (stream_counters::EVENTS, |s| s.journal.events),
    (stream_counters::BLOCKS_STORED, |s| s.journal.blocks_stored),
    (stream_counters::BLOCKS_REMOVED, |s| s.journal.blocks_removed),
    (stream_counters::CLEARS, |s| s.journal.clears),
    (stream_counters::GAPS, |s| s.counters.gaps),
    (stream_counters::GAPS_UNFILLED, |s| s.counters.gaps_unfilled),
    (stream_counters::REPLAYS, |s| s.counters.replays),
    (stream_counters::REPLAYS_FAILED, |s| s.counters.replays_failed),
    (stream_counters::REPLAYED_BATCHES, |s| s.counters.replayed_batches),
    (stream_counters::RESTARTS, |s| s.counters.restarts),
    (stream_counters::UNPROVEN_EPOCHS, |s| s.counters.unproven),
    (stream_counters::DISCONNECTS, |s| s.counters.disconnects),
    (stream_counters::DUPLICATES, |s| s.counters.duplicates),
    (stream_counters::REFUSED, |s| s.counters.refused),
    (stream_counters::HOLD_OVERFLOWS, |s| s.counters.hold_overflows),
    (stream_counters::UNDECODABLE_BATCHES, |s| s.counters.undecodable),
    (stream_counters::FOREIGN_REPLAYS, |s| s.counters.replays_foreign),
    (stream_counters::SILENCES, |s| s.counters.silences),
    (stream_counters::INTERLEAVINGS, |s| s.counters.interleavings),
    (stream_counters::MISDIRECTED_INPUTS, |s| s.counters.misdirected),
    (stream_counters::MALFORMED_FRAMES, |s| s.malformed_frames),
    (stream_counters::UNKNOWN_EVENTS, |s| s.journal.unknown_events),
    (stream_counters::UNKNOWN_FIELDS, |s| s.journal.unknown_fields),
    (stream_counters::UNKNOWN_REMOVALS, |s| s.journal.unknown_removals),
    (stream_counters::MISPLACED_REMOVALS, |s| s.journal.misplaced_removals),
    (stream_counters::PROVEN_BLOCKS, |s| s.journal.proven_blocks),
    (stream_counters::REANNOUNCED_BLOCKS, |s| s.journal.reannounced_blocks),
    (stream_counters::OVER_COUNTS, |s| s.journal.over_counts),
    (stream_counters::FLUSHES_PROVEN, |s| s.journal.flushes_proven),
    (stream_counters::FLUSHES_UNPROVEN, |s| s.journal.flushes_unproven),
    (stream_counters::UNRECORDED_BLOCKS, |s| s.journal.unrecorded_blocks),
    (stream_counters::SPARSE_STORES, |s| s.journal.sparse_stores),
    (stream_counters::PLACEHOLDER_STORES, |s| s.journal.placeholder_stores),
    (stream_counters::FOREIGN_RANK_BATCHES, |s| s.journal.foreign_rank),
    (stream_counters::BLOCK_SIZE_CONTRADICTIONS, |s| s.journal.block_size_contradictions),
];

/// Rejected events by `kind_reason`.
pub fn rejected(status: &StreamStatus) -> BTreeMap<String, u64> {
    let counted = &status.journal.rejected;
    counted.iter().map(|&((kind, reason), count)| (format!("{}_{reason}", kind.as_str()), count)).collect()
}
