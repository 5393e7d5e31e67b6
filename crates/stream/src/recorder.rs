//! A stream's recorder: continuity and journal behind one set of inputs.

use bytes::Bytes;
use kvplane_core::{Continuity as Standing, Epoch, Reason, Trust};
use kvplane_wire::Decoder;

use crate::clock::Now;
use crate::continuity::{Action, Continuity, EpochCause, Options};
use crate::journal::{Journal, JournalOptions, PassedOver};

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
}

/// Something worth a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// The stream stands elsewhere.
    Standing(Standing),
    /// Answers are worth something else.
    Trust(Trust, Option<Reason>),
    /// A new epoch.
    Epoch(Epoch, EpochCause),
    /// Batches were lost for good.
    Lost(Reason),
    /// A batch could not be decoded.
    Undecodable {
        /// Its number.
        sequence: u64,
        /// What is wrong, as a stable word.
        reason: &'static str,
    },
    /// The replay address is another publisher's; it is asked no more.
    ForeignReplay,
    /// An event was rejected or skipped.
    PassedOver(PassedOver),
}

/// Continuity and journal of one stream.
#[derive(Debug)]
pub struct Recorder {
    continuity: Continuity,
    journal: Journal,
    decoder: Decoder,
    foreign_replays: u64,
    last_standing: Standing,
    last_trust: (Trust, Option<Reason>),
    asks: Vec<Ask>,
    happenings: Vec<Happening>,
}

impl Recorder {
    /// A recorder that has heard nothing.
    pub fn new(follow: Options, keep: JournalOptions, rank: u32, now: Now) -> Self {
        let journal = Journal::new(keep, rank, now);
        let continuity = Continuity::new(follow);
        Self {
            foreign_replays: 0,
            last_standing: continuity.standing(),
            last_trust: trust_of(&journal),
            continuity,
            journal,
            decoder: Decoder::default(),
            asks: Vec::new(),
            happenings: Vec::new(),
        }
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The journal, to cut snapshots.
    pub fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The state machine, to look at.
    pub fn continuity(&self) -> &Continuity {
        &self.continuity
    }

    /// What to ask the outside for.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    /// What is worth a log line.
    pub fn take_happenings(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happenings)
    }

    /// The live socket is connected (again).
    pub fn connected(&mut self, now: Now) {
        self.continuity.connected(now);
        self.settle(now);
    }

    /// The live socket lost its peer.
    pub fn disconnected(&mut self, now: Now) {
        self.continuity.disconnected(now);
        self.settle(now);
    }

    /// Some peer of a shared, bound socket came or went.
    pub fn recheck(&mut self, now: Now) {
        self.continuity.recheck(now);
        self.settle(now);
    }

    /// A live frame arrived.
    pub fn live(&mut self, now: Now, sequence: u64, payload: Bytes) {
        self.continuity.live(now, sequence, payload);
        self.settle(now);
    }

    /// The replay socket sent a batch.
    pub fn replayed(&mut self, now: Now, id: u64, sequence: u64, payload: Bytes) {
        self.continuity.replayed(now, id, sequence, payload);
        self.settle(now);
    }

    /// The replay ended; `complete` if its end marker was seen.
    pub fn replay_ended(&mut self, now: Now, id: u64, complete: bool) {
        self.continuity.replay_ended(now, id, complete);
        self.settle(now);
    }

    /// The answer to [`Ask::Hint`]: start time in milliseconds, usable device blocks.
    pub fn hint(&mut self, now: Now, id: u64, start_time_ms: Option<u64>, capacity: Option<u64>) {
        if capacity.is_some() {
            self.journal.set_capacity(capacity);
        }
        self.continuity.hint(now, id, start_time_ms);
        self.settle(now);
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now) {
        self.continuity.tick(now);
        self.settle(now);
    }

    /// The stream was removed: everything that it held is let go of, as at the end of a life.
    pub fn remove(&mut self, now: Now) {
        self.journal.begin_epoch(EpochCause::Removed, now);
    }

    fn settle(&mut self, now: Now) {
        while let Some(action) = self.continuity.poll() {
            match action {
                Action::Replay { id, from } => self.asks.push(Ask::Replay { id, from }),
                Action::Hint { id } => self.asks.push(Ask::Hint { id }),
                Action::Apply(batch) => {
                    let broken = match self.decoder.decode(&batch.payload) {
                        Ok(decoded) => {
                            if decoded.broken.is_none() {
                                self.journal.apply(batch.sequence, &decoded, now);
                            }
                            decoded.broken
                        }
                        Err(error) => Some(error),
                    };
                    if let Some(error) = broken {
                        let (sequence, reason) = (batch.sequence, error.as_str());
                        self.happenings.push(Happening::Undecodable { sequence, reason });
                        self.continuity.undecodable(now, batch);
                    }
                }
                Action::NewEpoch(cause) => {
                    self.journal.begin_epoch(cause, now);
                    self.happenings.push(Happening::Epoch(self.journal.epoch(), cause));
                }
                Action::HeardFromStart => self.journal.heard_from_start(),
                Action::KnownFrom(sequence) => self.journal.known_from_sequence(sequence, now),
                Action::DropResidency(reason) => {
                    self.journal.drop_residency(reason, now);
                    self.happenings.push(Happening::Lost(reason));
                }
                Action::KeepAfterLoss => {
                    self.journal.keep_after_loss(now);
                    self.happenings.push(Happening::Lost(Reason::GapKept));
                }
            }
        }
        if self.continuity.counters().replays_foreign > self.foreign_replays {
            self.foreign_replays = self.continuity.counters().replays_foreign;
            self.happenings.push(Happening::ForeignReplay);
        }
        self.happenings.extend(self.journal.take_passed_over().into_iter().map(Happening::PassedOver));
        let standing = self.continuity.standing();
        if standing == Standing::Live {
            self.journal.history_unknown(now);
        }
        if standing != self.last_standing {
            self.last_standing = standing;
            self.journal.note_standing(standing);
            self.happenings.push(Happening::Standing(standing));
        }
        let trust = trust_of(&self.journal);
        if trust != self.last_trust {
            self.last_trust = trust;
            self.happenings.push(Happening::Trust(trust.0, trust.1));
        }
    }
}

fn trust_of(journal: &Journal) -> (Trust, Option<Reason>) {
    (journal.trust().level(), journal.trust().worst().map(|degradation| degradation.reason))
}
