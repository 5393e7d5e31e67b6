//! Inputs from a read-once buffer.

use super::Recorder;
use super::follower::Follower;
use crate::clock::Now;
use crate::drain::{Drain, DrainFailure, DrainedPart};

impl Recorder {
    /// The engine answered; `events` of this rank were in the answer, and their parts follow. `unreadable`
    /// others could not be read, which [`Self::drain_unreadable`] reports behind the parts.
    pub fn drain_answered(&mut self, now: Now, events: usize, unreadable: usize) {
        self.drain(now, |drain| drain.answered(now, events, unreadable));
    }

    /// Consecutive events of the answer.
    pub fn drained(&mut self, now: Now, part: DrainedPart) {
        self.drain(now, |drain| drain.drained(part));
    }

    /// This number of events of the answer could not even be separated: what they were is unknown.
    pub fn drain_unreadable(&mut self, now: Now, events: usize) {
        if events > 0 {
            self.drain(now, Drain::unreadable);
        }
    }

    /// The engine could not be drained.
    pub fn drain_failed(&mut self, now: Now, failure: DrainFailure) {
        self.drain(now, |drain| drain.failed(now, failure));
    }

    fn drain(&mut self, now: Now, input: impl FnOnce(&mut Drain)) {
        if let Follower::Drained(drain) = &mut self.follower {
            input(drain);
            self.settle(now);
        } else {
            self.misdirect("drained");
        }
    }
}
