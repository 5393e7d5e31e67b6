//! Snapshots: a whole state at one moment, taken a few blocks at a time, and what follows from it without
//! the ledger's lock.

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Resumption, StateDigest, Tier, TrustState};

use super::{Group, Ledger};
use crate::change::{Transition, VisibleBlock};
use crate::peer_dump::Position;
use crate::seeded::{SeededMap, SeededSet};
use crate::state::{BlockImage, Chain, CutAborted, Image, Parent, VisibleSize};
use crate::transitions::{push_removed, push_stored};

/// A whole state with everything a subscriber needs to go on from it.
#[derive(Debug)]
pub struct Snapshot {
    /// Where the tail goes on.
    pub cursor: Cursor,
    /// The engine's own number at that point.
    pub engine_sequence: Option<u64>,
    /// Digest of that batch as the engine sent it, where it is known.
    pub engine_digest: Option<u128>,
    /// The batch of that number, where its payload was read here.
    pub position: Option<Position>,
    /// Where the history begins.
    pub known_from: Option<u64>,
    /// How old the proof was that the engine is there; `None` before the first proof.
    pub age: Option<Duration>,
    /// What the state is worth.
    pub trust: TrustState,
    /// Where the stream stood.
    pub continuity: Continuity,
    /// The last transition that is part of it.
    pub last_event_id: u64,
    /// Digest of the state.
    pub digest: StateDigest,
    /// The main group holds blocks whose tokens are not known.
    pub untranslatable: bool,
    /// Tokens per block, configured or learned.
    pub block_size: Option<u32>,
    /// Blocks may be smaller than that: those are not sent to consumers that know one block size.
    pub partial_blocks: bool,
    /// The groups of the engine's cache, in the order in which they were first heard of.
    pub groups: Vec<Group>,
    /// What the stream needs besides its main blocks.
    pub resumption: Arc<Resumption>,
    /// The state.
    pub image: Image,
}

/// A snapshot being taken. Blocks are pictured under the ledger's lock a few at a time, and gathered without
/// it: growing a list of a million blocks takes longer than a batch may wait.
#[derive(Debug)]
pub struct SnapshotBuilder {
    cut: u32,
    snapshot: Snapshot,
    /// What the last step pictured.
    step: Vec<BlockImage>,
    complete: bool,
}

impl SnapshotBuilder {
    /// Gathers what the last step pictured. True when the snapshot is complete. Call it without the ledger's
    /// lock.
    pub fn gather(&mut self) -> bool {
        self.snapshot.image.blocks.append(&mut self.step);
        self.complete
    }

    /// The snapshot, once complete.
    pub fn finish(self) -> Snapshot {
        self.snapshot
    }
}

impl Ledger {
    /// Fixes the moment of a snapshot.
    pub fn begin_snapshot(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            cut: {
                self.cuts += 1;
                self.state.begin_cut(self.cuts);
                self.cuts
            },
            snapshot: Snapshot {
                cursor: self.cursor(),
                engine_sequence: self.engine_sequence,
                engine_digest: self.engine_digest,
                position: self.position,
                known_from: self.known_from(),
                age: self.age,
                trust: self.trust.clone(),
                continuity: self.continuity,
                last_event_id: self.last_event_id(),
                digest: self.state.digest(),
                untranslatable: self.untranslatable(),
                block_size: self.block_size(),
                partial_blocks: self.visible_size() != VisibleSize::Any,
                groups: self.groups().to_vec(),
                resumption: self.resumption().clone(),
                image: Image::default(),
            },
            step: Vec::new(),
            complete: false,
        }
    }

    /// Pictures up to `slots` more blocks. Gather them before the next step; begin again when aborted.
    pub fn step_snapshot(&mut self, builder: &mut SnapshotBuilder, slots: usize) -> Result<(), CutAborted> {
        if builder.snapshot.cursor.epoch != self.epoch {
            return Err(CutAborted);
        }
        if let Some(places) = self.state.step_cut(builder.cut, slots, &mut builder.step)? {
            builder.snapshot.image.places = places;
            builder.complete = true;
        }
        Ok(())
    }

    /// Gives a snapshot up.
    pub fn abandon_snapshot(&mut self, builder: &SnapshotBuilder) {
        self.state.abandon_cut(builder.cut);
    }
}

/// Blocks of one store: a reader takes a store whole.
const CHAIN_MAX: usize = 4096;

