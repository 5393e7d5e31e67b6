//! Collecting transitions, joining neighbours into one.

use kvplane_core::Tier;

use crate::change::{Transition, VisibleBlock};

#[derive(Debug, Default)]
pub(super) struct TransitionLog {
    done: Vec<Transition>,
}

impl TransitionLog {
    /// A block is in a tier that was not. Continues the last transition where it builds on its last block.
    pub(super) fn stored(&mut self, tier: Tier, parent: Option<u64>, block: VisibleBlock) {
        if let Some(Transition::Stored { tier: last_tier, blocks, .. }) = self.done.last_mut()
            && *last_tier == tier
            && parent.is_some()
            && blocks.last().map(|last| last.hash) == parent
        {
            blocks.push(block);
            return;
        }
        let mut blocks = Vec::with_capacity(8);
        blocks.push(block);
        self.done.push(Transition::Stored { tier, parent, blocks });
    }

    /// A block is no longer in a tier.
    pub(super) fn removed(&mut self, tier: Tier, hash: u64) {
        if let Some(Transition::Removed { tier: last_tier, hashes }) = self.done.last_mut()
            && *last_tier == tier
        {
            hashes.push(hash);
            return;
        }
        self.done.push(Transition::Removed { tier, hashes: vec![hash] });
    }

    /// Nothing is resident any more.
    pub(super) fn cleared(&mut self) {
        self.done.push(Transition::Cleared);
    }

    pub(super) fn finish(self) -> Vec<Transition> {
        self.done
    }
}
