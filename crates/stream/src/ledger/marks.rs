//! Marks: which sides hold a main block, and where.
//!
//! A block of a side has the hash of the main block that ends where it ends. So it marks that one, whichever
//! of the two is announced first, and however little a sparse store says. Blocks that are smaller than main
//! ones mark the main block that they are part of: that is found by going back from its end, over what is
//! known of the smaller blocks.
//!
//! Streams without sides whose connector serves whole prompts mark what the tiers behind the device hold
//! ([`Marks::BEHIND`]).

use std::sync::Arc;

use kvplane_core::{Marks, Tier};
use smallvec::SmallVec;

use super::Ledger;
use super::groups::{Fit, Group};
use crate::persist::persist;
use crate::seeded::SeededMap;
use crate::state::{Chain, Parent, Place, SlotId};

/// The main blocks that smaller blocks are part of.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    wholes: SeededMap<u64, SmallVec<[u64; 1]>>,
    /// All main blocks in there.
    pairs: usize,
    /// Begin anew when there are more: main blocks that are gone are not taken out one by one.
    limit: usize,
}

persist!(Parts { wholes, pairs, limit });

impl Parts {
    /// Estimated bytes in use.
    fn bytes(&self) -> usize {
        self.wholes.capacity() * 48 + self.pairs * 16
    }

    fn add(&mut self, part: u64, whole: u64) {
        let wholes = self.wholes.entry(part).or_default();
        if !wholes.contains(&whole) {
            wholes.push(whole);
            self.pairs += 1;
        }
    }
}

impl Ledger {
    /// The marks of all main blocks that have any.
    pub fn all_marks(&self) -> Vec<(u64, Marks)> {
        if !self.sides.wants_marks() {
            return Vec::new();
        }
        let blocks = self.state.hashes().into_iter();
        let marks = blocks.filter_map(|hash| Some((hash, self.marks_of(hash, None)?)));
        marks.filter(|(_, marks)| *marks != Marks::default()).collect()
    }

    /// The marks of what was changed since the last entry.
    pub(super) fn take_marks(&mut self) -> Vec<(u64, Marks)> {
        let mut blocks = std::mem::take(&mut self.state.changed.blocks);
        let everything =
            std::mem::take(&mut self.sides.all_anew) | std::mem::take(&mut self.state.changed.everything);
        if !self.sides.wants_marks() {
            return Vec::new();
        }
        let mut parts = std::mem::take(&mut self.sides.parts);
        if everything {
            blocks = self.state.hashes();
            parts.wholes.clear();
            parts.pairs = 0;
        } else {
            let wholes = blocks.iter().filter_map(|hash| parts.wholes.get(hash)).flatten();
            let wholes: Vec<u64> = wholes.copied().collect();
            blocks.extend(wholes);
        }
        blocks.sort_unstable();
        blocks.dedup();
        let marks = |hash| Some((hash, self.marks_of(hash, Some(&mut parts))?));
        let marks = blocks.into_iter().filter_map(marks).collect();
        self.sides.parts = parts;
        self.state.set_beside(self.sides.parts.bytes());
        if self.sides.parts.pairs > self.sides.parts.limit {
            self.find_parts();
        }
        marks
    }

    /// Finds the main blocks of all smaller ones.
    pub(super) fn find_parts(&mut self) {
        const LEAST: usize = 1024;
        let mut parts = Parts::default();
        if self.sides.has_parts() {
            for hash in self.state.hashes() {
                self.marks_of(hash, Some(&mut parts));
            }
        }
        parts.limit = LEAST + 2 * parts.pairs;
        self.state.set_beside(parts.bytes());
        self.sides.parts = parts;
    }

    /// Which sides hold a main block; `None` if no tier has the block itself. Notes what is part of it.
    pub(crate) fn marks_of(&self, hash: u64, mut parts: Option<&mut Parts>) -> Option<Marks> {
        let slot = self.state.find(hash)?;
        self.state.visible_chain(slot, self.visible_size())?;
        if !self.state.held_where(slot, Place::is_main) {
            return None;
        }
        let mut marks = Marks::default();
        if self.sides.blocked {
            return Some(marks);
        }
        if self.sides.numbered.is_empty() {
            for place in self.state.holdings(slot).map(|(place, _)| place).filter(|place| place.is_main()) {
                if matches!(place.tier, Tier::Host | Tier::Disk) {
                    marks.set(place.tier, Marks::BEHIND);
                }
            }
        }
        for (side, (at, fit)) in self.sides.numbered.iter().enumerate() {
            let group = &self.sides.groups.known()[*at];
            if fit.parts > 1 {
                let of_side = SmallBlocks { side, group, fit: *fit };
                self.mark_parts(hash, of_side, &mut marks, parts.as_deref_mut());
                continue;
            }
            let holds = |place: &&Arc<Place>| place.is_ours() && place.group == group.group;
            for place in self.state.holdings(slot).map(|(place, _)| place).filter(holds) {
                marks.set(place.tier, Marks::whole(side));
            }
        }
        Some(marks)
    }

    /// Goes back over the small blocks of a main one, as far as the side holds them.
    fn mark_parts(
        &self,
        whole: u64,
        SmallBlocks { side, group, fit }: SmallBlocks<'_>,
        marks: &mut Marks,
        mut parts: Option<&mut Parts>,
    ) {
        let mut next = whole;
        let mut coldest = Tier::Device;
        for done in 1..=fit.parts {
            if let Some(parts) = parts.as_deref_mut().filter(|_| next != whole) {
                parts.add(next, whole);
            }
            let Some(slot) = self.state.find(next) else { return };
            let Some(tier) = self.warmest_tier(slot, group.group) else { return };
            coldest = coldest.max(tier);
            if done == fit.tail_parts {
                marks.set(coldest, Marks::tail(side));
            }
            if done == fit.parts {
                marks.set(coldest, Marks::whole(side));
                return;
            }
            let chain = group.block_size.and_then(|size| self.state.chain(slot, size));
            let Some(Parent::Block(parent)) = chain.map(Chain::parent) else { return };
            next = parent;
        }
    }

    fn warmest_tier(&self, slot: SlotId, group: Option<u32>) -> Option<Tier> {
        let places = self.state.holdings(slot).map(|(place, _)| place);
        places.filter(|place| place.is_ours() && place.group == group).map(|place| place.tier).min()
    }
}

/// A side whose blocks are smaller than main ones.
#[derive(Clone, Copy)]
struct SmallBlocks<'a> {
    side: usize,
    group: &'a Group,
    fit: Fit,
}
