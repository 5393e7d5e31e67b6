//! Flushes that somebody watches: signs of them in batches, and the fence until they come.

use kvplane_core::{Continuity, Reason, Tier};

use super::{Interpreter, Reading};
use crate::clock::Now;
use crate::flush::{FlushId, FlushOutcome, FlushReach, FlushSign};
use crate::ledger::Ledger;
use crate::options::ClearScope;
use crate::sequencer::EpochCause;
use crate::state::{Place, PlaceId};

impl Interpreter {
    /// The engine is about to be asked for a flush: signs of it count from now on.
    pub(crate) fn begin_flush(&mut self) -> FlushId {
        self.fence.begin()
    }

    /// The engine accepted it. Unless the stream has shown it already, what is known may be gone from now on.
    pub(crate) fn flush_accepted(&mut self, ledger: &mut Ledger, id: FlushId, now: Now) {
        let proven = self.fence.accept(id, ledger.continuity() == Continuity::Live);
        self.count_proven(ledger, proven);
        if self.fence.is_up() {
            ledger.degrade_source(Reason::Flushing, now);
        }
    }

    /// The stream has not shown it in time: whatever it is said to hold may be gone, and nothing says what
    /// is.
    pub(crate) fn flush_expired(&mut self, ledger: &mut Ledger, id: FlushId, now: Now) {
        self.flush_accepted(ledger, id, now);
        if !self.fence.is_waiting(id) {
            return;
        }
        if is_known_to_be_empty(ledger) {
            let reach = FlushReach { cleared: vec![Tier::Device], remaining: Vec::new() };
            self.fence.expire(id, |_| FlushOutcome::Proven { sign: FlushSign::NothingHeld, reach });
            self.count_proven(ledger, 1);
            return;
        }
        let lost = |lost| if lost { FlushOutcome::Lost } else { FlushOutcome::Unproven };
        self.fence.expire(id, lost);
        ledger.counters.flushes_unproven += 1;
        self.resolve_fence(ledger);
        self.forget_residency(ledger, Reason::UnprovenFlush, now);
    }

    /// How it ended, once it has.
    pub(crate) fn flush_outcome(&self, id: FlushId) -> Option<&FlushOutcome> {
        self.fence.outcome(id)
    }

    /// The engine did not do it.
    pub(crate) fn flush_refused(&mut self, ledger: &mut Ledger, id: FlushId) {
        let proven = self.fence.forget(id);
        self.count_proven(ledger, proven);
        self.lower_fence(ledger);
    }

    /// Nobody watches any more. What nothing has shown until now expires.
    pub(crate) fn end_flush(&mut self, ledger: &mut Ledger, id: FlushId, now: Now) {
        self.flush_expired(ledger, id, now);
        self.fence.forget(id);
    }

    /// Flushes that have not ended.
    pub(crate) fn open_flushes(&self) -> Vec<FlushId> {
        self.fence.open()
    }

    /// Whether the stream is fenced.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_up()
    }

    /// How many blocks the device holds, where their removal would be the sign of a flush.
    pub(super) fn watched_blocks(&self, ledger: &Ledger) -> Option<u64> {
        let watched = self.options.semantics.flushes_by_removals && self.fence.is_watched();
        watched.then(|| ledger.state().blocks_by_tier()[Tier::Device.index()])
    }

    /// The engine clears its cache, which is not applied yet. What is `in_doubt` it may have left as it was.
    pub(super) fn note_clear_sign(
        &self,
        ledger: &Ledger,
        in_doubt: impl Fn(PlaceId, &Place) -> bool,
        reading: &mut Reading,
    ) {
        reading.signs.clears += 1;
        let reach = &mut reading.signs.reach;
        reach.clear(Tier::Device);
        let everything = self.options.semantics.clears == ClearScope::Everything;
        for (id, place) in ledger.state().places.iter() {
            if in_doubt(id, place) {
                reach.remain(place.tier, None);
            } else if everything {
                reach.clear(place.tier);
            }
        }
    }

    /// The signs of a batch count once all of it is applied: behind a clear it may say what else is in doubt.
    pub(super) fn settle_signs(&mut self, ledger: &mut Ledger, reading: &mut Reading) {
        let signs = std::mem::take(&mut reading.signs);
        if signs.are_there() {
            let proven = self.fence.show(signs);
            ledger.counters.flushes_proven += proven as u64;
            self.resolve_fence(ledger);
        }
    }

    /// Another epoch begins: what memory held is gone with the old one, if that is proven to be over.
    pub(super) fn begin_epoch_of_flushes(&mut self, ledger: &Ledger, cause: EpochCause) {
        let mut reach = FlushReach { cleared: vec![Tier::Device, Tier::Host], remaining: Vec::new() };
        let blocks = ledger.state().blocks_by_tier();
        for tier in Tier::ALL.into_iter().filter(|tier| blocks[tier.index()] > 0) {
            if !matches!(tier, Tier::Device | Tier::Host) {
                reach.remain(tier, None);
            }
        }
        self.fence.begin_epoch(cause, &reach);
    }

    fn count_proven(&mut self, ledger: &mut Ledger, proven: usize) {
        ledger.counters.flushes_proven += proven as u64;
        if proven > 0 {
            self.lower_fence(ledger);
        }
    }

    /// Takes the fence away, if no flush needs it any more, and says so.
    fn lower_fence(&self, ledger: &mut Ledger) {
        if !self.fence.is_up() {
            ledger.resolve_source(Reason::Flushing);
        }
    }

    /// The same, as part of the entry that is being written.
    fn resolve_fence(&self, ledger: &mut Ledger) {
        if !self.fence.is_up() {
            ledger.resolve(Reason::Flushing);
        }
    }
}

/// Everything is known of the stream, and that is that it holds nothing.
fn is_known_to_be_empty(ledger: &Ledger) -> bool {
    let is_whole = |reason: Reason| reason == Reason::Flushing || reason.is_permanent();
    ledger.continuity() == Continuity::Live
        && ledger.trust().active().iter().all(|active| is_whole(active.reason))
        && ledger.state().nothing_but(|_| false)
}

/// Blocks were removed; `before` is how many the device held before that.
pub(super) fn note_removal_sign(ledger: &Ledger, before: Option<u64>, reading: &mut Reading) {
    if before.is_none_or(|before| before == 0) {
        return;
    }
    let blocks = ledger.state().blocks_by_tier();
    if blocks[Tier::Device.index()] > 0 {
        return;
    }
    reading.signs.removed_all = true;
    reading.signs.reach = FlushReach::default();
    for (_, place) in ledger.state().places.iter() {
        match blocks[place.tier.index()] {
            0 => reading.signs.reach.clear(place.tier),
            held => reading.signs.reach.remain(place.tier, Some(held)),
        }
    }
}
