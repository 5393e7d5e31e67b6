//! The naive model: what the index must answer, written so that it can be seen to be right.
//!
//! One node per distinct prefix, one entry per (stream, engine's hash). A question walks the nodes and asks
//! for each whether anything of the stream lies there. Nothing is ever reclaimed. It is the oracle of the
//! tests.

use std::collections::BTreeMap;

use kvplane_core::{Marks, Resumption, Tier};
use rustc_hash::FxHashMap;

use crate::{Block, Depths, LEVELS, Refused};

/// A prefix. The root is the empty one.
type Node = usize;

const ROOT: Node = 0;

/// Where a block lies and how many copies each tier has.
#[derive(Debug, Clone, Copy)]
struct Held {
    node: Node,
    copies: [u32; LEVELS],
}

/// A block whose parent is not known: held, not credited.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    parent: u64,
    content: u64,
    copies: [u32; LEVELS],
    sides: Marks,
}

#[derive(Debug, Default, Clone)]
struct Holdings {
    held: BTreeMap<u64, Held>,
    waiting: BTreeMap<u64, Waiting>,
    /// Which sides hold a block. None is left of it when a hash that names it goes.
    sides: BTreeMap<Node, Marks>,
}

/// Every stream's residency, kept the slow way.
#[derive(Debug, Clone)]
pub struct Model {
    nodes: FxHashMap<(Node, u64), Node>,
    contents: Vec<u64>,
    streams: BTreeMap<u64, Holdings>,
    max_waiting: usize,
}

impl Model {
    /// An empty model; `max_waiting` bounds the blocks of a stream that wait for a parent.
    pub fn new(max_waiting: usize) -> Self {
        Self { nodes: FxHashMap::default(), contents: vec![0], streams: BTreeMap::new(), max_waiting }
    }

    /// A stream comes.
    pub fn add_stream(&mut self, owner: u64) {
        self.streams.insert(owner, Holdings::default());
    }

    /// A stream comes that holds what another holds.
    pub fn copy_stream(&mut self, from: u64, owner: u64) {
        let holdings = self.streams.get(&from).cloned().unwrap_or_default();
        self.streams.insert(owner, holdings);
    }

    /// A stream goes, with everything it held.
    pub fn remove_stream(&mut self, owner: u64) {
        self.streams.remove(&owner);
    }

    /// Consecutive blocks got a copy in a tier.
    pub fn store(
        &mut self,
        owner: u64,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[Block],
    ) -> Result<(), Refused> {
        let mut outcome = Ok(());
        let mut parent = parent;
        for block in blocks {
            if !self.store_one(owner, tier, parent, *block) {
                outcome = Err(Refused::Waiting);
            }
            parent = Some(block.hash);
        }
        outcome
    }

    fn store_one(&mut self, owner: u64, tier: Tier, parent: Option<u64>, block: Block) -> bool {
        let Some(holdings) = self.streams.get(&owner) else { return true };
        let above = match parent {
            None => Some(ROOT),
            Some(parent) => holdings.held.get(&parent).map(|held| held.node),
        };
        let known = holdings.held.get(&block.hash).copied();
        let node = match (above, known) {
            (Some(above), _) => self.child(above, block.content),
            // Its parent is unknown, but the block is not: it lies where it lay.
            (None, Some(known)) if self.contents[known.node] == block.content => known.node,
            (None, _) => return self.wait(owner, tier, parent.unwrap_or_default(), block),
        };
        let Some(holdings) = self.streams.get_mut(&owner) else { return true };
        holdings.waiting.remove(&block.hash);
        let held = holdings.held.entry(block.hash).or_insert(Held { node, copies: [0; LEVELS] });
        if held.node != node {
            holdings.sides.remove(&held.node);
            *held = Held { node, copies: [0; LEVELS] };
        }
        held.copies[tier as usize] += 1;
        self.attach(owner, block.hash);
        true
    }

    /// A block whose parent is unknown waits. It lies nowhere else then.
    fn wait(&mut self, owner: u64, tier: Tier, parent: u64, block: Block) -> bool {
        let max = self.max_waiting;
        let Some(holdings) = self.streams.get_mut(&owner) else { return true };
        if let Some(held) = holdings.held.remove(&block.hash) {
            holdings.sides.remove(&held.node);
        }
        let fresh = Waiting { parent, content: block.content, copies: [0; LEVELS], sides: Marks::default() };
        let full = holdings.waiting.len() >= max;
        match holdings.waiting.get_mut(&block.hash) {
            Some(waiting) if waiting.parent == parent && waiting.content == block.content => {
                waiting.copies[tier as usize] += 1;
                return true;
            }
            Some(waiting) => *waiting = fresh,
            None if full => return false,
            None => {
                holdings.waiting.insert(block.hash, fresh);
            }
        }
        if let Some(waiting) = holdings.waiting.get_mut(&block.hash) {
            waiting.copies[tier as usize] = 1;
        }
        true
    }

