//! Asking the replay socket.
//!
//! An answer ends with a marker, and a socket that drops replies may send the marker all the same. So an end
//! is believed only as far as nothing is known beyond it: what was heard before the question must be in the
//! answer, and where nothing that is heard reaches the end, the question is asked again from there before the
//! stream is `live`. An answer that lost its last batches twice in the same place, on a connection that
//! carries nothing else, looks like a whole one: the question that follows a silence finds it.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Reason, digest};

use super::alone::Pending;
use super::hold::Held;
use super::{Action, END_MARKER, EpochCause, Last, OnGap, Origin, Phase, Sequencer};
use crate::clock::Now;

/// Questions in a row that only ask whether the answer before was whole.
const MAX_CONFIRMATIONS: u32 = 3;

/// What was asked before, in the same recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Try {
    /// Which attempt this is, from 1.
    pub(super) attempt: u32,
    /// An earlier one had the expected batch back.
    pub(super) proven_before: bool,
    /// Answers so far that were asked about once more.
    confirmations: u32,
}

impl Default for Try {
    fn default() -> Self {
        Self { attempt: 1, proven_before: false, confirmations: 0 }
    }
}

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
    attempt: Try,
    /// When it was asked.
    asked: Duration,
    /// Batches that replays had brought by then.
    replayed_before: u64,
    /// The highest number that came back.
    tail: Option<u64>,
    /// Arrivals before this stamp were published before the question was answered.
    stamp: u64,
}

impl Request {
    pub(super) fn asked(&self) -> Duration {
        self.asked
    }

    /// Whether this recovery has shown that it is the same life.
    fn proven(&self) -> bool {
        self.attempt.proven_before || (self.verified && (self.expect.is_some() || self.tail.is_some()))
    }
}

