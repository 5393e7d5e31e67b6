//! A stream of numbered batches that somebody else keeps (SMG's `SubscribeKvEvents`): is it still the one
//! that we followed?
//!
//! A sans-IO state machine, as [`Sequencer`](crate::Sequencer) is; one per rank. [`Link`] is what the ranks
//! of one connection have in common.
//!
//! A server may be asked for what follows a number. It has no epochs, so every reconnect is a question:
//! subscribe with the number **before** our last batch, and a server that still has it sends our last batch
//! again, first.
//!
//! ```text
//!          from 0            a batch, or 2 s of silence
//!  Away ───────────> Opening ─────────────────────────────> Following
//!   ^ │                │ a snapshot's first part              ^  │
//!   │ │                └────────> Snapshot ── last part ──────┤  │ a gap: the same question, once
//!   │ │ from last - 1                                         │  v
//!   │ └───────────────────────> Proving ── our last batch ────┘ Asking again ──> (a new subscription)
//!   └──── the call ended             └──── anything else: a new epoch, and from 0
//! ```
//!
//! | seen | meaning |
//! |---|---|
//! | our last batch again, with the same digest | the same life |
//! | another batch under its number, or a lower number that is no duplicate | another life |
//! | a higher number, silence, `OUT_OF_RANGE`, or there was no batch to compare (a snapshot) | not proven: another epoch |
//! | a number that skips some | a gap: asked for once; if it stays, residency is dropped |
//! | `DATA_LOSS` | the server lost continuity: another epoch |
//!
//! The question names one number. A server that numbers several ranks separately cannot be asked about each
//! of them, so where there are several, nothing is proven over a reconnect.

mod link;
mod snapshot;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Reason};
use kvplane_wire::smg::Outline;

use crate::clock::Now;
use crate::loss::lose;
use crate::sequencer::{Action, Counters, EpochCause, Origin, Sequenced};
use crate::silence::Silence;
pub use link::{Link, Next};
pub use types::{Ended, RelayOptions};

/// Digests that are remembered: more batches than a server repeats.
const REMEMBERED: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no call.
    Away,
    /// From the beginning; nothing has come yet.
    Opening,
    /// From before our last batch, which must come first.
    Proving,
    /// Parts of a whole state come, of which this many have.
    Snapshot { parts: u32, of: u32 },
    /// In order.
    Following,
    /// Another subscription was asked for; what this one still brings is void.
    AskingAgain,
}

/// The state machine of one rank.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct Relay {
    options: RelayOptions,
    phase: Phase,
    /// No other rank comes through the same subscription.
    alone: bool,
    last: Option<u64>,
    /// Digests of consecutive batches of which the last one is `last`. None after a snapshot.
    recent: VecDeque<u128>,
    /// The present gap was asked for.
    gap_asked: bool,
    events_disabled: bool,
    /// When the server must have answered.
    answer_by: Duration,
    /// Since when there has been no verdict.
    unsettled_since: Option<Duration>,
    settled_before: bool,
    down: bool,
    silence: Silence,
    out: VecDeque<Action>,
    counters: Counters,
}

