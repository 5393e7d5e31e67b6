//! What the sequencer says of the history that is known.

use kvplane_core::Reason;

use super::{EpochMemory, Interpreter};
use crate::change::Transition;
use crate::clock::Now;
use crate::ledger::{Draft, Ledger};
use crate::sequencer::EpochCause;

impl Interpreter {
    /// Another epoch of the publisher, or one that may be another.
    pub fn begin_epoch(&mut self, ledger: &mut Ledger, cause: EpochCause, now: Now) {
        self.begin_epoch_of_flushes(ledger, cause);
        self.lose_removals();
        ledger.begin_epoch(now);
        self.forget_state();
        self.restore_trust(ledger);
        ledger.degrade(if cause.proven() { Reason::Unheard } else { Reason::Unproven }, now);
        // What the engine says of itself, it has yet to say again.
        self.epoch = EpochMemory::new(&self.options);
        // Subscribers learn of the new epoch by an entry of its own.
        ledger.tell_trust();
        let transitions = vec![Transition::Cleared];
        self.commit(ledger, Draft { transitions, ..Draft::default() });
    }

    /// The epoch is known from its first batch on.
    pub fn heard_from_start(&mut self, ledger: &mut Ledger) {
        ledger.set_known_from(0);
        self.epoch.tiers.heard_from_start = true;
        self.restore_trust(ledger);
        ledger.commit_trust();
    }

    /// Batches are lost: what is known may hold phantoms.
    pub fn drop_residency(&mut self, ledger: &mut Ledger, reason: Reason, now: Now) {
        self.fence.note_loss();
        self.forget_residency(ledger, reason, now);
    }

    pub(super) fn forget_residency(&mut self, ledger: &mut Ledger, reason: Reason, now: Now) {
        self.doubt_capacity(ledger);
        self.lose_removals();
        ledger.resolve(Reason::PeerDump);
        self.epoch.reports.forget_all();
        self.evidence.forget();
        let draft = ledger.drop_residency(reason, now);
        self.commit(ledger, draft);
    }

    /// Batches are lost and the operator wants to keep what is known.
    pub fn keep_after_loss(&mut self, ledger: &mut Ledger, now: Now) {
        self.fence.note_loss();
        self.lose_removals();
        ledger.degrade(Reason::GapKept, now);
        ledger.commit_trust();
    }

    /// Writes an entry that no batch brought.
    pub(super) fn commit(&mut self, ledger: &mut Ledger, draft: Draft) {
        self.note_units(ledger);
        ledger.commit(draft);
    }
}
