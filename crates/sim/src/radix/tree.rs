//! A radix tree over pages: a node is a run of pages without a branch.
//!
//! Prompts of different adapters and salts have roots of their own. A node lies on the device, on the host or on
//! both, with all its pages; what lies on the device has its whole path there, because leaves go first.

use rustc_hash::FxHashMap;

use super::page_hash::Digest;
use crate::cache::Copies;
use crate::keys::Keys;

/// One page.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// Its token ids; both of each pair.
    pub(super) ids: Vec<u32>,
    pub(super) digest: Digest,
    /// The 64 bits by which events know it.
    pub(super) bits: u64,
}

/// Whether a node has a copy on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Host {
    #[default]
    Absent,
    /// On its way.
    Writing,
    Held,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) parent: Option<usize>,
    /// By the ids of their first page.
    children: FxHashMap<Vec<u32>, usize>,
    pub(super) pages: Vec<Page>,
    /// Running requests that need it.
    pub(super) holders: u32,
    pub(super) used_at: u64,
    pub(super) on_device: bool,
    pub(super) host: Host,
}

/// The nodes. A node keeps its number until it is deleted.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    roots: FxHashMap<Keys, usize>,
}

impl Node {
    fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

impl Tree {
    pub(super) fn node(&self, id: usize) -> &Node {
        &self.nodes[id]
    }

    pub(super) fn node_mut(&mut self, id: usize) -> &mut Node {
        &mut self.nodes[id]
    }

    /// The root of a namespace; made when it is first asked for.
    pub(super) fn root(&mut self, keys: &Keys) -> usize {
        if let Some(root) = self.roots.get(keys) {
            return *root;
        }
        let root = self.add(Node { on_device: true, host: Host::Held, ..Node::default() });
        self.roots.insert(keys.clone(), root);
        root
    }

    pub(super) fn is_root(&self, id: usize) -> bool {
        self.nodes[id].is_root()
    }

    /// The nodes that hold `pages`, in order, as far as there are any. A node of which only a part is wanted is
    /// split; the number of the part behind it stays, and `split` is called with the new part before it.
    pub(super) fn path(
        &mut self,
        keys: &Keys,
        pages: &[Vec<u32>],
        mut split: impl FnMut(usize, usize),
    ) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = self.root(keys);
        let mut rest = pages;
        while let Some(&child) = rest.first().and_then(|first| self.nodes[at].children.get(first)) {
            let common = common(&self.nodes[child].pages, rest);
            at = if common < self.nodes[child].pages.len() {
                let head = self.split(child, common);
                split(head, child);
                head
            } else {
                child
            };
            path.push(at);
            rest = &rest[common..];
        }
        path
    }

    /// How many of `pages` are held, on the device or on the host.
    pub(super) fn held(&self, keys: &Keys, pages: &[Vec<u32>]) -> usize {
        let mut rest = pages;
        let mut at = self.roots.get(keys).copied();
        while let Some(id) = at {
            let child = rest.first().and_then(|first| self.nodes[id].children.get(first)).copied();
            rest = child.map_or(rest, |child| &rest[common(&self.nodes[child].pages, rest)..]);
            at = child;
        }
        pages.len() - rest.len()
    }

    /// Adds a node on the device behind another.
    pub(super) fn append(&mut self, parent: usize, pages: Vec<Page>, used_at: u64, host: Host) -> usize {
        let first = pages.first().map(|page| page.ids.clone()).unwrap_or_default();
        let node = Node { parent: Some(parent), pages, used_at, on_device: true, host, ..Node::default() };
        let id = self.add(node);
        self.nodes[parent].children.insert(first, id);
        id
    }

    /// Removes a leaf and returns its pages.
    pub(super) fn delete(&mut self, id: usize) -> Vec<Page> {
        let node = std::mem::take(&mut self.nodes[id]);
        if let (Some(parent), Some(first)) = (node.parent, node.pages.first()) {
            self.nodes[parent].children.remove(&first.ids);
        }
        self.free.push(id);
        node.pages
    }

