//! Asking the replay socket, and living without one.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Reason, digest};

use super::hold::Held;
use super::{Action, Continuity, END_MARKER, EpochCause, HintAnswer, Last, OnGap, Origin, Phase};
use crate::clock::Now;

/// A replay under way.
#[derive(Debug)]
pub(super) struct Request {
    id: u64,
    /// Asked while following: live batches go on being placed meanwhile.
    pub(super) background: bool,
    /// What must come back first if it is the same life; `None` when asked from 0.
    expect: Option<Last>,
    /// The expected batch came back, or none was expected.
    verified: bool,
    /// An earlier attempt of the same recovery had the expected batch back.
    proven_before: bool,
    /// Which attempt this is, from 1.
    attempt: u32,
    /// The highest number that came back.
    tail: Option<u64>,
    /// Arrivals before this stamp were published before the question was answered.
    stamp: u64,
}

/// Something to do later.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pending {
    /// Ask the replay socket again.
    Retry { at: Duration, attempt: u32, proven: bool },
    /// Give up waiting for a batch that may only be late.
    GiveUpOrder { at: Duration },
    /// No replay can prove anything: the next live batch and the hint decide.
    AwaitLive,
}

impl Request {
    /// Whether this recovery has shown that it is the same life.
    fn proven(&self) -> bool {
        self.proven_before || (self.verified && (self.expect.is_some() || self.tail.is_some()))
    }
}

impl Continuity {
    /// After a (re)connect: is it still the same life?
    pub(super) fn verify(&mut self, now: Now) {
        self.phase = Phase::Recovering;
        self.pending = None;
        self.next_question = None;
        self.recent.forget_lost();
        if self.options.replay {
            self.ask_replay(false);
        } else if self.last.is_none() {
            self.accept_whatever_comes(now);
        } else {
            self.pending = Some(Pending::AwaitLive);
            self.try_without_replay(now);
        }
    }

    /// The live sequence has a hole.
    pub(super) fn open_gap(&mut self, now: Now) {
        self.counters.gaps += 1;
        self.phase = Phase::Recovering;
        self.next_question = None;
        if self.options.replay {
            // A question already under way was asked too early to answer this; its end asks again.
            if self.request.is_none() {
                self.ask_replay(false);
            }
        } else {
            self.pending = Some(Pending::GiveUpOrder { at: now.mono + self.options.reorder_wait });
        }
    }

    pub(super) fn ask_replay(&mut self, background: bool) {
        self.ask_replay_again(background, 1, false);
    }

    fn ask_replay_again(&mut self, background: bool, attempt: u32, proven_before: bool) {
        self.next_id += 1;
        self.stamp += 1;
        self.counters.replays += 1;
        self.pending = None;
        let expect = self.last;
        self.request = Some(Request {
            id: self.next_id,
            background,
            expect,
            verified: expect.is_none(),
            proven_before,
            attempt,
            tail: None,
            stamp: self.stamp,
        });
        self.out.push_back(Action::Replay { id: self.next_id, from: expect.map_or(0, |last| last.sequence) });
    }

    /// The replay socket sent a batch.
    pub fn replayed(&mut self, now: Now, id: u64, sequence: u64, payload: Bytes) {
        let Some(request) = self.request.as_mut().filter(|request| request.id == id) else { return };
        if sequence == END_MARKER {
            return;
        }
        let digest = digest(&payload);
        if !request.verified
            && let Some(expect) = request.expect
        {
            if sequence < expect.sequence {
                // Below what was asked for. Proves nothing by itself, unless we know better.
                if self.recent.get(sequence).is_some_and(|known| known != digest) {
                    self.restart(now, EpochCause::DifferentBatch, None);
                }
                return;
            }
            request.verified = true;
            request.tail = Some(sequence);
            match expect.digest {
                Some(known) if sequence == expect.sequence && known == digest => return,
                Some(_) if sequence == expect.sequence => {
                    self.restart(now, EpochCause::DifferentBatch, None);
                    return;
                }
                _ => self.unproven(EpochCause::RingCut, Some(sequence)),
            }
        }
        if let Some(request) = self.request.as_mut() {
            request.tail = request.tail.max(Some(sequence));
        }
        let held = Held { digest, payload, origin: Origin::Replay, stamp: self.stamp, readable: true };
        self.place_replayed(now, sequence, held);
    }

    fn place_replayed(&mut self, now: Now, sequence: u64, held: Held) {
        if self.last.is_some_and(|last| sequence <= last.sequence) {
            match self.recent.get(sequence) {
                Some(known) if known != held.digest => self.restart(now, EpochCause::DifferentBatch, None),
                _ => {}
            }
            return;
        }
        self.place_run_from_hold(sequence);
        match self.last {
            Some(last) if sequence <= last.sequence => return,
            Some(last) if sequence > last.sequence + 1 => {
                if self.hole_after != Some(last.sequence) {
                    // A replay socket drops replies when it cannot send them fast enough: ask once more before the
                    // missing batch counts as lost.
                    self.put_on_hold(sequence, held);
                    return;
                }
                self.skip_to(sequence, Reason::Gap);
            }
            _ => {}
        }
        self.place(sequence, held);
    }

    /// Places held batches that follow the last one without a hole, up to (not including) `limit`.
    fn place_run_from_hold(&mut self, limit: u64) {
        while let Some(last) = self.last {
            let next = last.sequence + 1;
            if next >= limit || self.hold.get(next).is_none_or(|held| !held.readable) {
                return;
            }
            if let Some(held) = self.hold.take(next) {
                self.place(next, held);
            }
        }
    }