impl Snapshot {
    /// Every block that is held, and every hole that one of them builds on; parents before children. The
    /// numbers are places in the image's blocks.
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
    /// A hole in a chain is stored and then removed, so that what builds on it is attached where it belongs
    /// and counts again once the hole is filled.
    pub fn as_transitions(&self) -> Vec<Transition> {
        let mut log = Vec::new();
        let order: Vec<&BlockImage> =
            self.parents_first().iter().map(|&at| &self.image.blocks[at as usize]).collect();
        let supports = self.supports_device(&order);
        for tier in Tier::ALL.into_iter().filter(|&tier| tier != Tier::Unknown) {
            let mut holes = Vec::new();
            for block in &order {
                let Some(chain) = self.visible_chain(block) else { continue };
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

    /// The state as stores alone, for consumers that take nothing back: blocks that follow one another are
    /// one store, parents come before children, and what a hole cuts off on the device is left out.
    pub fn as_chains(&self) -> Vec<Transition> {
        let order: Vec<&BlockImage> =
            self.parents_first().iter().map(|&at| &self.image.blocks[at as usize]).collect();
        let mut log = Vec::new();
        for tier in Tier::ALL.into_iter().filter(|&tier| tier != Tier::Unknown) {
            self.push_chains(&order, tier, &mut log);
        }
        log
    }

    fn push_chains(&self, parents_first: &[&BlockImage], tier: Tier, log: &mut Vec<Transition>) {
        // Each block that is sent, with its parent. Only the device's chains begin at the start of a prompt.
        let mut listed: Vec<(&BlockImage, &Chain)> = Vec::new();
        let mut at: SeededMap<u64, usize> = SeededMap::default();
        for block in parents_first {
            let Some(chain) = self.visible_chain(block).filter(|_| self.is_visible(block, tier)) else {
                continue;
            };
            let reached = parent_of(chain).is_none_or(|parent| at.contains_key(&parent));
            if reached || tier != Tier::Device {
                at.insert(block.hash, listed.len());
                listed.push((block, chain));
            }
        }
        // The only child of each, if it has one child.
        let mut next: Vec<Option<usize>> = vec![None; listed.len()];
        let mut children = vec![0_u32; listed.len()];
        for (child, (_, chain)) in listed.iter().enumerate() {
            let parent = parent_of(chain).and_then(|parent| at.get(&parent).copied());
            if let Some(parent) = parent {
                children[parent] += 1;
                next[parent] = (children[parent] == 1).then_some(child);
            }
        }
        let follows: SeededSet<usize> = next.iter().flatten().copied().collect();
        for head in (0..listed.len()).filter(|head| !follows.contains(head)) {
            let mut parent = parent_of(listed[head].1);
            let mut line = std::iter::successors(Some(head), |&at| next[at]).peekable();
            while line.peek().is_some() {
                let blocks: Vec<VisibleBlock> = line
                    .by_ref()
                    .take(CHAIN_MAX)
                    .map(|at| VisibleBlock::new(listed[at].0.hash, listed[at].1))
                    .collect();
                let last = blocks.last().map(|block| block.hash);
                log.push(Transition::Stored { tier, parent, blocks });
                parent = last;
            }
        }
    }

    fn is_visible(&self, block: &BlockImage, tier: Tier) -> bool {
        self.visible_chain(block).is_some()
            && block.holdings.iter().any(|holding| {
                let place = &self.image.places[usize::from(holding.place)];
                place.tier == tier && place.is_main()
            })
    }

    /// What a block is, and what else it is at other block sizes.
    pub fn chains_of<'s>(&self, block: &'s BlockImage) -> (Option<&'s Chain>, Vec<&'s Chain>) {
        let listed =
            self.visible_chain(block).or_else(|| block.attached_chain()).or_else(|| block.chains.first());
        let is_visible = |chain: &&Chain| listed.is_some_and(|listed| std::ptr::eq(*chain, listed));
        (listed, block.chains.iter().filter(|chain| !is_visible(chain)).collect())
    }

    /// What a block is, for consumers that know one block size.
    fn visible_chain<'s>(&self, block: &'s BlockImage) -> Option<&'s Chain> {
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
                && let Some(parent) = self.visible_chain(block).and_then(parent_of)
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
    match chain.parent() {
        Parent::Block(parent) => Some(parent),
        Parent::Root => None,
    }
}
