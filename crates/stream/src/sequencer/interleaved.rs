//! Two publishers under one topic: numbers that go back and forth.
//!
//! On one connection the numbers of one publisher rise. A restart goes back once, and then rises. When a
//! number goes back and the sequence before it continues nevertheless, again and again, there are two of
//! them, and no batch can be said to follow another: the state is dropped and nothing is placed until only
//! one of them is heard.

use std::time::Duration;

use kvplane_core::Reason;

use super::{Action, EpochCause, Phase, Sequencer};
use crate::clock::Now;

/// Returns to an earlier sequence that prove two publishers, once one of them contradicted the other. What is
/// left of an old connection returns once.
const MAX_RETURNS: u32 = 3;

/// The same where their numbers never met: each return alone could be a batch that is late.
const MAX_LATE_RETURNS: u32 = 16;

/// Heard alone for as long as this, a publisher is followed again.
const CALM: Duration = Duration::from_secs(15);

/// As many numbers in a row are of one publisher: returns before them were batches out of order or damaged
/// ones. Two publishers that are about equally busy do not leave each other so much room.
const ONE_PUBLISHER: u32 = 8;

/// The sequence that is being heard, and the one before it.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    /// The last number of the sequence that was heard last.
    current: Option<u64>,
    /// The last number of the one that it went back from.
    former: Option<u64>,
    /// One of them contradicted the other.
    contradicted: bool,
    returns: u32,
    last_return: Duration,
    /// Numbers in a row, without a hole or a return.
    in_a_row: u32,
}

impl Tracks {
    /// From when on one of them has been heard alone for long enough, if nothing returns before.
    pub(super) fn calm_at(&self) -> Duration {
        self.last_return.saturating_add(CALM)
    }

    /// Nothing says any more that there are two.
    fn calm_down(&mut self) {
        self.returns = 0;
        self.contradicted = false;
        self.former = None;
    }

    /// A number was heard; `contradicts` if something else was heard under it before. True if both sequences
    /// go on.
    fn heard(&mut self, now: Now, sequence: u64, contradicts: bool) -> bool {
        let follows = |track: Option<u64>| track.and_then(|last| last.checked_add(1)) == Some(sequence);
        let in_a_row = std::mem::take(&mut self.in_a_row);
        if self.current.is_none() || follows(self.current) {
            self.current = Some(sequence);
            self.in_a_row = in_a_row + 1;
            if self.in_a_row >= ONE_PUBLISHER {
                self.calm_down();
            }
        } else if follows(self.former) {
            if now.mono.saturating_sub(self.last_return) >= CALM {
                self.calm_down();
            }
            self.returns += 1;
            self.last_return = now.mono;
            self.former = self.current.replace(sequence);
        } else if contradicts || Some(sequence) < self.current {
            self.former = self.current.replace(sequence);
        } else {
            self.current = Some(sequence); // after a hole
        }
        self.contradicted |= contradicts;
        self.returns >= if self.contradicted { MAX_RETURNS } else { MAX_LATE_RETURNS }
    }
}

impl Sequencer {
    /// Notes a live frame's number. True if it shows that two publishers are heard: then nothing is placed
    /// any more.
    pub(super) fn interleaves(&mut self, now: Now, sequence: u64, contradicts: bool) -> bool {
        if self.interleaved {
            let goes_back = self.tracks.current.is_some_and(|current| sequence <= current);
            self.tracks.heard(now, sequence, goes_back);
            if goes_back {
                self.tracks.last_return = now.mono;
            }
            return true;
        }
        if !self.tracks.heard(now, sequence, contradicts) {
            return false;
        }
        self.interleaved = true;
        self.counters.interleavings += 1;
        self.hold.clear();
        self.request = None;
        self.pending = None;
        self.begin_epoch(EpochCause::Interleaved);
        self.phase = Phase::Recovering;
        self.out.push_back(Action::Degrade(Reason::Interleaved));
        true
    }

    /// The connection is another, or only one publisher has been heard for long enough.
    pub(super) fn end_interleaving(&mut self) {
        self.tracks = Tracks::default();
        if std::mem::take(&mut self.interleaved) {
            self.out.push_back(Action::Resolve(Reason::Interleaved));
        }
    }

    /// Time passed: follows the publisher that is left, if only one has been heard.
    pub(super) fn tick_interleaving(&mut self, now: Now) {
        if self.interleaved && now.mono >= self.tracks.calm_at() {
            self.end_interleaving();
            self.verify(now);
        }
    }
}
