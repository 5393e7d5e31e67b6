//! What listeners hold that count no copies, and what they are sent so that they hold what the engine does.
//!
//! To such a listener a block is there or it is not: the first copy in a tier is announced as stored, the
//! last one as removed. That is what transitions are. But some listeners (Dynamo's indexers among them) let
//! go of whatever follows a block when that is removed, or drop a store whose parent they do not hold. So
//! when a hole is filled, everything behind it that the tier holds is announced again. Announcing a block
//! twice changes nothing.
//!
//! For that the blocks that are held are kept here with their children. Tokens, names and keys are shared
//! with the stream's own state. A block that is not held is kept only while some held block follows it, so
//! there are never more than twice as many as are held.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kvplane_core::Tier;
use kvplane_stream::{Attributes, ExtraKeys, Tokens, Transition, VisibleBlock};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

use crate::encode::{BATCH_BLOCKS, first_keys};

const NONE: u32 = u32::MAX;

/// The blocks that a listener is to hold.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Node {
    hash: u64,
    /// The block before it; `NONE` at the start of a prompt, and where this one is not held.
    parent: u32,
    /// Its children are held, all of them.
    first_child: u32,
    next: u32,
    previous: u32,
    /// The tiers that hold it, one bit each.
    held: u8,
    /// What it is, while it is held.
    content: Option<Content>,
}

#[derive(Debug)]
struct Content {
    tokens: Tokens,
    attributes: Arc<Attributes>,
    extra_keys: Option<ExtraKeys>,
    block_size: u32,
}

fn bit(tier: Tier) -> u8 {
    1 << tier.index()
}

impl Presence {
    /// The events that make a listener hold what the engine holds after these transitions.
    pub(crate) fn apply(&mut self, transitions: &[Transition]) -> Vec<OwnedEvent> {
        let mut events = Vec::new();
        let mut filled = Vec::new();
        for transition in transitions {
            match transition {
                Transition::Stored { tier: Tier::Unknown, .. }
                | Transition::Removed { tier: Tier::Unknown, .. } => {}
                Transition::Stored { tier, parent, blocks } => {
                    for (parent, blocks) in with_tokens(*parent, blocks) {
                        push_stored(*tier, parent, blocks, &mut events);
                        let mut before = parent;
                        for block in blocks {
                            if self.hold(*tier, before, block) {
                                filled.push((*tier, block.hash));
                            }
                            before = Some(block.hash);
                        }
                    }
                }
                Transition::Removed { tier, hashes } => {
                    push_removed(*tier, hashes, &mut events);
                    for &hash in hashes {
                        self.release(*tier, hash);
                    }
                }
                Transition::Cleared => {
                    // Some take a clear for the device's alone.
                    self.remove_colder(&mut events);
                    events.push(OwnedEvent::Cleared);
                    *self = Self::default();
                    filled.clear();
                }
            }
        }
        self.announce_again(&filled, &mut events);
        events
    }

    /// How many blocks are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// A tier holds a block. True if it did not, and blocks follow it that are held.
    fn hold(&mut self, tier: Tier, parent: Option<u64>, visible: &VisibleBlock) -> bool {
        let at = self.node(visible.hash);
        let parent = parent.map_or(NONE, |parent| self.node(parent));
        let node = &self.nodes[at as usize];
        let was_held = node.held & bit(tier) != 0;
        if node.held == 0 {
            self.link(at, parent);
        } else if node.parent != parent {
            let old = node.parent;
            self.unlink(at);
            self.link(at, parent);
            self.drop_if_unused(old);
        }
        let node = &mut self.nodes[at as usize];
        node.held |= bit(tier);
        node.content = Some(Content {
            tokens: visible.tokens.clone(),
            attributes: visible.attributes.clone(),
            extra_keys: visible.extra_keys.clone(),
            block_size: visible.block_size,
        });
        !was_held && node.first_child != NONE
    }

    /// A tier does not hold a block any more.
    fn release(&mut self, tier: Tier, hash: u64) {
        let Some(&at) = self.by_hash.get(&hash) else { return };
        let node = &mut self.nodes[at as usize];
        if node.held & bit(tier) == 0 {
            return;
        }
        node.held &= !bit(tier);
        if node.held == 0 {
            node.content = None;
            let parent = node.parent;
            self.unlink(at);
            self.drop_if_unused(at);
            self.drop_if_unused(parent);
        }
    }

