//! What one rank holds, without tokens: a tree of its blocks by the engine's hashes.
//!
//! A block is *reported* where it lies in a tier that counts, and everything before it does too. Engines
//! reuse prefixes: what lies behind a hole is worth nothing until the hole is filled, and a question about
//! one hash cannot see the hole. So a block that is stored or removed may tell, or take back, what builds on
//! it.

mod slot;

use std::collections::VecDeque;
use std::sync::Arc;

use kvplane_core::{Tier, chain_hash};
use kvplane_hints::Prefix;
use rustc_hash::FxHashMap;

use super::adapters::Adapters;
use super::describe::Described;
use super::lies::Lies;
use super::share::Share;
use super::withheld::Tally;
use crate::sink::Withheld;
use slot::{Known, NONE, Slot};

/// A prefix of one rank came, went, or lies elsewhere.
#[derive(Debug)]
pub(super) struct Shift<'l> {
    /// Its adapter; empty for none.
    pub(super) adapter: &'l Arc<str>,
    /// What it hashes to.
    pub(super) fingerprint: u64,
    /// Its tokens, from the start of the prompt.
    pub(super) tokens: u32,
    /// Tokens of its last block.
    pub(super) block: u32,
    /// Where it lay, if it was reported.
    pub(super) was: Option<Lies>,
    /// Where it lies, if it is reported.
    pub(super) now: Option<Lies>,
}

impl Shift<'_> {
    pub(super) fn prefix(&self, lies: Lies) -> Prefix {
        Prefix {
            fingerprint: self.fingerprint,
            tokens: self.tokens,
            block: self.block,
            tier: lies.tier(),
            sure: lies.is_sure(),
            adapter: self.adapter.clone(),
        }
    }
}

/// What one rank holds.
#[derive(Debug)]
pub(super) struct Ledger {
    share: Share,
    /// How many blocks that left the device are taken to lie behind it.
    keep_left: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_hash: FxHashMap<u64, u32>,
    adapters: Adapters,
    /// Blocks that left the device, the first to leave first. Some may have come back.
    left: VecDeque<u64>,
    reported: usize,
    /// Scratch space of [`Self::settle`].
    unsettled: Vec<u32>,
    /// Blocks that were stored and withheld.
    withheld: Tally,
}

impl Ledger {
    /// An empty one, which counts what `share` says.
    pub(super) fn new(share: Share, keep_left: usize) -> Self {
        Self {
            share,
            keep_left,
            slots: Vec::new(),
            free: Vec::new(),
            by_hash: FxHashMap::default(),
            adapters: Adapters::default(),
            left: VecDeque::new(),
            reported: 0,
            unsettled: Vec::new(),
            withheld: Tally::default(),
        }
    }

    /// What counts.
    pub(super) fn share(&self) -> Share {
        self.share
    }

    /// How many blocks are reported.
    pub(super) fn reported(&self) -> usize {
        self.reported
    }

