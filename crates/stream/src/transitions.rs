//! Collecting transitions, joining neighbours into one.

use kvplane_core::Tier;

use crate::change::{Transition, VisibleBlock};

/// A block is in a tier that was not. Continues the last transition where it builds on its last block.
pub(crate) fn push_stored(out: &mut Vec<Transition>, tier: Tier, parent: Option<u64>, block: VisibleBlock) {
    if let Some(Transition::Stored { tier: last_tier, blocks, .. }) = out.last_mut()
        && *last_tier == tier
        && parent.is_some()
        && blocks.last().map(|last| last.hash) == parent
    {
        blocks.push(block);
        return;
    }
    let mut blocks = Vec::with_capacity(8);
    blocks.push(block);
    out.push(Transition::Stored { tier, parent, blocks });
}

/// A block is no longer in a tier.
pub(crate) fn push_removed(out: &mut Vec<Transition>, tier: Tier, hash: u64) {
    match out.last_mut() {
        Some(Transition::Removed { tier: last_tier, hashes }) if *last_tier == tier => hashes.push(hash),
        _ => out.push(Transition::Removed { tier, hashes: vec![hash] }),
    }
}