    /// What waited for this block follows it, and what waited for that.
    fn attach(&mut self, owner: u64, parent: u64) {
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            let Some(holdings) = self.streams.get_mut(&owner) else { return };
            let Some(above) = holdings.held.get(&parent).map(|held| held.node) else { continue };
            let children: Vec<(u64, Waiting)> = holdings
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.parent == parent)
                .map(|(&hash, &waiting)| (hash, waiting))
                .collect();
            for (hash, waiting) in children {
                let node = self.child(above, waiting.content);
                let Some(holdings) = self.streams.get_mut(&owner) else { return };
                holdings.waiting.remove(&hash);
                holdings.held.insert(hash, Held { node, copies: waiting.copies });
                if waiting.sides != Marks::default() {
                    holdings.sides.insert(node, waiting.sides);
                }
                parents.push(hash);
            }
        }
    }

    fn child(&mut self, above: Node, content: u64) -> Node {
        let contents = &mut self.contents;
        *self.nodes.entry((above, content)).or_insert_with(|| {
            contents.push(content);
            contents.len() - 1
        })
    }

    /// Blocks lost a copy in a tier. Says how many were not there.
    pub fn remove(&mut self, owner: u64, tier: Tier, hashes: &[u64]) -> usize {
        let Some(holdings) = self.streams.get_mut(&owner) else { return hashes.len() };
        let mut unknown = 0;
        for hash in hashes {
            let copies = if let Some(held) = holdings.held.get_mut(hash) {
                &mut held.copies
            } else if let Some(waiting) = holdings.waiting.get_mut(hash) {
                &mut waiting.copies
            } else {
                unknown += 1;
                continue;
            };
            if copies[tier as usize] == 0 {
                unknown += 1;
                continue;
            }
            copies[tier as usize] -= 1;
            if *copies == [0; LEVELS] {
                if let Some(held) = holdings.held.remove(hash) {
                    holdings.sides.remove(&held.node);
                }
                holdings.waiting.remove(hash);
            }
        }
        unknown
    }

    /// Blocks have these marks and no others.
    pub fn set_sides(&mut self, owner: u64, marks: &[(u64, Marks)]) {
        let Some(holdings) = self.streams.get_mut(&owner) else { return };
        for &(hash, marks) in marks {
            if let Some(held) = holdings.held.get(&hash) {
                holdings.sides.insert(held.node, marks);
            } else if let Some(waiting) = holdings.waiting.get_mut(&hash) {
                waiting.sides = marks;
            }
        }
    }

    /// Nothing of the stream is held any more.
    pub fn clear(&mut self, owner: u64) {
        if let Some(holdings) = self.streams.get_mut(&owner) {
            *holdings = Holdings::default();
        }
    }

    /// Everybody's residency now, to be asked.
    pub fn view(&self) -> View<'_> {
        let at_level = |holdings: &Holdings, level: usize| {
            let mut resident = vec![false; self.contents.len()];
            for held in holdings.held.values() {
                resident[held.node] |= held.copies[..=level].iter().any(|copies| *copies > 0);
            }
            resident
        };
        let streams = self.streams.iter();
        let resident =
            streams.map(|(&owner, holdings)| (owner, std::array::from_fn(|level| at_level(holdings, level))));
        View { model: self, resident: resident.collect() }
    }

    /// For every stream that holds the first block in any tier: how much of the prompt it holds.
    pub fn query(&self, contents: &[u64]) -> BTreeMap<u64, Depths> {
        self.view().query(contents)
    }

    /// Blocks that a stream holds in any tier, by the engine's hash; what waits is not counted.
    pub fn blocks(&self, owner: u64) -> usize {
        self.streams.get(&owner).map_or(0, |holdings| holdings.held.len())
    }

    /// Blocks of a stream that wait for their parent.
    pub fn waiting(&self, owner: u64) -> usize {
        self.streams.get(&owner).map_or(0, |holdings| holdings.waiting.len())
    }
}

/// Everybody's residency at one moment.
#[derive(Debug)]
pub struct View<'a> {
    model: &'a Model,
    /// By stream, level and node.
    resident: Vec<(u64, [Vec<bool>; LEVELS])>,
}

impl View<'_> {
    fn path(&self, contents: &[u64]) -> Vec<Node> {
        let mut path = Vec::new();
        let mut node = ROOT;
        for content in contents {
            let Some(&next) = self.model.nodes.get(&(node, *content)) else { break };
            path.push(next);
            node = next;
        }
        path
    }

    /// From how much of the prompt a stream can go on that holds so much of it.
    pub fn resume(&self, owner: u64, contents: &[u64], depths: Depths, needs: &Resumption) -> Depths {
        let path = self.path(contents);
        let sides = self.model.streams.get(&owner).map(|holdings| &holdings.sides);
        let marks =
            |at: u32| sides.and_then(|sides| sides.get(&path[at as usize])).copied().unwrap_or_default();
        let counted = needs.whole_units(depths);
        std::array::from_fn(|level| {
            needs.resumable(counted[level], |at, channel| marks(at).has(level, channel))
        })
    }

    /// For every stream that holds the first block in any tier: how much of the prompt it holds.
    pub fn query(&self, contents: &[u64]) -> BTreeMap<u64, Depths> {
        let path = self.path(contents);
        let depth = |resident: &Vec<bool>| path.iter().take_while(|&&node| resident[node]).count() as u32;
        let answers = self.resident.iter().map(|(owner, levels)| (*owner, levels.each_ref().map(depth)));
        answers.filter(|(_, depths)| depths.iter().any(|depth| *depth > 0)).collect()
    }
}
