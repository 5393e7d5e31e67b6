//! A stream's recorder: what puts batches in order, what they mean, and the ledger that keeps it, behind one
//! set of inputs.
//!
//! The inputs depend on the kind of source: [`published`] is a socket that engines publish on, [`drained`] a
//! buffer that is emptied by reading it, [`relayed`] a server that keeps a stream of numbered batches,
//! [`mirrored`] another plane, [`handed`] the engine's own process.

mod drained;
mod dumped;
mod evidence;
mod flushes;
mod follower;
mod handed;
mod liveness;
mod mirrored;
mod published;
mod relayed;
mod remembered;
mod silence;

use std::time::Duration;

use kvplane_core::{Continuity, Epoch, Reason, Trust};
use kvplane_wire::{Decoder, Dialect};

use crate::clock::Now;
use crate::drain::{Drain, DrainOptions};
use crate::flush::FlushId;
use crate::interpreter::Interpreter;
use crate::ledger::{Ledger, PassedOver};
use crate::memory::Step;
use crate::mirror::Misfit;
use crate::options::JournalOptions;
use crate::peer_dump::Position;
use crate::relay::{Relay, RelayOptions};
use crate::sequencer::{Action, Counters, EpochCause, Options, Sequenced, Sequencer};
use follower::Follower;
use liveness::{Liveness, Turn};
use remembered::Records;

/// What the driver has to ask the outside for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The replay socket, from `from` inclusive. Any request before this one is void.
    Replay {
        /// To be handed back with every answer.
        id: u64,
        /// The first sequence wanted.
        from: u64,
    },
    /// The engine's start time and capacity.
    Hint {
        /// To be handed back with the answer.
        id: u64,
    },
    /// Another subscription, with [`Recorder::relay_start`].
    Resubscribe,
}

/// Something worth a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// The stream stands elsewhere.
    Continuity(Continuity),
    /// Answers are worth something else.
    Trust(Trust, Option<Reason>),
    /// A new epoch.
    Epoch(Epoch, EpochCause),
    /// It caught up.
    CaughtUp {
        /// Batches that replays brought.
        batches: u64,
        /// Gaps among them that are filled.
        gaps_filled: u64,
    },
    /// Batches were lost for good.
    Lost(Reason),
    /// The stream did not show a flush in time; what it held was dropped.
    UnprovenFlush,
    /// A batch could not be decoded: reported for the first, then less and less often.
    Undecodable {
        /// Its number.
        sequence: u64,
        /// What is wrong, as a stable word.
        reason: &'static str,
        /// How many there have been, this one included.
        count: u64,
    },
    /// The replay address is another publisher's; it is asked no more.
    ForeignReplay,
    /// For the first time a batch that was handed over names another rank than the stream's. It is recorded.
    ForeignRank(i64),
    /// An event was rejected or skipped.
    PassedOver(PassedOver),
    /// What the plane that is followed says does not fit: what was known is void.
    Void(Misfit),
    /// An input came that only this other kind of source has. It is ignored; a defect of kvplane.
    Misdirected(&'static str),
}

/// Order, meaning and ledger of one stream.
#[derive(Debug)]
pub struct Recorder {
    follower: Follower,
    interpreter: Interpreter,
    ledger: Ledger,
    dialect: Dialect,
    decoder: Decoder,
    liveness: Liveness,
    foreign_replays: u64,
    misdirected: u64,
    /// Answers to older hints speak of another life's capacity.
    hints_from: u64,
    last_continuity: Continuity,
    /// What had been counted when it was last live; its gaps, when a life began since.
    last_live: Counters,
    last_trust: (Trust, Option<Reason>),
    asks: Vec<Ask>,
    happenings: Vec<Happening>,
    /// Where somebody keeps them.
    records: Option<Records>,
    /// Flushes that nobody watches any more.
    lost_flushes: Vec<FlushId>,
}

impl Recorder {
    /// A recorder of what an engine publishes on a socket, which has heard nothing.
    pub fn new(follow: Options, keep: JournalOptions, rank: u32, now: Now) -> Self {
        Self::of(Follower::Published(Box::new(Sequencer::new(follow))), Dialect::Msgpack, keep, rank, now)
    }

    /// A recorder of a buffer that is drained.
    pub fn of_drain(follow: DrainOptions, keep: JournalOptions, rank: u32, now: Now) -> Self {
        Self::of(Follower::Drained(Box::new(Drain::new(follow))), Dialect::TrtllmJson, keep, rank, now)
    }

    /// A recorder of what somebody else keeps and relays.
    pub fn of_relay(follow: RelayOptions, keep: JournalOptions, rank: u32, now: Now) -> Self {
        Self::of(Follower::Relayed(Box::new(Relay::new(follow))), Dialect::Smg, keep, rank, now)
    }