impl Sequencer {
    /// After a (re)connect: is it still the same life?
    pub(super) fn verify(&mut self, now: Now) {
        self.phase = Phase::Recovering;
        self.pending = None;
        self.quiet.stop();
        self.recent.forget_lost();
        if self.options.replay {
            self.ask_replay(now, false);
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
        self.quiet.stop();
        if self.options.replay {
            // A question already under way was asked too early to answer this; its end asks again.
            if self.request.is_none() {
                self.ask_replay(now, false);
            }
        } else {
            self.pending = Some(Pending::GiveUpOrder { at: now.mono + self.options.reorder_wait });
        }
    }

    pub(super) fn ask_replay(&mut self, now: Now, background: bool) {
        self.ask_replay_again(now, background, Try::default());
    }

    pub(super) fn ask_replay_again(&mut self, now: Now, background: bool, attempt: Try) {
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
            attempt,
            asked: now.mono,
            replayed_before: self.counters.replayed_batches,
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
                    // A replay socket drops replies when it cannot send them fast enough: ask once more
                    // before the missing batch counts as lost.
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
    pub(super) fn place_run_from_hold(&mut self, limit: u64) {
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
            let attempt = request.attempt;
            if self.linked && attempt.confirmations < MAX_CONFIRMATIONS {
                // The connection that brought it is still there: more likely the answer was lost than the
                // process.
                let attempt = Try { confirmations: attempt.confirmations + 1, ..attempt };
                self.ask_replay_again(now, request.background, attempt);
            } else {
                self.restart(now, EpochCause::RingBelowCursor, None);
            }
            return;
        }
        if self.is_cut_short(&request) {
            self.counters.replays_failed += 1;
            self.cut_short(now, &request);
            return;
        }
        self.answered(now);
        if request.tail.is_none() && self.fresh && self.hold.is_empty() {
            // An empty ring and nothing heard: the publisher has not published yet.
            self.tell_start();
        }
        if !request.background && self.may_be_cut_short(&request) {
            let confirmations = request.attempt.confirmations + 1;
            let attempt = Try { proven_before: request.proven(), confirmations, ..Try::default() };
            self.ask_replay_again(now, false, attempt);
            return;
        }
        self.merge_hold(now);
    }

    /// The ring holds all that was published before it was asked. If something heard before that is above its
    /// answer, the answer is not whole: it proves nothing about what is missing.
    fn is_cut_short(&self, request: &Request) -> bool {
        let is_above =
            |sequence, stamp| stamp < request.stamp && request.tail.is_none_or(|tail| sequence > tail);
        self.known_tail.is_some_and(|(sequence, stamp)| is_above(sequence, stamp))
            || self.hold.any(|sequence, held| is_above(sequence, held.stamp))
    }

    /// Whether an answer brought something, and nothing but its end says that there is no more.
    fn may_be_cut_short(&self, request: &Request) -> bool {
        let brought = self.counters.replayed_batches > request.replayed_before;
        let heard_on = self.highest_live.is_some_and(|highest| request.tail <= Some(highest));
        brought && !heard_on && self.hold.is_empty() && request.attempt.confirmations < MAX_CONFIRMATIONS
    }

    /// A whole answer ended below something that was heard before it was asked for.
    fn cut_short(&mut self, now: Now, request: &Request) {
        let proven_before = request.proven();
        if self.last.map(|last| last.sequence) > request.expect.map(|last| last.sequence) {
            // It came further: the rest is asked for at once.
            self.phase = Phase::Recovering;
            self.ask_replay_again(now, false, Try { proven_before, ..Try::default() });
        } else if !self.retry(now, request) {
            self.refute(now, request);
        }
    }

    /// The ring says again and again that what was heard was never published. On a connection that has
    /// brought a batch of this life the ring is not whole, and the rest is lost. Else what was heard may be
    /// left of a life that is over: none of it is placed, and nothing that is known is relied on.
    fn refute(&mut self, now: Now, request: &Request) {
        if self.linked {
            self.settle_hold(now, Reason::Gap);
            return;
        }
        self.hold.remove_before(request.stamp);
        self.known_tail = None;
        self.count_loss(Reason::Gap);
        if self.contradicted() {
            self.unproven(EpochCause::NothingToAsk, None);
            self.accept_whatever_comes(now);
        } else {
            self.merge_hold(now);
        }
    }

    fn replay_failed(&mut self, now: Now, request: &Request) {
        if request.background && self.phase == Phase::Live {
            self.probe_failed(now, request);
        } else if self.connected && !self.retry(now, request) {
            self.go_on_without_replay(now, request.proven());
        }
        // With nobody there, the next connect asks again.
    }

    /// Asks again after a pause. False if that was done often enough.
    fn retry(&mut self, now: Now, request: &Request) -> bool {
        let Try { attempt, confirmations, .. } = request.attempt;
        let again = attempt < self.options.replay_attempts;
        if again {
            let at = now.mono + self.options.retry_pause * attempt;
            let again = Try { attempt: attempt + 1, proven_before: request.proven(), confirmations };
            self.pending = Some(Pending::Retry { at, again });
        }
        again
    }

    /// After a complete replay: place what is on hold; ask again if a hole is left, or if something does not
    /// fit.
    fn merge_hold(&mut self, now: Now) {
        let mut ask_again = false;
        // One answer contradicts once, however many batches it is about.
        let mut contradicts = false;
        while let Some(first) = self.hold.first() {
            let Some(last) = self.last else {
                // Heard since the question: the beginning of a life, or something that the ring must know by
                // now.
                match self.hold.take(0) {
                    Some(held) if held.readable => self.place(0, held),
                    _ => {
                        ask_again = true;
                        break;
                    }
                }
                continue;
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
                // Heard live and replayed, and not the same: a damaged frame, or a life that began since we
                // asked.
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
            self.ask_replay(now, false);
        } else if self.connected || self.phase == Phase::Live {
            self.go_live(now);
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
        } else {
            // The ring says so, and its answer may have been cut short. What this connection has carried must
            // be in it, unless the connection ends as well.
            self.known_tail = self.latest_live.map(|latest| (latest, self.stamp));
        }
        self.verify(now);
    }

    /// It cannot be proven that it is the same life. What follows, from `first_known`, begins another.
    pub(super) fn unproven(&mut self, cause: EpochCause, first_known: Option<u64>) {
        let first_lost = self.last.map(|last| last.sequence + 1);
        if self.options.on_gap == OnGap::Keep {
            self.counters.unproven += 1;
            self.count_loss(Reason::Unproven);
            self.last = None;
            self.known_tail = None;
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
