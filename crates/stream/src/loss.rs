//! Batches that are lost for good: counted once and answered in one way, whatever the source.

use kvplane_core::Reason;

use crate::continuity::{Action, Counters, OnGap};

/// Counts a loss, and says what it does to the state.
pub(crate) fn lose(counters: &mut Counters, on_gap: OnGap, reason: Reason) -> Action {
    counters.gaps_unfilled += 1;
    match on_gap {
        OnGap::Drop => Action::DropResidency(reason),
        OnGap::Keep => Action::KeepAfterLoss,
    }
}
