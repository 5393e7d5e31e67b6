//! A whole state, sent in parts.

use kvplane_wire::smg::SnapshotChunk;

use super::{Phase, Relay};
use crate::clock::Now;
use crate::sequencer::{Action, EpochCause, Sequenced};

impl Relay {
    /// The next part of a state. The first one replaces everything, and nothing is settled before the last
    /// one.
    pub(super) fn snapshot_part(&mut self, now: Now, chunk: SnapshotChunk, batch: Sequenced) {
        let expected = match self.phase {
            Phase::Snapshot { parts, of } => (parts, of, self.last.and_then(|last| last.checked_add(1))),
            _ => (0, chunk.count, None),
        };
        let begins = chunk.index == 0 && chunk.count > 0;
        let continues = expected == (chunk.index, chunk.count, Some(batch.sequence));
        if !begins && !continues {
            return self.start_over();
        }
        if begins {
            self.void(EpochCause::SnapshotSent);
        }
        let (sequence, parts) = (batch.sequence, chunk.index + 1);
        // What is said of the whole stands before its events, so that whatever is wrong with one of them is
        // not forgotten.
        if begins && chunk.unknown_before == 0 {
            self.out.push_back(Action::HeardFromStart);
        }
        self.apply(batch);
        // A number alone is no proof, and this batch will not be sent again.
        self.recent.clear();
        if begins && chunk.unknown_before > 0 {
            // Behind the clear that a snapshot begins with: after a clear everything would be known.
            self.out.push_back(Action::KnownFrom(sequence));
        }
        self.phase = if parts == chunk.count {
            Phase::Following
        } else {
            // It takes its time, but it comes.
            self.unsettled_since = Some(now.mono);
            Phase::Snapshot { parts, of: chunk.count }
        };
    }

    /// Malformed parts, or parts that do not go together.
    pub(super) fn start_over(&mut self) {
        self.counters.refused += 1;
        self.void(EpochCause::NothingToAsk);
        self.ask_again();
    }
}
