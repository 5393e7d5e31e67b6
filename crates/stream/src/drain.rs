//! A read-once buffer (TensorRT-LLM's HTTP drain): is what was read all that there was?
//!
//! A sans-IO state machine, as [`Sequencer`](crate::Sequencer) is. Every event has a number that rises by
//! one from 0 in every life, and every event can be had once: nothing can be asked for again. So a missing
//! number is lost for good, and the only question is why:
//!
//! | seen | meaning |
//! |---|---|
//! | numbers go on without a hole | nothing was lost |
//! | a number at or below the last | another life: numbers are never repeated within one |
//! | a hole, or what may be the end of one, after the process may have been gone | perhaps another life: not proven |
//! | an answer of ours got lost, and nothing has come since | no verdict yet |
//! | a hole, after an answer of ours got lost | we lost them: `gap` |
//! | a hole, and the answer held fewer events than fit into the buffer | it did not overflow: somebody else reads it: `stolen_drain` |
//! | a hole otherwise | it overflowed, or somebody else reads it: `suspected_drain` |
//! | nothing, ever | events are off (a life begins with an event), or were read before us: `events_disabled` |

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Reason, digest};

use crate::clock::Now;
use crate::loss::lose;
use crate::sequencer::{Action, Counters, EpochCause, OnGap, Origin, Sequenced};
use crate::silence::Silence;

/// How a drain is followed.
#[derive(Debug, Clone)]
pub struct DrainOptions {
    /// What lost events do.
    pub on_gap: OnGap,
    /// Unanswered for longer than this is `down`.
    pub down_after: Duration,
    /// Events that the engine's buffer holds per rank, where the operator says so.
    pub buffer: Option<usize>,
    /// Answers without a single event for as long as this mean that events are off.
    pub disabled_after: Duration,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            on_gap: OnGap::Drop,
            down_after: Duration::from_secs(10),
            buffer: None,
            disabled_after: Duration::from_secs(10),
        }
    }
}

/// Events with consecutive numbers.
#[derive(Debug, Clone)]
pub struct DrainedPart {
    /// Number of the first event.
    pub first: u64,
    /// Number of the last one.
    pub last: u64,
    /// The events, as they were sent.
    pub payload: Bytes,
}

/// Why the engine could not be drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainFailure {
    /// The question did not reach it: nothing was drained, and the process may be gone.
    Unreached,
    /// It was asked, and its answer was not had (whole): what was in it is lost.
    AnswerLost,
}

/// The state machine of one drained stream.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct Drain {
    options: DrainOptions,
    last: Option<u64>,
    answered_before: bool,
    failing_since: Option<Duration>,
    down: bool,
    silence: Silence,
    /// An answer was lost since the last event.
    answer_lost: bool,
    /// The process may have been gone since the last event.
    unreached: bool,
    /// An answer was lost after that: it may have held the beginning of another life.
    beginning_lost: bool,
    /// Somebody else has read the buffer, or may have.
    robbed: bool,
    /// An answer was lost, and no number has shown yet whether anything was in it.
    in_doubt: bool,
    /// Since when every answer has been empty, while nothing has ever been heard.
    empty_since: Option<Duration>,
    disabled: bool,
    /// The most events that an answer has held: the buffer is at least as large.
    most_events: usize,
    /// Events of this rank in the answer that is being read.
    answer: usize,
    out: VecDeque<Action>,
    counters: Counters,
}

