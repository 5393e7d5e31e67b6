//! Several ranks seen as one cache, for consumers that route to an engine and not to a rank.
//!
//! A block is there when the first rank gets it and gone when the last loses it. A rank that is cleared,
//! restarts or is lost takes with it only what nobody else holds.

use kvplane_core::Tier;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::change::{Transition, VisibleBlock};
use crate::transitions::{push_removed, push_stored};

/// Who holds a block in one tier.
type Holders = SmallVec<[u32; 4]>;

#[derive(Debug)]
struct Merged {
    block: VisibleBlock,
    parent: Option<u64>,
    /// Blocks here that name this one as their parent: as long as there are any it is remembered, held or
    /// not.
    children: u32,
    /// Empty for a hole.
    tiers: SmallVec<[(Tier, Holders); 1]>,
}

/// The union of several ranks' visible blocks.
#[derive(Debug, Default)]
pub struct RankMerge {
    blocks: FxHashMap<u64, Merged>,
}

impl RankMerge {
    /// Blocks that at least one rank holds.
    pub fn blocks(&self) -> usize {
        self.blocks.values().filter(|merged| !merged.tiers.is_empty()).count()
    }

    /// Applies what happened on a rank; what that means for the whole is appended to `out`.
    pub fn apply(&mut self, rank: u32, transition: &Transition, out: &mut Vec<Transition>) {
        match transition {
            Transition::Stored { tier, parent, blocks } => {
                let mut previous = *parent;
                for block in blocks {
                    if self.add(rank, *tier, previous, block) {
                        push_stored(out, *tier, previous, block.clone());
                    }
                    previous = Some(block.hash);
                }
            }
            Transition::Removed { tier, hashes } => {
                for &hash in hashes {
                    if self.remove(rank, *tier, hash) {
                        push_removed(out, *tier, hash);
                    }
                }
            }
            Transition::Cleared => self.forget(rank, out),
        }
    }

    /// A rank holds nothing any more.
    pub fn forget(&mut self, rank: u32, out: &mut Vec<Transition>) {
        let held: Vec<(Tier, u64)> = self
            .blocks
            .iter()
            .flat_map(|(&hash, merged)| merged.tiers.iter().map(move |(tier, ranks)| (*tier, hash, ranks)))
            .filter(|(_, _, ranks)| ranks.contains(&rank))
            .map(|(tier, hash, _)| (tier, hash))
            .collect();
        for (tier, hash) in held {
            if self.remove(rank, tier, hash) {
                push_removed(out, tier, hash);
            }
        }
    }

    /// Everything, as transitions from nothing, parents first. A hole is stored and then removed, so that
    /// what builds on it can be placed. A block whose ancestors were never announced is left out.
    pub fn as_transitions(&self) -> Vec<Transition> {
        let mut out = Vec::new();
        let mut holes = Vec::new();
        let mut placed: FxHashMap<u64, bool> = FxHashMap::default();
        let mut line = Vec::new();
        for &start in self.blocks.keys() {
            let mut next = Some(start);
            let mut rooted = true;
            while let Some(hash) = next.take() {
                match (placed.get(&hash), self.blocks.get(&hash)) {
                    (Some(&known), _) => rooted = known,
                    (None, None) => rooted = false,
                    (None, Some(merged)) => {
                        line.push(hash);
                        next = merged.parent;
                    }
                }
            }
            for hash in line.drain(..).rev() {
                placed.insert(hash, rooted);
                let Some(merged) = self.blocks.get(&hash).filter(|_| rooted) else { continue };
                for (tier, _) in &merged.tiers {
                    push_stored(&mut out, *tier, merged.parent, merged.block.clone());
                }
                if merged.tiers.is_empty() {
                    push_stored(&mut out, Tier::Device, merged.parent, merged.block.clone());
                    holes.push(hash);
                }
            }
        }
        for hole in holes {
            push_removed(&mut out, Tier::Device, hole);
        }
        out
    }

    /// True if nobody held it in that tier before.
    fn add(&mut self, rank: u32, tier: Tier, parent: Option<u64>, block: &VisibleBlock) -> bool {
        if !self.blocks.contains_key(&block.hash) {
            if let Some(parent) = parent.and_then(|parent| self.blocks.get_mut(&parent)) {
                parent.children += 1;
            }
            let new = Merged { block: block.clone(), parent, children: 0, tiers: SmallVec::new() };
            self.blocks.insert(block.hash, new);
        }
        let Some(merged) = self.blocks.get_mut(&block.hash) else { return false };
        if let Some((_, ranks)) = merged.tiers.iter_mut().find(|(held, _)| *held == tier) {
            if !ranks.contains(&rank) {
                ranks.push(rank);
            }
            return false;
        }
        merged.tiers.push((tier, SmallVec::from_elem(rank, 1)));
        true
    }

