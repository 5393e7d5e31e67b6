//! What can be told from a snapshot, away from the journal's lock.

use crate::seeded::{SeededMap, SeededSet};
use kvplane_core::Tier;

use super::Snapshot;
use crate::change::{Transition, VisibleBlock};
use crate::state::{BlockImage, Chain, Parent};
use crate::transitions::{push_removed, push_stored};

impl Snapshot {
    /// Every block that is held, and every hole that one of them builds on; parents before children. The numbers are
    /// places in the image's blocks.
    pub fn parents_first(&self) -> Vec<u32> {
        let blocks = &self.image.blocks;
        let by_hash: SeededMap<u64, usize> = blocks.iter().enumerate().map(|(at, b)| (b.hash, at)).collect();
        let mut order = Vec::with_capacity(blocks.len());
        let mut placed = vec![false; blocks.len()];
        let mut line = Vec::new();
        for (start, block) in blocks.iter().enumerate() {
            if block.holdings.is_empty() {
                continue; // a hole comes along with the blocks that need it
            }
            let mut next = Some(start);
            while let Some(at) = next.take() {
                if placed[at] {
                    break;
                }
                placed[at] = true;
                line.push(at);
                next = blocks[at].parent().and_then(|parent| by_hash.get(&parent).copied());
            }
            order.extend(line.drain(..).rev().map(|at| at as u32));
        }
        order
    }

    /// The state as transitions from nothing, for consumers that count no copies and know no groups.
    ///
    /// A hole in a chain is stored and then removed, so that what builds on it is attached where it belongs and counts
    /// again once the hole is filled.
    pub fn as_transitions(&self) -> Vec<Transition> {
        let mut log = Vec::new();
        let order: Vec<&BlockImage> =
            self.parents_first().iter().map(|&at| &self.image.blocks[at as usize]).collect();
        let supports = self.supports_device(&order);
        for tier in Tier::ALL.into_iter().filter(|&tier| tier != Tier::Unknown) {
            let mut holes = Vec::new();
            for block in &order {
                let Some(chain) = self.told_chain(block) else { continue };
                let here = self.is_visible(block, tier);
                // Only the warmest tier's index walks from the root; the others continue from it.
                let needed = tier == Tier::Device && supports.contains(&block.hash);
                if !here && !needed {
                    continue;
                }
                push_stored(&mut log, tier, parent_of(chain), VisibleBlock::new(block.hash, chain));
                if !here {
                    holes.push(block.hash);
                }
            }
            for hole in holes {
                push_removed(&mut log, tier, hole);
            }
        }
        log
    }

    fn is_visible(&self, block: &BlockImage, tier: Tier) -> bool {
        self.told_chain(block).is_some()
            && block.holdings.iter().any(|holding| {
                let place = &self.image.places[usize::from(holding.place)];
                place.tier == tier && place.is_main()
            })
    }

    /// What a block is, and what else it is at other block sizes.
    pub fn chains_of<'s>(&self, block: &'s BlockImage) -> (Option<&'s Chain>, Vec<&'s Chain>) {
        let told = self.told_chain(block).or_else(|| block.attached_chain()).or_else(|| block.chains.first());
        let is_told = |chain: &&Chain| told.is_some_and(|told| std::ptr::eq(*chain, told));
        (told, block.chains.iter().filter(|chain| !is_told(chain)).collect())
    }

    /// What those who know one block size are told that a block is.
    fn told_chain<'s>(&self, block: &'s BlockImage) -> Option<&'s Chain> {
        if !self.partial_blocks {
            return block.attached_chain();
        }
        block.chains.iter().find(|chain| chain.attached && self.block_size == Some(chain.block_size))
    }

    /// The blocks that have device blocks building on them, however far up.
    fn supports_device(&self, parents_first: &[&BlockImage]) -> SeededSet<u64> {
        let mut supports = SeededSet::default();
        for block in parents_first.iter().rev() {
            if (supports.contains(&block.hash) || self.is_visible(block, Tier::Device))
                && let Some(parent) = self.told_chain(block).and_then(parent_of)
            {
                supports.insert(parent);
            }
        }
        supports
    }
}

impl BlockImage {
    /// The chain that reaches the start of its prompt, if there is one.
    pub fn attached_chain(&self) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.attached)
    }

    fn parent(&self) -> Option<u64> {
        self.attached_chain().or_else(|| self.chains.first()).and_then(parent_of)
    }
}

fn parent_of(chain: &Chain) -> Option<u64> {
    match chain.parent {
        Parent::Block(parent) => Some(parent),
        Parent::Root => None,
    }
}
