//! Inputs from a server that keeps a stream of numbered batches.

use bytes::Bytes;
use kvplane_wire::smg::Outline;

use super::Recorder;
use super::follower::Follower;
use crate::clock::Now;
use crate::relay::{Ended, Relay};

impl Recorder {
    /// The number to subscribe with next; 0 is the beginning.
    pub fn relay_start(&self) -> u64 {
        if let Follower::Relayed(relay) = &self.follower { relay.start() } else { 0 } // the subscription counts it
    }

    /// Other ranks come through the same subscription.
    pub fn relay_accompanied(&mut self, now: Now) {
        self.relay(now, Relay::accompanied);
    }

    /// The server took a subscription with `start`.
    pub fn relay_subscribed(&mut self, now: Now, start: u64) {
        self.relay(now, |relay| relay.subscribed(now, start));
    }

    /// A message came. True if it moved the stream on.
    pub fn relayed(&mut self, now: Now, outline: &Outline, payload: Bytes) -> bool {
        let before = self.last_sequence();
        self.relay(now, |relay| relay.message(now, outline, payload));
        self.last_sequence() != before
    }

    /// The call ended, or could not be made.
    pub fn relay_ended(&mut self, now: Now, how: Ended) {
        self.relay(now, |relay| relay.ended(now, how));
    }

    fn relay(&mut self, now: Now, input: impl FnOnce(&mut Relay)) {
        if let Follower::Relayed(relay) = &mut self.follower {
            input(relay);
            self.settle(now);
        } else {
            self.misdirect("relayed");
        }
    }
}