    fn of(follower: Follower, dialect: Dialect, keep: JournalOptions, rank: u32, now: Now) -> Self {
        let (interpreter, ledger) = Interpreter::with_ledger(keep, rank, now);
        Self::with(follower, dialect, interpreter, ledger)
    }

    fn with(follower: Follower, dialect: Dialect, interpreter: Interpreter, ledger: Ledger) -> Self {
        Self {
            liveness: Liveness::default(),
            foreign_replays: 0,
            misdirected: 0,
            hints_from: 0,
            last_continuity: follower.continuity(),
            last_live: Counters::default(),
            last_trust: trust_of(&ledger),
            follower,
            interpreter,
            ledger,
            dialect,
            decoder: Decoder::default(),
            asks: Vec::new(),
            happenings: Vec::new(),
            records: None,
            lost_flushes: Vec::new(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The engine's device blocks, where it says so.
    pub fn capacity(&self) -> Option<u64> {
        self.interpreter.capacity()
    }

    /// The ledger, to cut snapshots.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// How many copies of a block there may be besides those that are counted.
    pub fn possible_copies(&self, hash: u64) -> u32 {
        self.interpreter.possible_copies(&self.ledger, hash)
    }

    /// Where the stream stands.
    pub fn continuity(&self) -> Continuity {
        match self.follower.continuity() {
            Continuity::Live if self.is_stale() => Continuity::Recovering,
            continuity => continuity,
        }
    }

    /// What happened to its order so far.
    pub fn counters(&self) -> Counters {
        Counters { misdirected: self.misdirected, ..self.follower.counters() }
    }

    /// Counts an input that the stream's source cannot have: a defect that would otherwise leave a stream
    /// that hears nothing.
    fn misdirect(&mut self, kind: &'static str) {
        self.misdirected += 1;
        if self.misdirected.is_power_of_two() {
            self.happenings.push(Happening::Misdirected(kind));
        }
    }

    /// The publisher's number of the last batch that was put in order.
    pub fn last_sequence(&self) -> Option<u64> {
        self.follower.last_sequence()
    }

    /// When the engine's process started, where the engine says it: unix milliseconds.
    pub fn started(&self) -> Option<u64> {
        self.follower.started()
    }

    /// What to ask the outside for.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    /// What is worth a log line.
    pub fn take_happenings(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happenings)
    }

    /// The engine says that its blocks have this many tokens. True if that contradicts the configured number,
    /// and did not before.
    pub fn describe_block_size(&mut self, block_size: u32, now: Now) -> bool {
        let news = self.interpreter.describe_block_size(&mut self.ledger, block_size, now);
        self.note(now, || Step::BlockSize(block_size));
        self.settle(now);
        news
    }

    /// The engine says whether it serves adapters that its events do not name. True if it does, and did not
    /// before.
    pub fn describe_adapters(&mut self, untold: bool, now: Now) -> bool {
        let news = self.interpreter.describe_adapters(&mut self.ledger, untold, now);
        self.note(now, || Step::Adapters(untold));
        self.settle(now);
        news
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now) {
        self.follower.tick(now);
        self.settle(now);
    }

    /// The moment (monotonic) until which a tick changes nothing, unless something else is fed before.
    /// Streams that follow an engine without trouble need no tick for most of the time.
    pub fn idle_until(&self) -> Duration {
        self.liveness.stale_at().min(self.follower.idle_until())
    }

    /// The stream was removed: everything that it held is let go of, as at the end of a life.
    pub fn remove(&mut self, now: Now) {
        self.interpreter.begin_epoch(&mut self.ledger, EpochCause::Removed, now);
        self.note(now, || Step::NewEpoch(EpochCause::Removed));
    }

    fn settle(&mut self, now: Now) {
        match self.liveness.judge(now.mono) {
            Some(Turn::FellSilent) => self.follower.silent(now),
            Some(Turn::CameBack) => self.follower.proven(now),
            None => {}
        }
        self.ledger.set_age(self.liveness.age(now.mono));
        while let Some(action) = self.follower.poll() {
            match action {
                Action::Replay { id, from } => self.asks.push(Ask::Replay { id, from }),
                Action::Hint { id } => {
                    self.hints_from = self.hints_from.min(id);
                    self.asks.push(Ask::Hint { id });
                }
                Action::Resubscribe => self.asks.push(Ask::Resubscribe),
                Action::Apply(batch) => self.apply(batch, now),
                Action::NewEpoch(cause) => {
                    self.interpreter.begin_epoch(&mut self.ledger, cause, now);
                    self.note(now, || Step::NewEpoch(cause));
                    self.hints_from = u64::MAX;
                    // A gap between two lives is none that can be filled.
                    let Counters { gaps, gaps_unfilled, .. } = self.follower.counters();
                    self.last_live = Counters { gaps, gaps_unfilled, ..self.last_live };
                    self.happenings.push(Happening::Epoch(self.ledger.epoch(), cause));
                }
                action => {
                    heed((&mut self.interpreter, &mut self.ledger), &mut self.happenings, &action, now);
                    if let Some(step) = Step::of(&action) {
                        self.note(now, || step);
                    }
                }
            }
        }
        self.note_order(now);
        if self.follower.counters().replays_foreign > self.foreign_replays {
            self.foreign_replays = self.follower.counters().replays_foreign;
            self.happenings.push(Happening::ForeignReplay);
        }
        self.happenings.extend(self.interpreter.take_passed_over().into_iter().map(Happening::PassedOver));
        let continuity = self.continuity();
        // What another plane records has its entries alone: none is added here.
        let mirrored = self.is_mirror();
        if mirrored {
            self.ledger.stand(continuity);
        } else if continuity == Continuity::Live && self.ledger.trust().has(Reason::Unheard) {
            self.ledger.lack_history(now);
            self.note(now, || Step::LackHistory);
        }
        if continuity != self.last_continuity {
            self.last_continuity = continuity;
            if continuity == Continuity::Live {
                let counters = self.follower.counters();
                let before = std::mem::replace(&mut self.last_live, counters);
                let batches = counters.replayed_batches - before.replayed_batches;
                let lost = counters.gaps_unfilled - before.gaps_unfilled;
                let gaps_filled = (counters.gaps - before.gaps).saturating_sub(lost);
                self.happenings.extend((batches > 0).then_some(Happening::CaughtUp { batches, gaps_filled }));
            }
            if !mirrored {
                self.ledger.note_continuity(continuity);
                self.note(now, || Step::Continuity(continuity));
            }
            self.happenings.push(Happening::Continuity(continuity));
        }
        self.note_trust();
        if continuity == Continuity::Live && !self.lost_flushes.is_empty() {
            self.take_lost_flushes().into_iter().for_each(|id| self.end_flush(id, now));
        }
    }

    fn apply(&mut self, batch: Sequenced, now: Now) {
        let (sequence, digest) = (batch.sequence, batch.digest);
        let broken = match self.decoder.decode_as(self.dialect, &batch.payload) {
            Ok(decoded) => {
                if decoded.broken.is_none() {
                    self.ledger.expect_digest(digest);
                    self.interpreter.apply(&mut self.ledger, sequence, &decoded, now);
                    self.ledger.set_position(Position { sequence, digest });
                }
                decoded.broken
            }
            Err(error) => Some(error),
        };
        let Some(error) = broken else {
            self.note(now, || Step::Batch { sequence, digest, payload: batch.payload });
            return;
        };
        self.follower.undecodable(now, batch);
        if self.follower.last_sequence() >= Some(sequence) {
            // It keeps its place in line. Before anything that follows from that.
            self.note(now, || Step::GivenUp { sequence, digest });
        }
        let count = self.follower.counters().undecodable;
        if count.is_power_of_two() {
            self.happenings.push(Happening::Undecodable { sequence, reason: error.as_str(), count });
        }
    }

    /// An entry that says nothing: a consumer that is given a snapshot as batches needs one behind it.
    pub fn note_nothing(&mut self) {
        self.ledger.note_nothing();
        self.note_alone(|| Step::Nothing);
    }

    fn note_trust(&mut self) {
        let trust = trust_of(&self.ledger);
        if trust != self.last_trust {
            self.last_trust = trust;
            self.happenings.push(Happening::Trust(trust.0, trust.1));
        }
    }
}

/// What an action says of the history that is known.
fn heed(
    (interpreter, ledger): (&mut Interpreter, &mut Ledger),
    happenings: &mut Vec<Happening>,
    action: &Action,
    now: Now,
) {
    match *action {
        Action::HeardFromStart => interpreter.heard_from_start(ledger),
        Action::KnownFrom(sequence) => ledger.lack_history_before(sequence, now),
        Action::DropResidency(reason) => {
            interpreter.drop_residency(ledger, reason, now);
            happenings.push(Happening::Lost(reason));
        }
        Action::KeepAfterLoss => {
            interpreter.keep_after_loss(ledger, now);
            happenings.push(Happening::Lost(Reason::GapKept));
        }
        Action::Degrade(reason) => ledger.degrade_source(reason, now),
        Action::Resolve(reason) => ledger.resolve_source(reason),
        Action::Replay { .. }
        | Action::Hint { .. }
        | Action::Resubscribe
        | Action::Apply(_)
        | Action::NewEpoch(_) => {}
    }
}

fn trust_of(ledger: &Ledger) -> (Trust, Option<Reason>) {
    (ledger.trust().level(), ledger.trust().worst().map(|degradation| degradation.reason))
}
