//! The reuse tree of one attention window, on levels.
//!
//! A node is a block, found by its tokens under its parent. The last block of a request may be partial; it
//! is a leaf beside the full blocks that begin like it. A request holds the nodes of its prompt, which are
//! on the device then; when it ends they become idle, the last one first. When the device is full, the node
//! that was idle for longest goes to the next level, and from the last one it goes for good. Because an end
//! becomes idle before its beginning, no node is ever colder than its children.

use std::collections::BTreeMap;

use kvplane_wire::OwnedExtraKey;
use kvplane_wire::trtllm::encode::{HashAlgo, TrtBlock, TrtData, TrtDiff, TrtHash, TrtMmKey};

use super::hash::BlockHash;
use super::keys::{block_keys, items};
use crate::keys::Keys;
use crate::pool::PoolError;

#[cfg(test)]
mod tests;

/// How long blocks are kept unless a request says otherwise.
const DEFAULT_PRIORITY: u32 = 35;

/// Sizes and identity of a cache.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) block_size: usize,
    /// Blocks of each level.
    pub(super) levels: Vec<usize>,
    pub(super) algo: HashAlgo,
    pub(super) partial_reuse: bool,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    nodes: Vec<Option<Node>>,
    unused: Vec<usize>,
    roots: Vec<usize>,
    /// How many blocks each level has in use.
    used: Vec<usize>,
    /// Nodes of each level that nobody holds, by the time at which they became idle.
    idle: Vec<BTreeMap<u64, usize>>,
    clock: u64,
    events: Vec<TrtData>,
}

#[derive(Debug)]
struct Node {
    hash: BlockHash,
    parent: Option<usize>,
    children: Vec<usize>,
    tokens: Vec<u32>,
    /// What else makes it what it is.
    keys: Vec<OwnedExtraKey>,
    salt: Option<String>,
    level: usize,
    priority: u32,
    holders: u32,
    idle_at: u64,
}

/// The nodes that a running request holds, from the root on. Give it back with [`Cache::finish`].
#[derive(Debug)]
pub(super) struct Held {
    path: Vec<usize>,
    keys: Keys,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resident {
    pub(super) hash: TrtHash,
    pub(super) parent: Option<TrtHash>,
    pub(super) tokens: Vec<u32>,
    pub(super) salt: Option<String>,
    pub(super) items: Vec<TrtMmKey>,
    pub(super) level: usize,
}

impl Cache {
    /// An empty tree, which says how large it is.
    pub(super) fn new(mut shape: Shape) -> Self {
        if shape.levels.is_empty() {
            shape.levels.push(0);
        }
        let blocks = shape.levels.iter().map(|blocks| *blocks as u64).collect();
        Self {
            nodes: Vec::new(),
            unused: Vec::new(),
            roots: Vec::new(),
            used: vec![0; shape.levels.len()],
            idle: vec![BTreeMap::new(); shape.levels.len()],
            clock: 0,
            events: vec![TrtData::Created { num_blocks_per_cache_level: blocks }],
            shape,
        }
    }

    /// The full blocks of a prompt that are here. The last token is always computed.
    pub(super) fn full_matches(&self, prompt: &[u32], keys: &Keys) -> usize {
        let reusable = &prompt[..prompt.len().saturating_sub(1)];
        self.matched(reusable, keys).len()
    }

    /// Starts a request that will have `length` tokens: it goes on from the first `reused` blocks, and the
    /// full blocks of its prompt are stored. Says how many tokens behind those a part of a block had.
    pub(super) fn begin(
        &mut self,
        prompt: &[u32],
        keys: &Keys,
        reused: usize,
        length: usize,
    ) -> Result<(Held, usize), PoolError> {
        let size = self.shape.block_size;
        let reusable = &prompt[..prompt.len().saturating_sub(1)];
        let path = self.matched(&reusable[..(reused * size).min(reusable.len())], keys);
        for node in &path {
            self.hold(*node);
        }
        let mut held = Held { path, keys: keys.clone() };
        let on_device = held.path.iter().filter(|node| self.is_on_device(**node)).count();
        let free = self.shape.levels[0] - self.used[0] + self.idle[0].len();
        if length.div_ceil(size) - on_device > free {
            self.release(&held);
            return Err(PoolError::Full);
        }
        for node in &held.path {
            self.move_to_device(*node);
        }
        let partial = self.take_part(&held, &reusable[held.path.len() * size..]);
        self.store(&mut held, &prompt[..prompt.len() / size * size]);
        Ok((held, partial))
    }

