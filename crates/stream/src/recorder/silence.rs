//! Inputs of every source: whether it was there a moment ago.

use super::Recorder;
use crate::clock::Now;

impl Recorder {
    /// Nothing proved within the limit that the source is there: a stream that is `live` is `recovering`
    /// until something does.
    pub fn silent(&mut self, now: Now) {
        self.follower.silent(now);
        self.settle(now);
    }

    /// The source was proven to be there, as by a pong to a ping that was sent within the limit. Costs next
    /// to nothing while nothing is in doubt.
    pub fn proven(&mut self, now: Now) {
        self.follower.proven(now);
        self.settle(now);
    }
}