    /// Adds to, or takes from, the holders of a node and of all before it.
    pub(super) fn hold(&mut self, id: usize, change: i32) {
        let mut at = Some(id);
        while let Some(id) = at {
            let node = &mut self.nodes[id];
            node.holders = node.holders.saturating_add_signed(change);
            at = node.parent;
        }
    }

    /// Pages on the device that running requests need.
    pub(super) fn held_pages(&self) -> usize {
        let held = self.nodes.iter().filter(|node| node.on_device && node.holders > 0);
        held.map(|node| node.pages.len()).sum()
    }

    /// The namespace that a node is in.
    pub(super) fn keys_of(&self, id: usize) -> Keys {
        let mut root = id;
        while let Some(parent) = self.nodes[root].parent {
            root = parent;
        }
        self.roots.iter().find(|(_, id)| **id == root).map(|(keys, _)| keys.clone()).unwrap_or_default()
    }

    /// The last page before a node.
    pub(super) fn page_before(&self, id: usize) -> Option<&Page> {
        self.nodes[id].parent.and_then(|parent| self.nodes[parent].pages.last())
    }

    /// The node that was not used for longest, of those on the device that nothing on the device builds on.
    pub(super) fn device_leaf(&self) -> Option<usize> {
        self.oldest(|tree, node| {
            node.on_device && !node.children.values().any(|&child| tree.nodes[child].on_device)
        })
    }

    /// The same of nodes that lie on the host alone.
    pub(super) fn host_leaf(&self) -> Option<usize> {
        self.oldest(|_, node| !node.on_device && node.host == Host::Held && node.children.is_empty())
    }

    /// Everything on the device, or on the host, by the bits of its hashes.
    pub(super) fn copies(&self, is_there: impl Fn(&Node) -> bool) -> Copies {
        let mut copies = Copies::new();
        for page in self.nodes.iter().filter(|node| is_there(node)).flat_map(|node| &node.pages) {
            *copies.entry(page.bits).or_default() += 1;
        }
        copies
    }

    /// Every node's pages, those of roots too, which have none.
    pub(super) fn all_pages(&self) -> impl Iterator<Item = &[Page]> {
        self.nodes.iter().map(|node| &node.pages[..])
    }

    fn oldest(&self, is_candidate: impl Fn(&Self, &Node) -> bool) -> Option<usize> {
        let nodes = self.nodes.iter().enumerate();
        let candidates =
            nodes.filter(|(_, node)| !node.is_root() && node.holders == 0 && is_candidate(self, node));
        candidates.min_by_key(|(id, node)| (node.used_at, *id)).map(|(id, _)| id)
    }

    /// Cuts a node after `count` pages. The front part is a new node.
    fn split(&mut self, id: usize, count: usize) -> usize {
        let node = &mut self.nodes[id];
        let behind = node.pages.split_off(count);
        let front = Node {
            parent: node.parent,
            children: FxHashMap::default(),
            pages: std::mem::replace(&mut node.pages, behind),
            holders: node.holders,
            used_at: node.used_at,
            on_device: node.on_device,
            host: node.host,
        };
        let (parent, first) = (front.parent, front.pages[0].ids.clone());
        let second = self.nodes[id].pages[0].ids.clone();
        let head = self.add(front);
        if let Some(parent) = parent {
            self.nodes[parent].children.insert(first, head);
        }
        self.nodes[head].children.insert(second, id);
        self.nodes[id].parent = Some(head);
        head
    }

    fn add(&mut self, node: Node) -> usize {
        let Some(id) = self.free.pop() else {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        };
        self.nodes[id] = node;
        id
    }
}

/// How many of `pages` a node begins with.
fn common(node: &[Page], pages: &[Vec<u32>]) -> usize {
    node.iter().zip(pages).take_while(|(page, ids)| page.ids == **ids).count()
}
