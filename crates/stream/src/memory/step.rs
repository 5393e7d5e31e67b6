//! Steps: everything that changes what a recorder remembers, with the moment and what it led to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Cursor, Reason, StateDigest};
use kvplane_wire::{Decoder, Dialect};

use crate::clock::Now;
use crate::flush::FlushId;
use crate::interpreter::{Interpreter, RequestMark};
use crate::ledger::Ledger;
use crate::options::JournalOptions;
use crate::peer_dump::{PeerDump, Position};
use crate::persist::{Damaged, Persist, Source, persist, persist_enum};
use crate::sequencer::{Action, EpochCause, Order};

/// One change of what is remembered. A batch is remembered as the engine sent it: its bytes are there already, and what
/// they mean is worked out again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The recorder has heard nothing. Its rules, and its rank.
    Begin {
        keep: Arc<JournalOptions>,
        rank: u32,
    },
    /// The batch that was next in line.
    Batch {
        sequence: u64,
        digest: u128,
        payload: Bytes,
    },
    /// A batch that nobody can read has taken its place in line.
    GivenUp {
        sequence: u64,
        digest: u128,
    },
    /// The order is another than the steps so far say.
    Order(Order),
    NewEpoch(EpochCause),
    HeardFromStart,
    KnownFrom(u64),
    DropResidency(Reason),
    KeepAfterLoss,
    Degrade(Reason),
    Resolve(Reason),
    LackHistory,
    Continuity(Continuity),
    Nothing,
    BlockSize(u32),
    Adapters(bool),
    Capacity(Option<u64>),
    BeginFlush,
    FlushAccepted(FlushId),
    FlushExpired(FlushId),
    FlushRefused(FlushId),
    EndFlush(FlushId),
    ExpectDump,
    ForgetDump,
    FinishDump,
    TakeDump(PeerDump),
    AcceptEvidence,
    ProvePrefix {
        mark: RequestMark,
        tokens: Arc<[u32]>,
        cached: u64,
    },
    /// Numbers begin anew, and nothing else.
    Renumber,
}

impl Step {
    /// What an action says of the history that is known.
    pub(crate) fn of(action: &Action) -> Option<Self> {
        Some(match *action {
            Action::HeardFromStart => Self::HeardFromStart,
            Action::KnownFrom(sequence) => Self::KnownFrom(sequence),
            Action::DropResidency(reason) => Self::DropResidency(reason),
            Action::KeepAfterLoss => Self::KeepAfterLoss,
            Action::Degrade(reason) => Self::Degrade(reason),
            Action::Resolve(reason) => Self::Resolve(reason),
            Action::NewEpoch(cause) => Self::NewEpoch(cause),
            Action::Replay { .. } | Action::Hint { .. } | Action::Resubscribe | Action::Apply(_) => {
                return None;
            }
        })
    }
}

persist_enum!(Step {
    Begin { keep, rank } = 0,
    Batch { sequence, digest, payload } = 1,
    GivenUp { sequence, digest } = 2,
    Order(order) = 3,
    NewEpoch(cause) = 4,
    HeardFromStart = 5,
    KnownFrom(sequence) = 6,
    DropResidency(reason) = 7,
    KeepAfterLoss = 8,
    Degrade(reason) = 9,
    Resolve(reason) = 10,
    LackHistory = 11,
    Continuity(continuity) = 12,
    Nothing = 13,
    BlockSize(size) = 14,
    Adapters(untold) = 15,
    Capacity(blocks) = 16,
    BeginFlush = 17,
    FlushAccepted(id) = 18,
    FlushExpired(id) = 19,
    FlushRefused(id) = 20,
    EndFlush(id) = 21,
    ExpectDump = 22,
    ForgetDump = 23,
    FinishDump = 24,
    TakeDump(dump) = 25,
    AcceptEvidence = 26,
    ProvePrefix { mark, tokens, cached } = 27,
    Renumber = 28,
});

/// Where a step led: a replay of it must arrive at the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The last entry.
    pub cursor: Cursor,
    /// The last transition.
    pub last_event_id: u64,
    /// What is held.
    pub digest: StateDigest,
}

impl Mark {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        Self {
            cursor: ledger.cursor(),
            last_event_id: ledger.last_event_id(),
            digest: ledger.state().digest(),
        }
    }
}

impl Persist for Mark {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { cursor, last_event_id, digest } = self;
        cursor.epoch.save(out);
        cursor.sequence.save(out);
        last_event_id.save(out);
        digest.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let cursor = Cursor { epoch: Persist::load(from)?, sequence: Persist::load(from)? };
        Ok(Self { cursor, last_event_id: Persist::load(from)?, digest: Persist::load(from)? })
    }
}

/// A step, when it was taken, and where it led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub(crate) step: Step,
    pub(crate) unix_ms: u64,
    /// How old the proof was that the engine is there: entries say it.
    pub(crate) age: Option<Duration>,
    pub(crate) mark: Mark,
}

persist!(Record { unix_ms, age, mark, step });

impl Record {
    /// Where it led.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// The engine's number and payload of the batch that it is of, if it is of one.
    pub fn batch(&self) -> Option<(u64, &Bytes)> {
        match &self.step {
            Step::Batch { sequence, payload, .. } => Some((*sequence, payload)),
            _ => None,
        }
    }