    /// Whether nothing is remembered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty() && self.free.len() == self.slots.len() && self.adapters.len() == 0
    }

    /// Blocks that were withheld since the last call.
    pub(super) fn take_withheld(&mut self) -> Tally {
        std::mem::take(&mut self.withheld)
    }

    /// All that is reported, as if it had just come.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Shift<'_>> {
        let reported = self.slots.iter().filter(|slot| slot.reported.is_some());
        reported.map(|slot| self.shift(slot, None, slot.reported))
    }

    /// Blocks are in a tier, each building on the one before it.
    pub(super) fn store<'b>(
        &mut self,
        tier: Tier,
        parent: Option<u64>,
        blocks: impl Iterator<Item = Described<'b>>,
        tell: &mut impl FnMut(Shift<'_>),
    ) {
        if let Err(reason) = self.share.counts(tier) {
            self.withheld.add(reason, blocks.count());
            return;
        }
        let mut previous = parent;
        for block in blocks {
            let parent = previous.map_or(NONE, |hash| self.find_or_name(hash));
            let at = self.find_or_name(block.hash);
            self.describe(at, parent, &block, tell);
            let slot = &mut self.slots[at as usize];
            let came = slot.places.is_empty();
            slot.places.add(tier);
            self.settle(at, tell);
            if let Some(reason) = self.slots[at as usize].reason.filter(|_| came) {
                self.withheld.add(reason, 1);
            }
            previous = Some(block.hash);
        }
    }

    /// Blocks are no longer in a tier.
    pub(super) fn remove(&mut self, tier: Tier, hashes: &[u64], tell: &mut impl FnMut(Shift<'_>)) {
        for &hash in hashes {
            let leaves = tier == Tier::Device && self.keep_left > 0;
            let Some(&at) = self.by_hash.get(&hash) else { continue };
            let places = &mut self.slots[at as usize].places;
            if places.remove(tier) && leaves {
                places.leave();
                self.left.push_back(hash);
            }
            self.settle(at, tell);
            self.release(at);
        }
        while self.left.len() > self.keep_left {
            let Some(hash) = self.left.pop_front() else { return };
            let Some(&at) = self.by_hash.get(&hash) else { continue };
            self.slots[at as usize].places.give_up();
            self.settle(at, tell);
            self.release(at);
        }
    }

    fn find_or_name(&mut self, hash: u64) -> u32 {
        if let Some(&at) = self.by_hash.get(&hash) {
            return at;
        }
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(at as usize) {
            Some(slot) => *slot = Slot::named(hash),
            None => self.slots.push(Slot::named(hash)),
        }
        self.by_hash.insert(hash, at);
        at
    }

    /// Notes what a block is. An engine may give a hash to another block once the first is gone; what was
    /// reported of that is taken back.
    fn describe(&mut self, at: u32, parent: u32, block: &Described<'_>, tell: &mut impl FnMut(Shift<'_>)) {
        let adapter = block.adapter.unwrap_or_default();
        let (mut parent, mut own_reason) = (parent, block.adapter.err());
        let slot = &self.slots[at as usize];
        let same = slot.known != Known::Hash
            && (slot.parent, slot.content, slot.size, slot.adapter, slot.own_reason)
                == (
                    parent,
                    block.content,
                    block.size,
                    self.adapters.number(adapter).unwrap_or(NONE),
                    own_reason,
                );
        if same {
            return;
        }
        if self.is_same_or_below(parent, at) {
            // No hash is made of itself: nothing that is said of it can be believed.
            (parent, own_reason) = (NONE, Some(Withheld::NotExact));
        }
        if slot.reported.is_some() {
            self.tell(at, None, tell);
        }
        let old_parent = self.slots[at as usize].parent;
        self.unlink(at);
        self.link(at, parent);
        self.release(old_parent);
        let adapter = self.adapters.take(adapter);
        self.release_adapter(at);
        let slot = &mut self.slots[at as usize];
        (slot.content, slot.size, slot.adapter, slot.own_reason) =
            (block.content, block.size, adapter, own_reason);
        slot.known = Known::Itself;
    }

    /// Works out anew what follows for a block from itself and from what comes before it, and then for all
    /// that builds on it, as far as anything is different there.
    fn settle(&mut self, at: u32, tell: &mut impl FnMut(Shift<'_>)) {
        let mut open = std::mem::take(&mut self.unsettled);
        open.push(at);
        while let Some(at) = open.pop() {
            let (footing, reported) = self.follow_from(at);
            let slot = &self.slots[at as usize];
            let (same_footing, was) = (slot.footing() == footing, slot.reported);
            if same_footing && was == reported {
                continue;
            }
            if !same_footing && was.is_some() {
                self.tell(at, None, tell);
            }
            let slot = &mut self.slots[at as usize];
            (slot.known, slot.fingerprint, slot.tokens, slot.reason) = footing;
            self.tell(at, reported, tell);
            if !same_footing || was.is_some() != reported.is_some() {
                let mut child = self.slots[at as usize].first_child;
                while child != NONE {
                    open.push(child);
                    child = self.slots[child as usize].next_sibling;
                }
            }
        }
        self.unsettled = open;
    }

    /// What a block is and whether it is reported, by itself and its parent.
    fn follow_from(&self, at: u32) -> ((Known, u64, u32, Option<Withheld>), Option<Lies>) {
        let slot = &self.slots[at as usize];
        let parent = (slot.parent != NONE).then(|| &self.slots[slot.parent as usize]);
        let known = match slot.known {
            Known::Hash => Known::Hash,
            _ if parent.is_none_or(|parent| parent.known == Known::Whole) => Known::Whole,
            _ => Known::Itself,
        };
        if known != Known::Whole {
            return ((known, 0, 0, None), None);
        }
        let fingerprint = chain_hash(parent.map(|parent| parent.fingerprint), slot.content);
        let tokens = parent.map_or(0, |parent| parent.tokens).saturating_add(slot.size);
        let reason = parent.and_then(|parent| parent.reason).or(slot.own_reason);
        let reachable = reason.is_none() && parent.is_none_or(|parent| parent.reported.is_some());
        let reported = slot.places.warmest().filter(|_| reachable);
        ((known, fingerprint, tokens, reason), reported)
    }

    /// From now on a block is reported there.
    fn tell(&mut self, at: u32, now: Option<Lies>, tell: &mut impl FnMut(Shift<'_>)) {
        let was = std::mem::replace(&mut self.slots[at as usize].reported, now);
        if was == now {
            return;
        }
        self.reported = self.reported + usize::from(now.is_some()) - usize::from(was.is_some());
        tell(self.shift(&self.slots[at as usize], was, now));
    }

    fn shift(&self, slot: &Slot, was: Option<Lies>, now: Option<Lies>) -> Shift<'_> {
        Shift {
            adapter: self.adapters.name(slot.adapter),
            fingerprint: slot.fingerprint,
            tokens: slot.tokens,
            block: slot.size,
            was,
            now,
        }
    }

    /// Lets go of the adapter that a block has, if it was ever described.
    fn release_adapter(&mut self, at: u32) {
        let slot = &self.slots[at as usize];
        if slot.known != Known::Hash {
            self.adapters.release(slot.adapter);
        }
    }

    /// Whether a block equals another, or builds on it. Only asked of blocks on which something builds.
    fn is_same_or_below(&self, block: u32, other: u32) -> bool {
        if self.slots[other as usize].first_child == NONE {
            return block == other;
        }
        let mut at = block;
        while at != NONE && at != other {
            at = self.slots[at as usize].parent;
        }
        at == other
    }

    fn link(&mut self, at: u32, parent: u32) {
        self.slots[at as usize].parent = parent;
        if parent == NONE {
            return;
        }
        let next = std::mem::replace(&mut self.slots[parent as usize].first_child, at);
        self.slots[at as usize].next_sibling = next;
        if next != NONE {
            self.slots[next as usize].previous_sibling = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let (parent, previous, next) = (slot.parent, slot.previous_sibling, slot.next_sibling);
        (slot.parent, slot.previous_sibling, slot.next_sibling) = (NONE, NONE, NONE);
        if parent == NONE {
            return;
        }
        match self.slots.get_mut(previous as usize) {
            Some(previous) => previous.next_sibling = next,
            None => self.slots[parent as usize].first_child = next,
        }
        if let Some(next) = self.slots.get_mut(next as usize) {
            next.previous_sibling = previous;
        }
    }

    /// Lets go of a block that lies nowhere and that nothing builds on, and of what was remembered only for
    /// it.
    fn release(&mut self, at: u32) {
        let mut at = at;
        while at != NONE {
            let slot = &self.slots[at as usize];
            if !slot.places.is_empty() || slot.first_child != NONE {
                return;
            }
            let (hash, parent) = (slot.hash, slot.parent);
            self.release_adapter(at);
            // Released once: the slot may be looked at again before it is named anew.
            self.slots[at as usize].known = Known::Hash;
            self.unlink(at);
            self.by_hash.remove(&hash);
            self.free.push(at);
            at = parent;
        }
    }
}

#[cfg(test)]
mod tests;