impl Relay {
    /// A stream that has not been subscribed to.
    pub fn new(options: RelayOptions) -> Self {
        Self {
            options,
            phase: Phase::Away,
            alone: true,
            last: None,
            recent: VecDeque::new(),
            gap_asked: false,
            events_disabled: false,
            answer_by: Duration::ZERO,
            unsettled_since: None,
            settled_before: false,
            down: false,
            silence: Silence::default(),
            out: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Where the stream stands.
    pub fn continuity(&self) -> Continuity {
        match self.phase {
            _ if self.down => Continuity::Down,
            Phase::Following => self.silence.limit(Continuity::Live),
            Phase::Away if !self.settled_before => Continuity::Connecting,
            _ => Continuity::Recovering,
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of the last batch.
    pub fn last_sequence(&self) -> Option<u64> {
        self.last
    }

    /// The number to subscribe with next; 0 is the beginning.
    pub fn start(&self) -> u64 {
        match self.last {
            Some(last) if self.can_prove() => last.saturating_sub(1),
            _ => 0,
        }
    }

    /// The next thing to do. Call until it says `None` after every input.
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// Other ranks come through the same subscription: from now on nothing can be asked for this one alone.
    pub fn accompanied(&mut self) {
        self.alone = false;
    }

    /// The server took a subscription with `start`: whatever it has comes now.
    pub fn subscribed(&mut self, now: Now, start: u64) {
        if std::mem::take(&mut self.events_disabled) {
            self.out.push_back(Action::Resolve(Reason::EventsDisabled));
        }
        self.silence.end();
        self.unsettled_since.get_or_insert(now.mono);
        self.answer_by = now.mono + self.options.answer_within;
        let repeats_last = self.last.is_some_and(|last| start < last || last == 0);
        if repeats_last && self.can_prove() {
            self.phase = Phase::Proving;
        } else {
            self.void(EpochCause::NothingToAsk);
            self.phase = Phase::Opening;
        }
    }

    /// A message came.
    pub fn message(&mut self, now: Now, outline: &Outline, payload: Bytes) {
        if outline.load_only {
            return;
        }
        let batch = Sequenced {
            sequence: outline.sequence,
            digest: outline.digest,
            payload,
            origin: Origin::Live,
            previous: None,
            first: false,
        };
        match (self.phase, outline.snapshot) {
            (Phase::Away | Phase::AskingAgain, _) => self.counters.refused += 1,
            (_, Some(chunk)) => self.snapshot_part(now, chunk, batch),
            (Phase::Snapshot { .. }, None) => self.start_over(),
            (Phase::Proving, None) => self.prove(batch),
            (Phase::Opening | Phase::Following, None) => self.in_order(batch),
        }
        if self.phase == Phase::Following {
            self.settled();
        }
    }

    /// The call ended, or could not be made.
    pub fn ended(&mut self, now: Now, how: Ended) {
        self.unsettled_since.get_or_insert(now.mono);
        self.silence.end();
        if self.phase != Phase::Away {
            self.counters.disconnects += 1;
        }
        let broken_off = matches!(self.phase, Phase::Snapshot { .. });
        self.phase = Phase::Away;
        match how {
            Ended::OutOfRange => self.void(EpochCause::CursorRefused),
            Ended::DataLoss => self.void(EpochCause::DataLoss),
            Ended::FailedPrecondition => self.void(EpochCause::Untellable),
            Ended::Unimplemented => {
                if !std::mem::replace(&mut self.events_disabled, true) {
                    self.out.push_back(Action::Degrade(Reason::EventsDisabled));
                }
            }
            // Half a state is none.
            Ended::Ok | Ended::Deadline | Ended::Unreachable | Ended::Other if broken_off => {
                self.void(EpochCause::NothingToAsk);
            }
            Ended::Ok | Ended::Deadline | Ended::Unreachable | Ended::Other => {}
        }
    }

    /// A batch that was handed out cannot be decoded: its events are lost.
    pub fn undecodable(&mut self, _now: Now, _batch: Sequenced) {
        self.counters.undecodable += 1;
        let loss = lose(&mut self.counters, self.options.on_gap, Reason::Undecodable);
        self.out.push_front(loss);
    }

    /// Nothing was proven within the limit: the stream is `recovering` until something is. Batches go on
    /// being applied.
    pub fn silent(&mut self, now: Now) {
        self.silence.begin(now, &mut self.counters);
    }

    /// The server was proven to be there. A call that is under way skips nothing: if the stream follows, it
    /// is `live` again.
    pub fn proven(&mut self, _now: Now) {
        self.silence.end();
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now) {
        if now.mono >= self.answer_by {
            match self.phase {
                // There is nothing to tell yet.
                Phase::Opening => {
                    self.phase = Phase::Following;
                    self.settled();
                }
                Phase::Proving => {
                    self.void(EpochCause::NothingToAsk);
                    self.ask_again();
                }
                _ => {}
            }
        }
        let limit = self.options.down_after;
        self.silence.tick(now, limit);
        self.down |= self.unsettled_since.is_some_and(|since| now.mono.saturating_sub(since) >= limit);
    }

    /// The first batch since a reconnect must be our last one.
    fn prove(&mut self, batch: Sequenced) {
        let last = self.last.unwrap_or_default();
        match self.digest_of(batch.sequence) {
            _ if batch.sequence > last => {
                self.void(EpochCause::RingCut);
                self.ask_again();
            }
            Some(known) if known == batch.digest => {
                // Some servers repeat more than they were asked for.
                if batch.sequence == last {
                    self.phase = Phase::Following;
                }
            }
            _ => {
                let went_back = batch.sequence < last;
                let cause = if went_back { EpochCause::SequenceWentBack } else { EpochCause::DifferentBatch };
                self.restart(cause, batch);
            }
        }
    }

    fn in_order(&mut self, batch: Sequenced) {
        self.phase = Phase::Following;
        match self.last {
            None => self.begin(batch),
            Some(last) if last.checked_add(1) == Some(batch.sequence) => {
                self.gap_asked = false;
                self.apply(batch);
            }
            Some(last) if batch.sequence <= last => {
                if self.digest_of(batch.sequence) == Some(batch.digest) {
                    self.counters.duplicates += 1;
                } else {
                    self.restart(EpochCause::SequenceWentBack, batch);
                }
            }
            Some(_) => self.gap(batch),
        }
    }

    fn gap(&mut self, batch: Sequenced) {
        if !self.gap_asked {
            self.counters.gaps += 1;
            if self.can_prove() {
                // This batch comes again, behind those that are missing.
                self.gap_asked = true;
                self.ask_again();
                return;
            }
        }
        self.gap_asked = false;
        let loss = lose(&mut self.counters, self.options.on_gap, Reason::Gap);
        self.out.push_back(loss);
        self.recent.clear();
        self.apply(batch);
    }

    fn begin(&mut self, batch: Sequenced) {
        let first = batch.sequence;
        self.out.push_back(if first == 0 { Action::HeardFromStart } else { Action::KnownFrom(first) });
        self.apply(batch);
    }

    fn apply(&mut self, batch: Sequenced) {
        self.last = Some(batch.sequence);
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(batch.digest);
        self.out.push_back(Action::Apply(batch));
    }

    /// Another life, of which `batch` is the first that we see.
    fn restart(&mut self, cause: EpochCause, batch: Sequenced) {
        self.counters.restarts += 1;
        self.forget(cause);
        if self.alone {
            // From its beginning, or with a snapshot.
            self.ask_again();
        } else {
            self.phase = Phase::Following;
            self.begin(batch);
        }
    }

    /// What is known cannot be relied on any more.
    fn void(&mut self, cause: EpochCause) {
        if self.last.is_some() {
            self.counters.unproven += 1;
            self.forget(cause);
        }
    }

    fn forget(&mut self, cause: EpochCause) {
        self.last = None;
        self.recent.clear();
        self.gap_asked = false;
        self.out.push_back(Action::NewEpoch(cause));
    }

    fn ask_again(&mut self) {
        if self.alone {
            self.counters.replays += 1;
            self.phase = Phase::AskingAgain;
            self.out.push_back(Action::Resubscribe);
        } else {
            // The others would lose what they have.
            self.phase = Phase::Following;
        }
    }

    fn settled(&mut self) {
        self.settled_before = true;
        self.unsettled_since = None;
        self.down = false;
    }

    /// Whether a server could show that it is the one that we followed.
    fn can_prove(&self) -> bool {
        self.alone && !self.recent.is_empty()
    }

    fn digest_of(&self, sequence: u64) -> Option<u128> {
        let back = usize::try_from(self.last?.checked_sub(sequence)?).ok()?;
        self.recent.iter().rev().nth(back).copied()
    }
}
