//! Inputs from a socket that engines publish on.

use bytes::Bytes;
use kvplane_wire::Event;

use super::Recorder;
use super::follower::Follower;
use crate::clock::Now;
use crate::memory::Step;
use crate::sequencer::Sequencer;

impl Recorder {
    /// The live socket is connected (again).
    pub fn connected(&mut self, now: Now) {
        self.published(now, |sequencer| sequencer.connected(now));
    }

    /// The live socket lost its peer.
    pub fn disconnected(&mut self, now: Now) {
        self.published(now, |sequencer| sequencer.disconnected(now));
    }

    /// Some peer of a shared, bound socket came or went.
    pub fn recheck(&mut self, now: Now) {
        self.published(now, |sequencer| sequencer.recheck(now));
    }

    /// A live frame arrived.
    pub fn live(&mut self, now: Now, sequence: u64, payload: Bytes) {
        if sequence == 0 && self.begins_with_a_clear(&payload) {
            self.published(now, |sequencer| sequencer.began(now, payload));
        } else {
            self.published(now, |sequencer| sequencer.live(now, sequence, payload));
        }
    }

    /// The replay socket sent a batch.
    pub fn replayed(&mut self, now: Now, id: u64, sequence: u64, payload: Bytes) {
        self.published(now, |sequencer| sequencer.replayed(now, id, sequence, payload));
    }

    /// The replay ended; `complete` if its end marker was seen.
    pub fn replay_ended(&mut self, now: Now, id: u64, complete: bool) {
        self.published(now, |sequencer| sequencer.replay_ended(now, id, complete));
    }

    /// The answer to [`Ask::Hint`](super::Ask::Hint): start time in milliseconds, usable device blocks.
    pub fn hint(&mut self, now: Now, id: u64, start_time_ms: Option<u64>, capacity: Option<u64>) {
        if capacity.is_some() && id >= self.hints_from {
            self.interpreter.set_capacity(capacity);
            self.note(now, || Step::Capacity(capacity));
        }
        self.published(now, |sequencer| sequencer.hint(now, id, start_time_ms));
    }

    /// Whether there is a replay socket to ask. Takes effect with the next question.
    pub fn offer_replay(&mut self, offered: bool) {
        if let Follower::Published(sequencer) = &mut self.follower {
            sequencer.offer_replay(offered);
        } else {
            self.misdirect("published");
        }
    }

    fn begins_with_a_clear(&mut self, payload: &[u8]) -> bool {
        let batch = self.decoder.decode_as(self.dialect, payload);
        batch.is_ok_and(|batch| {
            batch.broken.is_none() && matches!(batch.events.first(), Some(Event::Cleared { ownership: None }))
        })
    }

    fn published(&mut self, now: Now, input: impl FnOnce(&mut Sequencer)) {
        if let Follower::Published(sequencer) = &mut self.follower {
            input(sequencer);
            self.settle(now);
        } else {
            self.misdirect("published");
        }
    }
}