    /// The node of a hash, made if need be.
    fn node(&mut self, hash: u64) -> u32 {
        if let Some(&at) = self.by_hash.get(&hash) {
            return at;
        }
        let node = Node {
            hash,
            parent: NONE,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            held: 0,
            content: None,
        };
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        self.by_hash.insert(hash, at);
        at
    }

    fn link(&mut self, at: u32, parent: u32) {
        if parent == NONE {
            return;
        }
        let first = std::mem::replace(&mut self.nodes[parent as usize].first_child, at);
        let node = &mut self.nodes[at as usize];
        (node.parent, node.previous, node.next) = (parent, NONE, first);
        if first != NONE {
            self.nodes[first as usize].previous = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        let (parent, previous, next) = (node.parent, node.previous, node.next);
        (node.parent, node.previous, node.next) = (NONE, NONE, NONE);
        if parent == NONE {
            return;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous == NONE {
            self.nodes[parent as usize].first_child = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
    }

    /// Lets go of a node that is not held and that nothing held follows.
    fn drop_if_unused(&mut self, at: u32) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        if node.held == 0 && node.first_child == NONE && self.by_hash.get(&node.hash) == Some(&at) {
            self.by_hash.remove(&node.hash);
            self.free.push(at);
        }
    }

    fn remove_colder(&self, events: &mut Vec<OwnedEvent>) {
        for tier in [Tier::Host, Tier::Disk, Tier::Remote] {
            let held = |node: &&Node| node.held & bit(tier) != 0;
            let hashes: Vec<u64> = self.nodes.iter().filter(held).map(|node| node.hash).collect();
            push_removed(tier, &hashes, events);
        }
    }

    /// Announces what follows blocks that fill a hole, as far as their tier holds it: parents before
    /// children, each block once.
    fn announce_again(&self, filled: &[(Tier, u64)], events: &mut Vec<OwnedEvent>) {
        for tier in Tier::ALL {
            let holds = |at: &u32| self.nodes[*at as usize].held & bit(tier) != 0;
            let here = filled.iter().filter(|(of, _)| *of == tier);
            let filled: Vec<u32> =
                here.filter_map(|(_, hash)| self.by_hash.get(hash).copied().filter(holds)).collect();
            // What follows another of them is announced with that, behind the blocks in between.
            let behind = self.behind(&filled, holds);
            let mut announced = HashSet::new();
            for &at in filled.iter().filter(|at| !behind.contains(at)) {
                let mut run: Vec<u32> = Vec::new();
                let mut open: Vec<u32> = self.children(at).filter(holds).collect();
                while let Some(at) = open.pop() {
                    if !announced.insert(at) {
                        continue;
                    }
                    if run.last().is_some_and(|&last| last != self.nodes[at as usize].parent) {
                        self.push_run(tier, &std::mem::take(&mut run), events);
                    }
                    run.push(at);
                    open.extend(self.children(at).filter(holds));
                }
                self.push_run(tier, &run, events);
            }
        }
    }

    /// All blocks that follow one of these.
    fn behind(&self, blocks: &[u32], holds: impl Fn(&u32) -> bool) -> HashSet<u32> {
        let mut behind = HashSet::new();
        let mut open: Vec<u32> = Vec::new();
        for &at in blocks {
            open.extend(self.children(at).filter(&holds));
            while let Some(at) = open.pop() {
                if behind.insert(at) {
                    open.extend(self.children(at).filter(&holds));
                }
            }
        }
        behind
    }

    fn children(&self, at: u32) -> impl Iterator<Item = u32> {
        let first = Some(self.nodes[at as usize].first_child).filter(|&child| child != NONE);
        std::iter::successors(first, |&child| {
            Some(self.nodes[child as usize].next).filter(|&next| next != NONE)
        })
    }

    /// Stores of blocks that follow each other.
    fn push_run(&self, tier: Tier, run: &[u32], events: &mut Vec<OwnedEvent>) {
        let Some(&first) = run.first() else { return };
        let parent = self.nodes.get(self.nodes[first as usize].parent as usize).map(|parent| parent.hash);
        let blocks = run.iter().filter_map(|&at| {
            let node = &self.nodes[at as usize];
            let content = node.content.as_ref()?;
            Some(Part {
                hash: node.hash,
                tokens: &content.tokens,
                attributes: &content.attributes,
                extra_keys: content.extra_keys.as_ref(),
                block_size: content.block_size,
            })
        });
        push_parts(tier, parent, blocks, events);
    }
}

/// One block of a store.
struct Part<'p> {
    hash: u64,
    tokens: &'p Tokens,
    attributes: &'p Arc<Attributes>,
    extra_keys: Option<&'p ExtraKeys>,
    block_size: u32,
}

/// The events that announce a whole state, without the clear before it.
pub(crate) fn state_events(transitions: &[Transition]) -> Vec<OwnedEvent> {
    let mut events = Vec::new();
    for transition in transitions {
        match transition {
            Transition::Stored { tier, parent, blocks } => {
                for (parent, blocks) in with_tokens(*parent, blocks) {
                    push_stored(*tier, parent, blocks, &mut events);
                }
            }
            Transition::Removed { tier, hashes } => push_removed(*tier, hashes, &mut events),
            Transition::Cleared => events.push(OwnedEvent::Cleared),
        }
    }
    events
}

/// The blocks of a store whose tokens are known, as runs with the block before each. Of the others listeners
/// cannot be published: a peer named them by their content.
fn with_tokens(
    parent: Option<u64>,
    blocks: &[VisibleBlock],
) -> impl Iterator<Item = (Option<u64>, &[VisibleBlock])> {
    let mut before = parent;
    let runs = blocks.chunk_by(|a, b| a.tokens.is_empty() == b.tokens.is_empty());
    runs.filter_map(move |run| {
        let parent = std::mem::replace(&mut before, run.last().map(|block| block.hash));
        run.first().filter(|block| !block.tokens.is_empty()).map(|_| (parent, run))
    })
}

fn push_stored(tier: Tier, parent: Option<u64>, blocks: &[VisibleBlock], events: &mut Vec<OwnedEvent>) {
    let parts = blocks.iter().map(|block| Part {
        hash: block.hash,
        tokens: &block.tokens,
        attributes: &block.attributes,
        extra_keys: block.extra_keys.as_ref(),
        block_size: block.block_size,
    });
    push_parts(tier, parent, parts, events);
}

/// Stores of blocks of which each is the parent of the next: as few as their names allow, none too large.
fn push_parts<'p>(
    tier: Tier,
    mut parent: Option<u64>,
    parts: impl Iterator<Item = Part<'p>>,
    events: &mut Vec<OwnedEvent>,
) {
    let mut open: Option<(OwnedStored, &Arc<Attributes>)> = None;
    for part in parts {
        let fits = open.as_ref().is_some_and(|(stored, attributes)| {
            stored.block_hashes.len() < BATCH_BLOCKS
                && stored.block_size == part.block_size
                && (Arc::ptr_eq(attributes, part.attributes) || ***attributes == **part.attributes)
        });
        if !fits {
            events.extend(open.take().map(|(stored, _)| OwnedEvent::Stored(stored)));
        }
        let (stored, _) = open
            .get_or_insert_with(|| (begin(tier, parent, part.attributes, part.block_size), part.attributes));
        let keys = first_keys(parent.is_none(), part.extra_keys, part.attributes);
        stored.block_hashes.push(OwnedHash::Unsigned(part.hash));
        stored.token_ids.extend(part.tokens.iter());
        stored.extra_keys.get_or_insert_default().push(keys);
        parent = Some(part.hash);
    }
    events.extend(open.map(|(stored, _)| OwnedEvent::Stored(stored)));
}

fn begin(tier: Tier, parent: Option<u64>, attributes: &Attributes, block_size: u32) -> OwnedStored {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    OwnedStored {
        parent: parent.map(OwnedHash::Unsigned),
        block_size,
        lora_id: attributes.lora_id,
        lora_name: text(&attributes.lora_name),
        cache_salt: text(&attributes.cache_salt),
        bigrams: attributes.bigrams,
        medium: Some(medium(tier).to_owned()),
        ..OwnedStored::default()
    }
}

fn push_removed(tier: Tier, hashes: &[u64], events: &mut Vec<OwnedEvent>) {
    if !hashes.is_empty() {
        events.push(OwnedEvent::Removed(OwnedRemoved {
            block_hashes: hashes.iter().copied().map(OwnedHash::Unsigned).collect(),
            medium: Some(medium(tier).to_owned()),
            ..OwnedRemoved::default()
        }));
    }
}

/// The word by which every listener knows a tier.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::Remote | Tier::Unknown => "EXTERNAL",
    }
}

#[cfg(test)]
mod tests;
