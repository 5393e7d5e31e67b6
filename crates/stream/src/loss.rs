//! Batches that are lost for good: counted once and answered in one way, whatever the source.

use kvplane_core::Reason;

use crate::sequencer::{Action, Counters, OnGap};

/// Counts a loss, and says what it does to the state.
pub(crate) fn lose(counters: &mut Counters, on_gap: OnGap, reason: Reason) -> Action {
    counters.gaps_unfilled += 1;
    match on_gap {
        OnGap::Drop => Action::DropResidency(reason),
        OnGap::Keep => Action::KeepAfterLoss,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::sequencer::{Options, Origin, Sequenced, Sequencer};
    use crate::{Drain, DrainOptions, DrainedPart, HandedOptions, Now, Relay, RelayOptions};

    const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 0 };

    fn unreadable() -> Sequenced {
        let (previous, first) = (None, false);
        let payload = Bytes::from_static(b"?");
        Sequenced { sequence: 7, digest: 7, payload, origin: Origin::Replay, previous, first }
    }

    #[test]
    fn every_source_counts_a_loss_once_and_says_the_same() {
        let mut published = Sequencer::new(Options::default());
        published.undecodable(NOW, unreadable());
        let mut relayed = Relay::new(RelayOptions::default());
        relayed.undecodable(NOW, unreadable());
        let mut drained = Drain::new(DrainOptions::default());
        drained.undecodable(NOW, unreadable());
        let lost = Some(Action::DropResidency(Reason::Undecodable));
        for (counters, action) in [
            (published.counters(), published.poll()),
            (relayed.counters(), relayed.poll()),
            (drained.counters(), drained.poll()),
        ] {
            assert_eq!((counters.undecodable, counters.gaps_unfilled, action), (1, 1, lost.clone()));
        }
        let mut handed = crate::handed::Handed::new(HandedOptions::default());
        handed.take(0, true);
        assert_eq!(handed.take(2, true), Some(Action::DropResidency(Reason::Gap)));
        assert_eq!((handed.counters().gaps, handed.counters().gaps_unfilled), (1, 1));
        drained.drained(DrainedPart { first: 0, last: 0, payload: Bytes::new() });
        drained.drained(DrainedPart { first: 2, last: 2, payload: Bytes::new() });
        assert_eq!((drained.counters().gaps, drained.counters().gaps_unfilled), (1, 2));
    }
}
