//! Going on without a replay socket, or with one that does not answer.

use std::time::Duration;

use kvplane_core::Reason;

use super::recovery::Try;
use super::{EpochCause, HintAnswer, Last, Sequencer};
use crate::clock::Now;

/// Something to do later.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pending {
    /// Ask the replay socket again.
    Retry { at: Duration, again: Try },
    /// Give up waiting for a batch that may only be late.
    GiveUpOrder { at: Duration },
    /// No replay can prove anything: the next live batch and the hint decide.
    AwaitLive,
}

impl Pending {
    /// When it is due; `None` if no time makes it so.
    pub(super) fn due(self) -> Option<Duration> {
        match self {
            Self::Retry { at, .. } | Self::GiveUpOrder { at } => Some(at),
            Self::AwaitLive => None,
        }
    }
}

impl Sequencer {
    /// The replay socket does not answer. Decide without it.
    pub(super) fn go_on_without_replay(&mut self, now: Now, same_life: bool) {
        self.pending = None;
        if self.last.is_none() {
            self.accept_whatever_comes(now);
        } else if same_life {
            // The same life, but the hole stays.
            self.settle_hold(now, Reason::Gap);
        } else if let Some(held) = self.beginning.take() {
            self.restart(now, EpochCause::StartUpClear, Some((0, held)));
        } else if self.unresolved_since.is_some() {
            self.pending = Some(Pending::AwaitLive);
            self.try_without_replay(now);
        } else {
            self.unproven(EpochCause::NothingToAsk, self.hold.first());
            self.accept_whatever_comes(now);
        }
    }

    /// No history to be had: whatever is on hold or comes next is the beginning of what is known.
    pub(super) fn accept_whatever_comes(&mut self, now: Now) {
        if self.hold.is_empty() {
            self.any_first = true;
            self.go_live(now);
        } else {
            self.settle_hold(now, Reason::Gap);
        }
    }

    /// Places everything on hold, giving up every hole in it.
    pub(super) fn settle_hold(&mut self, now: Now, reason: Reason) {
        while let Some((sequence, held)) = self.hold.take_first() {
            if self.last.is_some_and(|last| sequence <= last.sequence) {
                self.counters.duplicates += 1;
                continue;
            }
            if self.last.is_some_and(|last| sequence > last.sequence + 1) {
                self.skip_to(sequence, reason);
            }
            if held.readable {
                self.place(sequence, held);
            } else {
                self.lose_damaged(sequence);
            }
        }
        // What was heard and is not among it is given up as well.
        let is_beyond = |tail: u64| self.last.is_none_or(|last| last.sequence < tail);
        if self.known_tail.take().is_some_and(|(tail, _)| is_beyond(tail)) {
            self.count_loss(reason);
        }
        self.go_live(now);
    }

    /// A number that exists and whose batch nobody has in readable form.
    fn lose_damaged(&mut self, sequence: u64) {
        self.skip_to(sequence + 1, Reason::Undecodable);
        self.last = Some(Last { sequence, digest: None });
        self.fresh = false;
    }

    /// Without a replay endpoint (or with a dead one): can what is on hold go on?
    pub(super) fn try_without_replay(&mut self, now: Now) {
        let Some(pending) = self.pending else { return };
        let Some(first) = self.hold.first() else { return };
        let contiguous = self.last.is_some_and(|last| first == last.sequence + 1);
        match pending {
            Pending::Retry { .. } => {}
            Pending::GiveUpOrder { .. } => {
                if contiguous {
                    self.place_run_from_hold(u64::MAX);
                    if self.hold.is_empty() {
                        self.go_live(now);
                    }
                }
            }
            Pending::AwaitLive => {
                if self.hint.current == HintAnswer::Awaited {
                    return;
                }
                let current = self.hint.current.value();
                let unchanged = current.is_some() && current == self.hint.baseline;
                if contiguous && unchanged {
                    self.place_run_from_hold(u64::MAX);
                    if self.hold.is_empty() {
                        self.go_live(now);
                    } else {
                        self.unresolved_since = None;
                        self.open_gap(now);
                    }
                } else {
                    self.unproven(EpochCause::NothingToAsk, self.hold.first());
                    self.accept_whatever_comes(now);
                }
            }
        }
    }

    pub(super) fn run_pending(&mut self, now: Now) {
        match self.pending {
            Some(Pending::Retry { at, again }) if now.mono >= at => {
                self.ask_replay_again(now, false, again);
            }
            Some(Pending::GiveUpOrder { at }) if now.mono >= at => {
                self.pending = None;
                self.unproven(EpochCause::NothingToAsk, self.hold.first());
                self.accept_whatever_comes(now);
            }
            _ => {}
        }
    }
}