    /// Ends a request: what it computed stays, its unfinished last block too.
    pub(super) fn finish(&mut self, mut held: Held, tokens: &[u32]) {
        self.store(&mut held, tokens);
        self.release(&held);
    }

    /// The events since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<TrtData> {
        std::mem::take(&mut self.events)
    }

    /// Changes how long the blocks of a prompt are kept: an update that moves nothing.
    pub(super) fn reprioritise(&mut self, prompt: &[u32], keys: &Keys, priority: u32) {
        for index in self.matched(prompt, keys) {
            let Some(node) = &mut self.nodes[index] else { continue };
            let old_value = std::mem::replace(&mut node.priority, priority);
            if old_value != priority {
                self.events.push(TrtData::Updated {
                    block_hash: node.hash.written(self.shape.algo),
                    cache_level: None,
                    priority: Some(TrtDiff { new_value: priority, old_value }),
                });
            }
        }
    }

    /// Every block that is here.
    pub(super) fn resident(&self) -> impl Iterator<Item = Resident> {
        let hash = |node: &Node| node.hash.written(self.shape.algo);
        self.nodes.iter().flatten().map(move |node| Resident {
            hash: hash(node),
            parent: node.parent.and_then(|parent| self.nodes[parent].as_ref()).map(hash),
            tokens: node.tokens.clone(),
            salt: node.salt.clone(),
            items: items(&node.keys),
            level: node.level,
        })
    }

    /// Blocks in use of each level.
    pub(super) fn used(&self) -> &[usize] {
        &self.used
    }

    fn matched(&self, tokens: &[u32], keys: &Keys) -> Vec<usize> {
        let mut path: Vec<usize> = Vec::new();
        for block in tokens.chunks_exact(self.shape.block_size) {
            let keys = block_keys(keys, path.len() * self.shape.block_size, block.len());
            match self.child(path.last().copied(), block, &keys) {
                Some(node) => path.push(node),
                None => break,
            }
        }
        path
    }

    fn children(&self, parent: Option<usize>) -> &[usize] {
        match parent {
            Some(parent) => self.nodes[parent].as_ref().map_or(&[], |node| &node.children),
            None => &self.roots,
        }
    }

    fn child(&self, parent: Option<usize>, tokens: &[u32], keys: &[OwnedExtraKey]) -> Option<usize> {
        let is_it = |node: &Node| node.tokens == tokens && node.keys == keys;
        let mut children = self.children(parent).iter().copied();
        children.find(|child| self.nodes[*child].as_ref().is_some_and(is_it))
    }

    /// Reuses the beginning of a block, of whichever has most of it. A partial block that is used up whole
    /// is written on: it goes from the tree. Of any other one a copy is made, which is not published.
    fn take_part(&mut self, held: &Held, rest: &[u32]) -> usize {
        if !self.shape.partial_reuse {
            return 0;
        }
        let common =
            |node: &Node| node.tokens.iter().zip(rest).take_while(|(one, other)| one == other).count();
        let start = held.path.len() * self.shape.block_size;
        let parts = self.children(held.path.last().copied()).iter().filter_map(|child| {
            let is_alike = |node: &&Node| node.keys == block_keys(&held.keys, start, node.tokens.len());
            let node = self.nodes[*child].as_ref().filter(is_alike)?;
            Some((common(node), *child))
        });
        let Some((tokens, child)) = parts.max().filter(|(tokens, _)| *tokens > 0) else { return 0 };
        let is_used_up = self.nodes[child].as_ref().is_some_and(|node| {
            let is_partial = node.tokens.len() < self.shape.block_size;
            is_partial && tokens == node.tokens.len() && node.holders == 0
        });
        if is_used_up {
            self.remove(child);
        }
        tokens
    }

    /// Puts what a request has computed into the tree, behind what it holds already.
    fn store(&mut self, held: &mut Held, tokens: &[u32]) {
        let size = self.shape.block_size;
        let algo = self.shape.algo;
        let mut new: Vec<TrtBlock> = Vec::new();
        let mut parent_hash = None;
        let known = (held.path.len() * size).min(tokens.len());
        for block in tokens[known..].chunks(size) {
            let parent = held.path.last().copied();
            let keys = block_keys(&held.keys, held.path.len() * size, block.len());
            if let Some(node) = self.child(parent, block, &keys) {
                self.announce(&mut new, parent_hash.take());
                self.hold(node);
                held.path.push(node);
                self.move_to_device(node);
                continue;
            }
            if self.used[0] >= self.shape.levels[0] && !self.evict_one(0) {
                break;
            }
            let before = parent.and_then(|parent| self.nodes[parent].as_ref()).map(|node| node.hash);
            let hash = BlockHash::of(algo, before.as_ref(), block, &keys);
            if new.is_empty() {
                parent_hash = before.map(|before| before.written(algo));
            }
            new.push(TrtBlock {
                block_hash: hash.written(algo),
                tokens: block.iter().map(|token| (*token).into()).collect(),
                cache_level: 0,
                priority: DEFAULT_PRIORITY,
                mm_keys: items(&keys),
                cache_salt: held.keys.salt.clone(),
            });
            held.path.push(self.insert(hash, parent, block, (keys, held.keys.salt.clone())));
        }
        self.announce(&mut new, parent_hash);
    }