    /// What kind of step it is, in one word.
    pub fn kind(&self) -> &'static str {
        match self.step {
            Step::Begin { .. } => "begin",
            Step::Batch { .. } => "batch",
            Step::GivenUp { .. } => "given_up",
            Step::Order(_) => "order",
            Step::NewEpoch(_) => "new_epoch",
            Step::HeardFromStart => "heard_from_start",
            Step::KnownFrom(_) => "known_from",
            Step::DropResidency(_) => "drop_residency",
            Step::KeepAfterLoss => "keep_after_loss",
            Step::Degrade(_) => "degrade",
            Step::Resolve(_) => "resolve",
            Step::LackHistory => "lack_history",
            Step::Continuity(_) => "continuity",
            Step::Nothing => "nothing",
            Step::BlockSize(_) => "block_size",
            Step::Adapters(_) => "adapters",
            Step::Capacity(_) => "capacity",
            Step::BeginFlush => "begin_flush",
            Step::FlushAccepted(_) => "flush_accepted",
            Step::FlushExpired(_) => "flush_expired",
            Step::FlushRefused(_) => "flush_refused",
            Step::EndFlush(_) => "end_flush",
            Step::ExpectDump => "expect_dump",
            Step::ForgetDump => "forget_dump",
            Step::FinishDump => "finish_dump",
            Step::TakeDump(_) => "take_dump",
            Step::AcceptEvidence => "accept_evidence",
            Step::ProvePrefix { .. } => "prove_prefix",
            Step::Renumber => "renumber",
        }
    }

    /// Estimated bytes in memory.
    pub fn size(&self) -> usize {
        let payload = match &self.step {
            Step::Batch { payload, .. } => payload.len(),
            Step::TakeDump(dump) => dump.runs.iter().map(|run| 32 + run.blocks.len() * 16).sum(),
            Step::ProvePrefix { tokens, .. } => std::mem::size_of_val(&tokens[..]),
            _ => 0,
        };
        std::mem::size_of::<Self>() + payload
    }

    /// As it is kept.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.save(out);
    }

    /// What [`Self::write`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut from = Source::new(bytes);
        let record = Self::load(&mut from)?;
        if from.is_empty() { Ok(record) } else { Err(Damaged("a record is longer than its step")) }
    }
}

/// Takes a step as the recorder took it.
pub(crate) fn perform(
    (interpreter, ledger): (&mut Interpreter, &mut Ledger),
    (decoder, dialect): (&mut Decoder, Dialect),
    step: &Step,
    now: Now,
) -> Result<(), Damaged> {
    match step {
        Step::Begin { .. } | Step::GivenUp { .. } | Step::Order(_) => {}
        Step::Batch { sequence, digest, payload } => {
            let (sequence, digest) = (*sequence, *digest);
            match decoder.decode_as(dialect, payload) {
                Ok(batch) if batch.broken.is_none() => {
                    ledger.expect_digest(digest);
                    interpreter.apply(ledger, sequence, &batch, now);
                }
                _ => return Err(Damaged("a batch cannot be decoded")),
            }
            ledger.set_position(Position { sequence, digest });
        }
        Step::NewEpoch(cause) => interpreter.begin_epoch(ledger, *cause, now),
        Step::HeardFromStart => interpreter.heard_from_start(ledger),
        Step::KnownFrom(sequence) => ledger.lack_history_before(*sequence, now),
        Step::DropResidency(reason) => interpreter.drop_residency(ledger, *reason, now),
        Step::KeepAfterLoss => interpreter.keep_after_loss(ledger, now),
        Step::Degrade(reason) => ledger.degrade_source(*reason, now),
        Step::Resolve(reason) => ledger.resolve_source(*reason),
        Step::LackHistory => ledger.lack_history(now),
        Step::Continuity(continuity) => ledger.note_continuity(*continuity),
        Step::Nothing => ledger.note_nothing(),
        Step::BlockSize(size) => {
            interpreter.describe_block_size(ledger, *size, now);
        }
        Step::Adapters(untold) => {
            interpreter.describe_adapters(ledger, *untold, now);
        }
        Step::Capacity(blocks) => interpreter.set_capacity(*blocks),
        Step::BeginFlush => {
            interpreter.begin_flush();
        }
        Step::FlushAccepted(id) => interpreter.flush_accepted(ledger, *id, now),
        Step::FlushExpired(id) => interpreter.flush_expired(ledger, *id, now),
        Step::FlushRefused(id) => interpreter.flush_refused(ledger, *id),
        Step::EndFlush(id) => interpreter.end_flush(ledger, *id, now),
        Step::ExpectDump => {
            interpreter.expect_dump(ledger);
        }
        Step::ForgetDump => interpreter.forget_dump(),
        Step::FinishDump => interpreter.finish_dump(),
        Step::TakeDump(dump) => {
            interpreter.take_dump(ledger, dump, now);
        }
        Step::Renumber => ledger.renumber(now.unix_ms),
        Step::AcceptEvidence => interpreter.accept_evidence(ledger),
        Step::ProvePrefix { mark, tokens, cached } => {
            interpreter.prove_prefix(ledger, *mark, tokens, *cached);
        }
    }
    // A replay logs nothing, and notifies nobody of past states.
    interpreter.take_passed_over();
    ledger.take_retired();
    Ok(())
}
