//! Copies: what a second store means, and what their sum proves.

use kvplane_core::{Reason, Tier, Trust};

use super::Interpreter;
use crate::clock::Now;
use crate::ledger::Ledger;
use crate::options::Duplicates;
use crate::persist::persist;

/// What is known of the number of copies on the device.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The engine's usable device blocks, where it says so.
    pub(super) capacity: Option<u64>,
    /// More copies were announced in this epoch than the device has blocks.
    pub(super) over_counted: bool,
    /// Blocks have copies that were not counted, and which is not remembered.
    pub(super) uncounted: bool,
}

persist!(Copies { capacity, over_counted, uncounted });

impl Interpreter {
    /// How many blocks the engine can hold on its device; knowing that many copies is knowing all.
    pub fn set_capacity(&mut self, blocks: Option<u64>) {
        self.epoch.copies.capacity = blocks;
    }

    /// The engine's device blocks, where it says so.
    pub fn capacity(&self) -> Option<u64> {
        self.epoch.copies.capacity
    }

    /// Where a block is held once, a second store is another block, and a removal may mean either: neither
    /// counts after it. Where copies were counted too often, they are not counted any more.
    pub(super) fn duplicates(&self) -> Duplicates {
        if self.options.semantics.held_once || self.epoch.copies.over_counted {
            Duplicates::Presence
        } else {
            self.options.duplicates
        }
    }

    /// Knowing as many copies as the device has blocks is knowing everything. All groups of a cache share its
    /// blocks.
    pub(super) fn check_capacity(&mut self, ledger: &mut Ledger, now: Now) {
        let Some(capacity) = self.epoch.copies.capacity else { return };
        if ledger.trust().level() == Trust::Lower
            && ledger.trust().level_besides(Reason::TierHistory) == Trust::Lower
            && !self.epoch.copies.over_counted
            && self.epoch.reports.are_out_of_question()
            && !ledger.state().has_other_tiers()
            && ledger.state().copies_in(Tier::Device).saturating_sub(self.evidence.len()) == capacity
        {
            self.epoch.reports.rule_out_possible();
            self.restore_trust(ledger);
            ledger.tell_trust();
            // Of the device, that is.
            self.epoch.tiers.unknown = true;
            if self.may_have_other_tiers() {
                ledger.degrade(Reason::TierHistory, now);
            }
        }
    }

    /// More copies than the device has blocks, or more that may be none than are remembered: some stores
    /// announced nothing new, and which ones is no longer known. What a copy too many stands for may be
    /// gone.
    pub(super) fn check_over_count(&mut self, ledger: &mut Ledger, is_certain: bool, now: Now) {
        let copies = ledger.state().copies_in(Tier::Device).saturating_sub(self.evidence.len());
        if !is_certain && self.epoch.copies.capacity.is_none_or(|capacity| copies <= capacity) {
            return;
        }
        self.epoch.copies.over_counted = true;
        ledger.counters.over_counts += 1;
        self.pass_over("store", "over_count", ledger.counters.over_counts);
        self.forget_residency(ledger, Reason::OverCount, now);
    }
}