    /// The replay ended: `complete` if its end marker was seen.
    pub fn replay_ended(&mut self, now: Now, id: u64, complete: bool) {
        let Some(request) = self.request.take_if(|request| request.id == id) else { return };
        if !complete {
            self.counters.replays_failed += 1;
            self.replay_failed(now, &request);
            return;
        }
        if !request.verified {
            // Asked for our last batch and got nothing at or above it.
            self.restart(now, EpochCause::RingBelowCursor, None);
            return;
        }
        if let Some(tail) = request.tail {
            // The ring holds all that was published before it was asked. If something heard before that is above it, the
            // answer was cut short: it proves nothing about what is missing.
            if self.hold.any(|sequence, held| held.stamp < request.stamp && sequence > tail) {
                self.counters.replays_failed += 1;
                self.replay_failed(now, &request);
                return;
            }
        } else if self.fresh && self.hold.is_empty() {
            // An empty ring and nothing heard: the publisher has not published yet.
            self.tell_start();
        }
        self.merge_hold(now);
    }

    fn replay_failed(&mut self, now: Now, request: &Request) {
        if request.background && self.phase == Phase::Live {
            return;
        }
        if !self.connected {
            // Nobody there; the next connect asks again.
            return;
        }
        if request.attempt < self.options.replay_attempts {
            let at = now.mono + self.options.retry_pause * request.attempt;
            self.pending =
                Some(Pending::Retry { at, attempt: request.attempt + 1, proven: request.proven() });
        } else {
            self.go_on_without_replay(now, request.proven());
        }
    }

    /// The replay socket does not answer. Decide without it.
    fn go_on_without_replay(&mut self, now: Now, same_life: bool) {
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
    fn accept_whatever_comes(&mut self, now: Now) {
        if self.hold.is_empty() {
            self.any_first = true;
            self.go_live(now);
        } else {
            self.settle_hold(now, Reason::Gap);
        }
    }

    /// Places everything on hold, giving up every hole in it.
    fn settle_hold(&mut self, now: Now, reason: Reason) {
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
        self.go_live(now);
    }

    /// A number that exists and whose batch nobody has in readable form.
    fn lose_damaged(&mut self, sequence: u64) {
        self.skip_to(sequence + 1, Reason::Undecodable);
        self.last = Some(Last { sequence, digest: None });
        self.fresh = false;
    }

    /// After a complete replay: place what is on hold; ask again if a hole is left, or if something does not fit.
    fn merge_hold(&mut self, now: Now) {
        let mut ask_again = false;
        // One answer contradicts once, however many batches it is about.
        let mut contradicts = false;
        while let Some(first) = self.hold.first() {
            let Some(last) = self.last else {
                // The ring was empty although something was heard: a ring of no length. Nothing more to be had.
                self.settle_hold(now, Reason::Gap);
                return;
            };
            if first > last.sequence {
                self.place_run_from_hold(u64::MAX);
                if self.hold.first().is_some_and(|next| self.last.is_some_and(|last| next > last.sequence)) {
                    self.hole_after = self.last_sequence();
                    ask_again = true;
                    break;
                }
                continue;
            }
            let Some(held) = self.hold.take(first) else { break };
            match self.recent.get(first) {
                // Heard live and replayed, and not the same: a damaged frame, or a life that began since we asked.
                Some(known) if held.readable && known != held.digest => {
                    ask_again = true;
                    let first_time =
                        held.origin == Origin::Live && !std::mem::replace(&mut contradicts, true);
                    if first_time && self.contradicted() {
                        self.restart(now, EpochCause::SequenceWentBack, Some((first, held)));
                        return;
                    }
                }
                _ => {
                    if !contradicts {
                        self.contradictions = 0;
                    }
                    self.counters.duplicates += 1;
                }
            }
        }
        if ask_again {
            self.phase = Phase::Recovering;
            self.ask_replay(false);
        } else if self.connected || self.phase == Phase::Live {
            self.go_live(now);
        }
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
            Some(Pending::Retry { at, attempt, proven }) if now.mono >= at => {
                self.ask_replay_again(false, attempt, proven);
            }
            Some(Pending::GiveUpOrder { at }) if now.mono >= at => {
                self.pending = None;
                self.unproven(EpochCause::NothingToAsk, self.hold.first());
                self.accept_whatever_comes(now);
            }
            _ => {}
        }
    }

    /// A restart is proven. `sign` is the batch of the new life that showed it, if one did.
    pub(super) fn restart(&mut self, now: Now, cause: EpochCause, sign: Option<(u64, Held)>) {
        // Whatever waits belongs to either life; the new life's ring has what is its own.
        self.hold.clear();
        self.request = None;
        self.begin_epoch(cause);
        if let Some((sequence, held)) = sign {
            self.put_on_hold(sequence, held);
        }
        self.verify(now);
    }

    /// It cannot be proven that it is the same life. What follows, from `first_known`, begins another.
    fn unproven(&mut self, cause: EpochCause, first_known: Option<u64>) {
        let first_lost = self.last.map(|last| last.sequence + 1);
        if self.options.on_gap == OnGap::Keep {
            self.counters.unproven += 1;
            self.count_loss(Reason::Unproven);
            self.last = None;
            self.recent.clear();
        } else {
            self.begin_epoch(cause);
        }
        if let (Some(lost), Some(known)) = (first_lost, first_known) {
            // A batch of the hole that is merely late must not look like a restart.
            self.recent.lose(lost..known);
        }
    }
}
