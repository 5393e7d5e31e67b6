//! Records of every step, for the store, and resuming from them.

use std::time::Duration;

use super::follower::Follower;
use super::{Recorder, trust_of};
use crate::clock::Now;
use crate::flush::FlushId;
use crate::memory::{Mark, Memory, Record, Step, note};
use crate::sequencer::{Options, Order, Sequencer};

/// What was recorded, and has not been taken yet.
#[derive(Debug)]
pub(super) struct Records {
    taken: Vec<Record>,
    /// The order, as the records say.
    order: Order,
    /// When the last step was taken.
    unix_ms: u64,
}

impl Records {
    /// Nobody keeps records of what cannot be adopted.
    pub(super) fn of(follower: &Follower, order: Order, now: Now) -> Option<Self> {
        matches!(follower, Follower::Published(_)).then(|| Self {
            taken: Vec::new(),
            order,
            unix_ms: now.unix_ms,
        })
    }
}

impl Recorder {
    /// From now on every step is recorded for [`Self::take_records`], which must be called after every input.
    /// To be called before the first input. False where the source is none that can be gone on from: only
    /// what an engine publishes is.
    pub fn keep_records(&mut self, now: Now) -> bool {
        self.records = Records::of(&self.follower, Order::NEW, now);
        let (keep, rank) = (self.interpreter.options().clone(), self.interpreter.rank());
        self.note(now, || Step::Begin { keep, rank });
        self.records.is_some()
    }

    /// Every step since the last call.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.records.as_mut().map(|records| std::mem::take(&mut records.taken)).unwrap_or_default()
    }

    /// Whether somebody keeps them.
    pub fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Nobody keeps records any more.
    pub fn stop_records(&mut self) {
        self.records = None;
    }

    /// A recorder that goes on from what another one remembered, in the same epoch: as after a disconnect,
    /// the engine has to prove that it is the same. Records are kept from the beginning.
    pub fn adopt(follow: Options, memory: Memory, now: Now) -> Self {
        let lacks_entries = memory.lacks_entries();
        let (interpreter, ledger, seen) = memory.into_parts();
        let (order, continuity) = (seen.order, ledger.continuity());
        let follower = Follower::Published(Box::new(Sequencer::after(follow, seen, now)));
        let mut recorder = Self::with(follower, kvplane_wire::Dialect::Msgpack, interpreter, ledger);
        recorder.records = Records::of(&recorder.follower, order, now);
        recorder.last_continuity = continuity;
        recorder.last_trust = trust_of(&recorder.ledger);
        recorder.foreign_replays = recorder.follower.counters().replays_foreign;
        if lacks_entries {
            recorder.ledger.renumber(now.unix_ms);
            recorder.note(now, || Step::Renumber);
        }
        recorder.settle(now);
        recorder
    }

    /// Flushes were watched by somebody who is gone: they end as soon as the stream is `live`, and what the
    /// engine published in between has been read. Unless it showed them, what they were to flush is dropped.
    pub fn end_lost_flushes(&mut self) {
        self.lost_flushes = self.interpreter.open_flushes();
    }

    pub(super) fn take_lost_flushes(&mut self) -> Vec<FlushId> {
        std::mem::take(&mut self.lost_flushes)
    }

    /// Records a step that has been taken, if somebody keeps records.
    pub(super) fn note(&mut self, now: Now, step: impl FnOnce() -> Step) {
        if let Some(records) = &mut self.records {
            let step = step();
            note(&mut records.order, &step);
            records.unix_ms = now.unix_ms;
            let (unix_ms, age, mark) = (now.unix_ms, self.ledger.age(), Mark::of(&self.ledger));
            records.taken.push(Record { step, unix_ms, age, mark });
        }
    }

    /// [`Self::note`] of a step that does not depend on the time: it has that of the step before.
    pub(super) fn note_alone(&mut self, step: impl FnOnce() -> Step) {
        if let Some(records) = &self.records {
            let now = Now { mono: Duration::ZERO, unix_ms: records.unix_ms };
            self.note(now, step);
        }
    }

    /// Records the order where it is not what the steps say.
    pub(super) fn note_order(&mut self, now: Now) {
        let (Some(records), Follower::Published(sequencer)) = (&self.records, &self.follower) else { return };
        let order = sequencer.order();
        if records.order != order {
            self.note(now, || Step::Order(order));
        }
    }
}
