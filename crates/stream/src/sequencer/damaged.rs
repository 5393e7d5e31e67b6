//! Batches that cannot be decoded.

use bytes::Bytes;
use kvplane_core::Reason;

use super::hold::Held;
use super::{Action, Origin, Sequenced, Sequencer};
use crate::clock::Now;

impl Sequencer {
    /// A batch that was handed out by [`Self::poll`] cannot be decoded (to its end).
    ///
    /// A live frame may have been damaged on the way: the ring is asked for a good copy. A batch that is as
    /// unreadable in the ring is lost.
    pub fn undecodable(&mut self, now: Now, batch: Sequenced) {
        self.counters.undecodable += 1;
        let state_changes_follow = self
            .out
            .iter()
            .any(|action| !matches!(action, Action::Apply(_) | Action::Replay { .. } | Action::Hint { .. }));
        if batch.origin == Origin::Replay || !self.options.replay || state_changes_follow {
            // Before anything that is in line behind it.
            let loss = self.loss_action(Reason::Undecodable);
            self.out.push_front(loss);
            return;
        }
        // Step back to before it, and hold what was placed behind it: the ring may have a good copy.
        self.recent.forget_from(batch.sequence);
        self.last = batch.previous;
        self.fresh = batch.first;
        self.request = None;
        for action in std::mem::take(&mut self.out) {
            match action {
                Action::Apply(later) => self.hold_again(later, true),
                Action::Replay { .. } => {}
                other => self.out.push_back(other),
            }
        }
        self.hold_again(batch, false);
        self.open_gap(now);
    }

    fn hold_again(&mut self, batch: Sequenced, readable: bool) {
        self.stamp += 1;
        let Sequenced { sequence, digest, payload, origin, .. } = batch;
        let payload = if readable { payload } else { Bytes::new() };
        self.put_on_hold(sequence, Held { digest, payload, origin, stamp: self.stamp, readable });
    }
}
