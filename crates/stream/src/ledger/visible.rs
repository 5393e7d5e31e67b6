//! What consumers see that know no groups and count no copies.

use kvplane_core::Tier;

use super::{Draft, Ledger};
use crate::change::{Transition, VisibleBlock};
use crate::state::{Attached, Parent, Place, SlotId, VisibleSize};
use crate::tokens::Tokens;
use crate::transitions::{push_removed, push_stored};

impl Ledger {
    /// Whether such a consumer knows that the block is in the tier.
    pub(super) fn is_visible(&self, slot: SlotId, tier: Tier) -> bool {
        self.state.visible_chain(slot, self.visible_size()).is_some() && self.is_in_main(slot, tier)
    }

    fn is_in_main(&self, slot: SlotId, tier: Tier) -> bool {
        self.state.held_where(slot, |place| place.tier == tier && place.is_main())
    }

    pub(super) fn became_visible(&self, slot: SlotId, tier: Tier, log: &mut Vec<Transition>) {
        let Some(chain) = self.state.visible_chain(slot, self.visible_size()) else { return };
        if !self.is_in_main(slot, tier) {
            return;
        }
        let parent = match chain.parent() {
            Parent::Root => None,
            Parent::Block(parent) => Some(parent),
        };
        let mut block = VisibleBlock::new(self.state.hash_of(slot), chain);
        if self.options.transitions_only {
            block.tokens = Tokens::default();
        }
        push_stored(log, tier, parent, block);
    }

    /// A block that waited is attached now, and can be sent where the blocks that waited are sent.
    pub(super) fn attached_visibly(&self, (slot, size): Attached, log: &mut Vec<Transition>) {
        let visible = self.state.visible_chain(slot, self.visible_size());
        if visible.is_some_and(|chain| chain.block_size == size) {
            for tier in Tier::ALL {
                self.became_visible(slot, tier, log);
            }
        }
    }

    /// Makes another group the main one, or another size that of its blocks: sends what that puts out of
    /// sight, and what into it. The order depends on the hashes alone.
    pub(super) fn retell(&mut self, draft: &mut Draft, change: impl FnOnce(&mut Self)) {
        let old_size = self.visible_size();
        change(self);
        let (size, main) = (self.visible_size(), self.sides.main_group());
        if (size, main) == (old_size, self.state.places.main()) {
            return;
        }
        let slots = self.state.slots_parents_first();
        let visible_sizes = |ledger: &Self, size: VisibleSize| -> Vec<[Option<u32>; Tier::ALL.len()]> {
            let visible = |slot: SlotId, tier| {
                let chain = ledger.state.visible_chain(slot, size)?;
                ledger.is_in_main(slot, tier).then_some(chain.block_size)
            };
            slots.iter().map(|&slot| Tier::ALL.map(|tier| visible(slot, tier))).collect()
        };
        let before = visible_sizes(self, old_size);
        self.state.places.set_main(main);
        let after = visible_sizes(self, size);
        let changed = |at: usize, tier: Tier| before[at][tier.index()] != after[at][tier.index()];
        for tier in Tier::ALL {
            for (at, &slot) in slots.iter().enumerate() {
                if changed(at, tier) && before[at][tier.index()].is_some() {
                    push_removed(&mut draft.transitions, tier, self.state.hash_of(slot));
                }
            }
        }
        for (at, &slot) in slots.iter().enumerate() {
            for tier in Tier::ALL.into_iter().filter(|&tier| changed(at, tier)) {
                self.became_visible(slot, tier, &mut draft.transitions);
            }
        }
        self.sides.mark_all_anew();
    }

    /// Drops what some places hold, and sends what that takes out of sight.
    pub(super) fn drop_visibly(&mut self, gone: impl Fn(&Place) -> bool + Copy, draft: &mut Draft) {
        for (tier, hash) in self.state.visible_only_in(self.visible_size(), gone) {
            push_removed(&mut draft.transitions, tier, hash);
        }
        self.state.drop_places(gone);
    }
}