    fn announce(&mut self, blocks: &mut Vec<TrtBlock>, parent_hash: Option<TrtHash>) {
        if !blocks.is_empty() {
            self.events.push(TrtData::Stored { parent_hash, blocks: std::mem::take(blocks) });
        }
    }

    fn insert(
        &mut self,
        hash: BlockHash,
        parent: Option<usize>,
        tokens: &[u32],
        (keys, salt): (Vec<OwnedExtraKey>, Option<String>),
    ) -> usize {
        let node = Node {
            hash,
            parent,
            children: Vec::new(),
            tokens: tokens.to_vec(),
            keys,
            salt,
            level: 0,
            priority: DEFAULT_PRIORITY,
            holders: 1,
            idle_at: 0,
        };
        self.used[0] += 1;
        let index = self.unused.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(node);
        self.siblings(parent).push(index);
        index
    }

    /// Takes a leaf out of the tree.
    fn remove(&mut self, index: usize) {
        let Some(node) = self.nodes[index].take() else { return };
        debug_assert!(node.children.is_empty(), "a parent goes after its children");
        self.siblings(node.parent).retain(|sibling| *sibling != index);
        self.used[node.level] -= 1;
        self.idle[node.level].remove(&node.idle_at);
        self.unused.push(index);
        let hash = node.hash.written(self.shape.algo);
        match self.events.last_mut() {
            // Removals in a row are one event.
            Some(TrtData::Removed { block_hashes }) => block_hashes.push(hash),
            _ => self.events.push(TrtData::Removed { block_hashes: vec![hash] }),
        }
    }

    fn siblings(&mut self, parent: Option<usize>) -> &mut Vec<usize> {
        match parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => &mut parent.children,
            None => &mut self.roots,
        }
    }

    fn hold(&mut self, index: usize) {
        if let Some(node) = &mut self.nodes[index] {
            if node.holders == 0 {
                self.idle[node.level].remove(&node.idle_at);
            }
            node.holders += 1;
        }
    }

    fn release(&mut self, held: &Held) {
        for &index in held.path.iter().rev() {
            let Some(node) = &mut self.nodes[index] else { continue };
            node.holders -= 1;
            if node.holders == 0 {
                self.clock += 1;
                node.idle_at = self.clock;
                self.idle[node.level].insert(self.clock, index);
            }
        }
    }

    fn is_on_device(&self, index: usize) -> bool {
        self.nodes[index].as_ref().is_some_and(|node| node.level == 0)
    }

    /// Brings a held node back to the device; another one may have to go in its place.
    fn move_to_device(&mut self, index: usize) {
        if !self.is_on_device(index) {
            self.change_level(index, 0);
            if self.used[0] > self.shape.levels[0] {
                self.evict_one(0);
            }
        }
    }

    /// Pushes the node of a level that was idle for longest to the next level, or out. False if all are
    /// held.
    fn evict_one(&mut self, level: usize) -> bool {
        let Some((_, victim)) = self.idle[level].pop_first() else { return false };
        let below = (level + 1..self.shape.levels.len()).find(|below| self.shape.levels[*below] > 0);
        let below =
            below.filter(|below| self.used[*below] < self.shape.levels[*below] || self.evict_one(*below));
        match below {
            Some(below) => {
                self.change_level(victim, below);
                if let Some(node) = &self.nodes[victim] {
                    self.idle[below].insert(node.idle_at, victim);
                }
            }
            None => self.remove(victim),
        }
        true
    }

    fn change_level(&mut self, index: usize, level: usize) {
        let Some(node) = &mut self.nodes[index] else { return };
        let old = std::mem::replace(&mut node.level, level);
        self.used[old] -= 1;
        self.used[level] += 1;
        self.events.push(TrtData::Updated {
            block_hash: node.hash.written(self.shape.algo),
            cache_level: Some(TrtDiff { new_value: level as u32, old_value: old as u32 }),
            priority: None,
        });
    }
}
