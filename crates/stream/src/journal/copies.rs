//! Copies: what a second store means, and what their sum proves.

use kvplane_core::Tier;

use super::{Duplicates, Journal};

impl Journal {
    /// Where a block is held once, a second store is another block, and a removal may mean either: neither counts after it.
    pub(super) fn duplicates(&self) -> Duplicates {
        if self.options.semantics.held_once { Duplicates::Presence } else { self.options.duplicates }
    }

    /// Knowing as many copies as the device has blocks is knowing everything.
    pub(super) fn check_capacity(&mut self) {
        let Some(capacity) = self.capacity else { return };
        if self.trust.level() == kvplane_core::Trust::Lower
            && !self.state.has_other_tiers()
            && self.state.copies_in(Tier::Device) == capacity
        {
            self.restore_trust();
            self.trust_changed = true;
            // Of the device, that is.
            self.other_tiers_unknown = true;
        }
    }
}