impl Drain {
    /// A drain that has not been asked.
    pub fn new(options: DrainOptions) -> Self {
        Self {
            options,
            last: None,
            answered_before: false,
            failing_since: None,
            down: false,
            silence: Silence::default(),
            answer_lost: false,
            unreached: false,
            beginning_lost: false,
            robbed: false,
            in_doubt: false,
            empty_since: None,
            disabled: false,
            most_events: 0,
            answer: 0,
            out: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Where the stream stands.
    pub fn continuity(&self) -> Continuity {
        match (self.down, self.failing_since, self.answered_before) {
            (true, ..) => Continuity::Down,
            (_, Some(_), true) => Continuity::Recovering,
            (_, None, true) if self.in_doubt => Continuity::Recovering,
            (_, None, true) => self.silence.limit(Continuity::Live),
            (_, _, false) => Continuity::Connecting,
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of the last event.
    pub fn last_sequence(&self) -> Option<u64> {
        self.last
    }

    /// The next thing to do. Call until it says `None` after every input.
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// The engine answered with `events` events of this stream; their parts follow. There may be others in
    /// the answer that cannot be separated, `unreadable` ones: behind the parts [`Self::unreadable`] says
    /// what that means.
    pub fn answered(&mut self, now: Now, events: usize, unreadable: usize) {
        self.answered_before = true;
        self.silence.end(); // an answer is the proof
        self.failing_since = None;
        self.down = false;
        self.answer = events;
        if unreadable > 0 {
            self.lose_answer();
        }
        if events > 0 {
            self.empty_since = None;
        } else if self.last.is_none() {
            self.empty_since.get_or_insert(now.mono);
        }
    }

    /// Consecutive events of the answer, in order.
    pub fn drained(&mut self, part: DrainedPart) {
        if std::mem::take(&mut self.disabled) {
            self.out.push_back(Action::Resolve(Reason::EventsDisabled));
        }
        let DrainedPart { first, last, payload } = part;
        match self.last {
            Some(known) if first <= known => self.restart(first, EpochCause::IdsBeganAgain),
            Some(known) if first == known + 1 => {
                // The process was gone, and whatever came before these may have been pushed out of a full
                // buffer, read by somebody else, or lost on the way: that they follow ours proves nothing.
                let may_lack_the_first = self.beginning_lost || self.robbed || self.answer >= self.buffer();
                if self.unreached && may_lack_the_first {
                    self.restart(first, EpochCause::NothingToAsk);
                }
            }
            Some(_) if self.unreached => self.restart(first, EpochCause::NothingToAsk),
            Some(_) => self.lose(),
            None => self.begin(first),
        }
        self.answer_lost = false;
        self.unreached = false;
        self.beginning_lost = false;
        self.in_doubt = false;
        self.most_events = self.most_events.max(self.answer);
        self.last = Some(last);
        self.out.push_back(Action::Apply(Sequenced {
            sequence: last,
            digest: digest(&payload),
            payload,
            origin: Origin::Live,
            previous: None,
            first: false,
        }));
    }

    /// The engine could not be drained.
    pub fn failed(&mut self, now: Now, failure: DrainFailure) {
        if self.failing_since.is_none() {
            self.counters.disconnects += 1;
        }
        self.failing_since.get_or_insert(now.mono);
        self.empty_since = None;
        match failure {
            DrainFailure::Unreached => self.unreached = true,
            DrainFailure::AnswerLost => {
                self.lose_answer();
                self.in_doubt |= self.last.is_some();
            }
        }
    }

    fn lose_answer(&mut self) {
        self.answer_lost = true;
        self.beginning_lost |= self.unreached;
    }

    /// Events of the answer could not be separated. Any of them may have been a removal, and their numbers
    /// are missing from what follows.
    pub fn unreadable(&mut self) {
        self.counters.undecodable += 1;
        self.lose_answer();
        let loss = lose(&mut self.counters, self.options.on_gap, Reason::Undecodable);
        self.out.push_back(loss);
    }

    /// A part that was handed out cannot be decoded: its events are lost.
    pub fn undecodable(&mut self, _now: Now, _part: Sequenced) {
        self.counters.undecodable += 1;
        let loss = lose(&mut self.counters, self.options.on_gap, Reason::Undecodable);
        self.out.push_front(loss);
    }

    /// Nothing was proven within the limit: the stream is `recovering` until the engine answers.
    pub fn silent(&mut self, now: Now) {
        self.silence.begin(now, &mut self.counters);
    }

    /// The engine was proven to be there: nothing was lost by that, since what was not drained is still in
    /// its buffer.
    pub fn proven(&mut self, _now: Now) {
        self.silence.end();
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now) {
        self.silence.tick(now, self.options.down_after);
        let passed =
            |since: Option<Duration>, limit| since.is_some_and(|at| now.mono.saturating_sub(at) >= limit);
        if passed(self.failing_since, self.options.down_after) {
            self.down = true;
        }
        if !self.disabled && passed(self.empty_since, self.options.disabled_after) {
            self.disabled = true;
            self.out.push_back(Action::Degrade(Reason::EventsDisabled));
        }
    }

    /// What the buffer holds at least.
    fn buffer(&self) -> usize {
        self.options.buffer.unwrap_or(self.most_events)
    }

    fn begin(&mut self, first: u64) {
        self.out.push_back(if first == 0 { Action::HeardFromStart } else { Action::KnownFrom(first) });
    }

    fn restart(&mut self, first: u64, cause: EpochCause) {
        if cause.proven() {
            self.counters.restarts += 1;
        } else {
            self.counters.unproven += 1;
        }
        self.out.push_back(Action::NewEpoch(cause));
        self.begin(first);
    }

    fn lose(&mut self) {
        self.counters.gaps += 1;
        let reason = if self.answer_lost {
            Reason::Gap
        } else if self.answer < self.buffer() {
            Reason::StolenDrain
        } else {
            Reason::SuspectedDrain
        };
        self.robbed |= reason != Reason::Gap;
        let loss = lose(&mut self.counters, self.options.on_gap, reason);
        self.out.push_back(loss);
    }
}
