//! Copies: what a second store means, and what their sum proves.

use kvplane_core::{Reason, Tier, Trust};

use super::{Duplicates, Journal};
use crate::clock::Now;

impl Journal {
    /// Where a block is held once, a second store is another block, and a removal may mean either: neither counts after it. Where copies
    /// were counted too often, they are not counted any more.
    pub(super) fn duplicates(&self) -> Duplicates {
        if self.options.semantics.held_once || self.over_counted {
            Duplicates::Presence
        } else {
            self.options.duplicates
        }
    }

    /// Knowing as many copies as the device has blocks is knowing everything. All groups of a cache share its blocks.
    pub(super) fn check_capacity(&mut self, now: Now) {
        let Some(capacity) = self.capacity else { return };
        if self.trust.level() == Trust::Lower
            && self.trust.level_besides(Reason::TierHistory) == Trust::Lower
            && !self.over_counted
            && self.reports.are_out_of_question()
            && !self.state.has_other_tiers()
            && self.state.copies_in(Tier::Device).saturating_sub(self.evidence.len()) == capacity
        {
            self.restore_trust();
            self.trust_changed = true;
            // Of the device, that is.
            self.other_tiers_unknown = true;
            if self.may_have_other_tiers() {
                self.degrade(Reason::TierHistory, now);
            }
        }
    }

    /// More copies than the device has blocks, or more that may be none than are remembered: some stores announced nothing new, and which
    /// ones cannot be told any more. What a copy too many stands for may be gone.
    pub(super) fn check_over_count(&mut self, is_certain: bool, now: Now) {
        let copies = self.state.copies_in(Tier::Device).saturating_sub(self.evidence.len());
        if !is_certain && self.capacity.is_none_or(|capacity| copies <= capacity) {
            return;
        }
        self.over_counted = true;
        self.counters.over_counts += 1;
        self.pass_over("store", "over_count", self.counters.over_counts);
        self.forget_residency(Reason::OverCount, now);
    }
}
