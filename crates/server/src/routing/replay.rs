//! What a stream showed after a decision, in the ledger's words.

use std::sync::Arc;

use kvplane_core::{Cursor, Epoch};
use kvplane_ingest::{Plane, Stream};
use kvplane_receipts::{Decided, Happening, Replay};
use kvplane_stream::{Change, Entry, Loss, Transition};

/// Entries that are replayed at most.
const MAX_ENTRIES: usize = 4_096;
/// Entries that the decision's cursor is early by, at most: see `pick`.
const MARGIN: u64 = 8;

/// Replays the chosen one's stream from the decision on.
pub(super) fn replay(plane: &Plane, decided: &Decided) -> Replay {
    let Some(chosen) = decided.candidates.first() else { return Replay::Expired };
    let engine = plane.engine(&chosen.engine);
    let Some(stream) = engine.as_ref().and_then(|engine| engine.stream(chosen.rank)) else {
        return Replay::Expired;
    };
    match entries(stream, decided) {
        Ok(entries) if entries.len() < MAX_ENTRIES => happenings(&entries),
        Err(Loss::OtherEpoch) => Replay::NewLife,
        _ => Replay::Expired,
    }
}

fn entries(stream: &Stream, decided: &Decided) -> Result<Vec<Arc<Entry>>, Loss> {
    let epoch = Epoch::from_raw(decided.epoch);
    let after = |sequence| stream.read_after(Cursor { epoch, sequence }, MAX_ENTRIES);
    match after(decided.sequence) {
        // A life that had just begun.
        Err(Loss::Expired | Loss::Replaced) => after(decided.sequence + MARGIN),
        read => read,
    }
}

fn happenings(entries: &[Arc<Entry>]) -> Replay {
    let mut happenings = Vec::new();
    for entry in entries {
        for change in &entry.changes {
            match change {
                // Announced again, also where a copy was held already: an engine that computes a block
                // announces it.
                Change::Stored(stored) => {
                    if stored.attributes.bigrams {
                        // Its blocks are pairs of tokens, and are not found by the prompt's contents.
                        return Replay::Expired;
                    }
                    let blocks =
                        stored.blocks.iter().filter_map(|block| Some((block.hash, block.content()?)));
                    happenings.push(Happening::Stored(blocks.collect()));
                }
                Change::Cleared { .. } | Change::Dropped { .. } => happenings.push(Happening::Cleared),
                Change::Removed { .. } => {}
            }
        }
        for transition in &entry.transitions {
            if let Transition::Removed { hashes, .. } = transition {
                happenings.push(Happening::Removed(hashes.clone()));
            }
        }
    }
    Replay::Whole(happenings)
}