    /// True if nobody holds it in that tier any more.
    fn remove(&mut self, rank: u32, tier: Tier, hash: u64) -> bool {
        let Some(merged) = self.blocks.get_mut(&hash) else { return false };
        let Some(at) = merged.tiers.iter().position(|(held, _)| *held == tier) else { return false };
        let ranks = &mut merged.tiers[at].1;
        let before = ranks.len();
        ranks.retain(|held| *held != rank);
        if !ranks.is_empty() || before == 0 {
            return false;
        }
        merged.tiers.remove(at);
        self.release(hash);
        true
    }

    /// Forgets a block that nobody holds and nothing builds on, and ancestors that were remembered only for
    /// it.
    fn release(&mut self, hash: u64) {
        let mut next = Some(hash);
        while let Some(hash) = next.take() {
            let unneeded = |merged: &Merged| merged.tiers.is_empty() && merged.children == 0;
            if !self.blocks.get(&hash).is_some_and(unneeded) {
                return;
            }
            let Some(gone) = self.blocks.remove(&hash) else { return };
            if let Some(parent) = gone.parent
                && let Some(merged) = self.blocks.get_mut(&parent)
            {
                merged.children = merged.children.saturating_sub(1);
                next = Some(parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Attributes;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use proptest::prelude::*;

    fn block(hash: u64) -> VisibleBlock {
        VisibleBlock {
            hash,
            content: hash,
            tokens: crate::Tokens::from([hash as u32]),
            block_size: 1,
            attributes: Arc::new(Attributes::default()),
            extra_keys: None,
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Store(u32, u64, u64),
        Remove(u32, u64),
        Clear(u32),
    }

    proptest! {
        #[test]
        fn the_union_of_the_ranks_is_what_a_consumer_ends_with(ops in prop::collection::vec(prop_oneof![
            4 => (0..3u32, 0..4u64, 1..5u64).prop_map(|(rank, chain, depth)| Op::Store(rank, chain, depth)),
            4 => (0..3u32, 0..24u64).prop_map(|(rank, hash)| Op::Remove(rank, hash)),
            1 => (0..3u32).prop_map(Op::Clear),
        ], 0..60)) {
            let mut ranks: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
            let mut merge = RankMerge::default();
            let mut consumer: BTreeSet<u64> = BTreeSet::new();
            for op in ops {
                let (rank, transition) = match op {
                    Op::Store(rank, chain, depth) => {
                        // What a rank already has is not stored again: transitions are changes of presence.
                        let held = ranks.entry(rank).or_default();
                        let first = (0..depth).find(|d| !held.contains(&(chain * 6 + d)));
                        let Some(first) = first else { continue };
                        let new: Vec<u64> =
                            (first..depth).map(|d| chain * 6 + d).take_while(|hash| !held.contains(hash)).collect();
                        held.extend(&new);
                        let parent = first.checked_sub(1).map(|d| chain * 6 + d);
                        let blocks = new.into_iter().map(block).collect();
                        (rank, Transition::Stored { tier: Tier::Device, parent, blocks })
                    }
                    Op::Remove(rank, hash) => {
                        if !ranks.entry(rank).or_default().remove(&hash) {
                            continue;
                        }
                        (rank, Transition::Removed { tier: Tier::Device, hashes: vec![hash] })
                    }
                    Op::Clear(rank) => {
                        ranks.entry(rank).or_default().clear();
                        (rank, Transition::Cleared)
                    }
                };
                let mut out = Vec::new();
                merge.apply(rank, &transition, &mut out);
                for change in out {
                    match change {
                        Transition::Stored { blocks, .. } => {
                            for block in &blocks {
                                assert!(consumer.insert(block.hash));
                            }
                        }
                        Transition::Removed { hashes, .. } => {
                            for hash in &hashes {
                                assert!(consumer.remove(hash));
                            }
                        }
                        Transition::Cleared => unreachable!("a rank's clear is removals"),
                    }
                }
                let union: BTreeSet<u64> = ranks.values().flatten().copied().collect();
                prop_assert_eq!(&consumer, &union);
                prop_assert_eq!(merge.blocks(), union.len());
            }
            // A snapshot never names a parent that it has not sent, invents nothing, and has all that hangs
            // together.
            let mut placed = BTreeSet::new();
            for change in merge.as_transitions() {
                match change {
                    Transition::Stored { parent, blocks, .. } => {
                        prop_assert!(parent.is_none_or(|parent| placed.contains(&parent)));
                        placed.extend(blocks.iter().map(|block| block.hash));
                    }
                    Transition::Removed { hashes, .. } => placed.retain(|hash| !hashes.contains(hash)),
                    Transition::Cleared => unreachable!(),
                }
            }
            prop_assert!(placed.is_subset(&consumer));
            let mut rooted = consumer.iter().filter(|&&hash| (hash / 6 * 6..hash).all(|h| consumer.contains(&h)));
            prop_assert!(rooted.all(|hash| placed.contains(hash)));
        }
    }
}
