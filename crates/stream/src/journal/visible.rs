//! What consumers see that know no groups and count no copies.

use kvplane_core::Tier;

use super::Journal;
use super::apply::Effects;
use crate::change::{Transition, VisibleBlock};
use crate::state::{Parent, Place, SlotId};
use crate::transitions::{push_removed, push_stored};

impl Journal {
    /// Whether such a consumer has been told that the block is in the tier.
    pub(super) fn is_visible(&self, slot: SlotId, tier: Tier) -> bool {
        self.state.attached_chain(slot).is_some_and(|chain| self.is_full(chain))
            && self.state.held_where(slot, |place| place.tier == tier && place.is_main())
    }

    pub(super) fn became_visible(&self, slot: SlotId, tier: Tier, log: &mut Vec<Transition>) {
        if !self.is_visible(slot, tier) {
            return;
        }
        let Some(chain) = self.state.attached_chain(slot) else { return };
        let parent = match chain.parent {
            Parent::Root => None,
            Parent::Block(parent) => Some(parent),
        };
        push_stored(log, tier, parent, VisibleBlock::new(self.state.hash_of(slot), chain));
    }

    /// Drops what some places hold, and tells what that takes out of sight.
    pub(super) fn drop_visibly(&mut self, gone: impl Fn(&Place) -> bool + Copy, effects: &mut Effects) {
        for (tier, hash) in self.state.visible_only_in(gone) {
            push_removed(&mut effects.transitions, tier, hash);
        }
        self.state.drop_places(gone);
    }
}
