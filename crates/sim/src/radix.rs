//! A radix cache with pages, as `SGLang`'s, and its host tier (`HiCache`).
//!
//! A prompt's pages are in the tree as soon as they are computed, generated ones when their request ends. Nothing is
//! held twice: a request that computed what another one stored meanwhile gives its own copy up. Where room is
//! needed, the leaf that was not used for longest goes, with all its pages. With a host tier, every new page is
//! written through to it, which is published a step later; a page that then goes from the device is loaded back when
//! it is asked for again.

mod events;
mod page_hash;
mod tree;

#[cfg(test)]
mod tests;

use kvplane_wire::OwnedEvent;

pub use self::events::EventStyle;
use self::events::{Medium, PendingEvents};
pub use self::page_hash::PageHash;
use self::tree::{Host, Page, Tree};
use crate::cache::{Copies, Moment};
use crate::keys::Keys;
use crate::pool::PoolError;

/// Generated tokens between two looks at the events.
const DECODES_PER_BATCH: u32 = 40;

/// Sizes and habits of a tree.
#[derive(Debug, Clone)]
pub struct RadixConfig {
    /// Tokens, or pairs of them, per page.
    pub page_size: usize,
    /// Pages on the device.
    pub pages: usize,
    /// Pages on the host; 0 for no such tier.
    pub host_pages: usize,
    /// How events are made.
    pub style: EventStyle,
}

/// The cache.
#[derive(Debug)]
pub struct Radix {
    config: RadixConfig,
    tree: Tree,
    pending: PendingEvents,
    clock: u64,
    /// Device pages of the tree.
    cached: usize,
    /// Device pages that running requests have beside the tree.
    private: usize,
    /// Host pages of the tree.
    on_host: usize,
    running: usize,
    decodes: u32,
    /// Nodes on their way to the host, oldest first.
    writing: Vec<usize>,
}

/// One running request. Give it back with [`Radix::finish`].
#[derive(Debug)]
pub struct Request {
    keys: Keys,
    tokens: Vec<u32>,
    cached_tokens: usize,
    /// The last node that it holds.
    node: usize,
    /// Device pages that it has, in the tree and beside it.
    pages: usize,
    /// Those beside it.
    private: usize,
}

impl Request {
    /// Prompt tokens that were found in the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Everything computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Radix {
    /// An empty tree, which is what it tells first.
    pub fn new(config: RadixConfig) -> Self {
        let mut pending = PendingEvents::new(config.style);
        if config.style.clears {
            pending.cleared();
        }
        Self {
            config,
            tree: Tree::default(),
            pending,
            clock: 0,
            cached: 0,
            private: 0,
            on_host: 0,
            running: 0,
            decodes: 0,
            writing: Vec::new(),
        }
    }

    /// Starts a request: reuses what is cached of `prompt`, computes the rest.
    pub fn begin(&mut self, prompt: &[u32], keys: Keys) -> Result<Request, PoolError> {
        self.acknowledge_writes();
        let pages = self.cut(prompt);
        let path = self.path(&keys, &pages[..self.reusable(prompt).min(pages.len())]);
        let mut node = self.tree.root(&keys);
        // All of it is held before anything makes room.
        let end = path.last().copied().unwrap_or(node);
        self.tree.hold(end, 1);
        let mut cached_pages = 0;
        for step in path {
            if self.load_back(step, &keys).is_err() {
                break;
            }
            node = step;
            cached_pages += self.tree.node(step).pages.len();
        }
        self.tree.hold(node, 1);
        self.tree.hold(end, -1);
        let total = prompt.len().div_ceil(self.config.page_size);
        if let Err(full) = self.make_room(total - cached_pages) {
            self.tree.hold(node, -1);
            return Err(full);
        }
        let last = self.insert(&keys, &pages);
        self.tree.hold(last, 1);
        self.tree.hold(node, -1);
        let private = total - pages.len();
        self.private += private;
        self.running += 1;
        let cached_tokens = cached_pages * self.config.page_size;
        Ok(Request { keys, tokens: prompt.to_vec(), cached_tokens, node: last, pages: total, private })
    }

    /// Computes one more token of a running request.
    pub fn append(&mut self, request: &mut Request, token: u32) -> Result<(), PoolError> {
        self.acknowledge_writes();
        self.decodes += 1;
        if request.tokens.len() == request.pages * self.config.page_size {
            self.make_room(1)?;
            self.private += 1;
            request.pages += 1;
            request.private += 1;
        }
        request.tokens.push(token);
        Ok(())
    }

    /// Ends a request: what it computed goes into the tree.
    pub fn finish(&mut self, request: &Request) {
        self.private -= request.private;
        let pages = self.cut(&request.tokens);
        self.insert(&request.keys, &pages);
        self.tree.hold(request.node, -1);
        self.running -= 1;
    }

    /// Forgets every page on every tier; refused while a request runs.
    pub fn reset(&mut self) -> Result<(), PoolError> {
        if self.running > 0 {
            return Err(PoolError::Held);
        }
        if self.config.style.clears {
            self.pending.cleared();
        } else {
            let nodes = self.tree.all_pages().filter(|pages| !pages.is_empty());
            nodes.for_each(|pages| self.pending.removed(pages, Medium::Device));
        }
        self.tree = Tree::default();
        self.writing.clear();
        (self.cached, self.on_host) = (0, 0);
        Ok(())
    }

    /// The events since the last call, in order, if they leave at this moment.
    pub(crate) fn take_events(&mut self, moment: Moment) -> Vec<OwnedEvent> {
        if moment == Moment::Decode && !self.decodes.is_multiple_of(DECODES_PER_BATCH) {
            return Vec::new();
        }
        self.pending.take()
    }

    /// What the device holds: each hash's 64 bits, and how many pages have it.
    pub fn resident(&self) -> Copies {
        self.tree.copies(|node| node.on_device)
    }

    /// What the host holds.
    pub fn resident_on_host(&self) -> Copies {
        self.tree.copies(|node| node.host == Host::Held)
    }

    /// How many tokens of `prompt` would be found now, on either tier.
    pub fn would_hit(&self, prompt: &[u32], keys: &Keys) -> usize {
        let pages = self.cut(prompt);
        let reusable = self.reusable(prompt).min(pages.len());
        self.tree.held(keys, &pages[..reusable]) * self.config.page_size
    }

    /// The full pages of a text.
    fn cut(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        if self.config.style.pairs {
            let pairs: Vec<u32> = tokens.windows(2).flatten().copied().collect();
            pairs.chunks_exact(2 * self.config.page_size).map(<[u32]>::to_vec).collect()
        } else {
            tokens.chunks_exact(self.config.page_size).map(<[u32]>::to_vec).collect()
        }
    }

    /// How many pages of a prompt may be taken from the cache: its last token is always computed.
    fn reusable(&self, prompt: &[u32]) -> usize {
        let unusable = if self.config.style.pairs { 2 } else { 1 };
        prompt.len().saturating_sub(unusable) / self.config.page_size
    }

    /// The nodes of a text as far as there are any, used now.
    fn path(&mut self, keys: &Keys, pages: &[Vec<u32>]) -> Vec<usize> {
        let writing = &mut self.writing;
        let path = self.tree.path(keys, pages, |front, behind| {
            // Both parts are on their way then, the front one first.
            if let Some(place) = writing.iter().position(|id| *id == behind) {
                writing.insert(place, front);
            }
        });
        self.clock += 1;
        for id in &path {
            self.tree.node_mut(*id).used_at = self.clock;
        }
        path
    }

    /// Puts computed pages into the tree, for which there is room; the last node of the text.
    fn insert(&mut self, keys: &Keys, pages: &[Vec<u32>]) -> usize {
        let path = self.path(keys, pages);
        let mut known = 0;
        for id in &path {
            known += self.tree.node(*id).pages.len();
            // Computed again although the host has it.
            if !self.tree.node(*id).on_device {
                self.put_on_device(*id, keys);
            }
        }
        let last = path.last().copied().unwrap_or_else(|| self.tree.root(keys));
        let Some(new) = pages.get(known..).filter(|new| !new.is_empty()) else { return last };
        let style = self.config.style;
        let seed = style.hash.seed(keys);
        let mut before = self.tree.node(last).pages.last().map(|page| page.digest).or(seed);
        let page = |ids: &Vec<u32>| {
            let digest = style.hash.page(before.as_ref(), ids);
            before = Some(digest);
            Page { ids: ids.clone(), digest, bits: style.hash.bits(&digest, ids, style.pairs, keys) }
        };
        let new: Vec<Page> = new.iter().map(page).collect();
        self.cached += new.len();
        self.pending.stored(&new, self.tree.node(last).pages.last(), Medium::Device, keys);
        let host = if self.config.host_pages > 0 { Host::Writing } else { Host::Absent };
        let id = self.tree.append(last, new, self.clock, host);
        if host == Host::Writing {
            self.writing.push(id);
        }
        id
    }

    /// Makes sure that a node, which is held, is on the device.
    fn load_back(&mut self, id: usize, keys: &Keys) -> Result<(), PoolError> {
        if !self.tree.node(id).on_device {
            self.make_room(self.tree.node(id).pages.len())?;
            self.put_on_device(id, keys);
        }
        Ok(())
    }

    fn put_on_device(&mut self, id: usize, keys: &Keys) {
        self.tree.node_mut(id).on_device = true;
        let pages = &self.tree.node(id).pages;
        self.cached += pages.len();
        self.pending.stored(pages, self.tree.page_before(id), Medium::Device, keys);
    }

    /// Evicts from the device until this many pages are free; nothing if that cannot be.
    fn make_room(&mut self, pages: usize) -> Result<(), PoolError> {
        if self.tree.held_pages() + self.private + pages > self.config.pages {
            return Err(PoolError::Full);
        }
        while self.config.pages - self.cached - self.private < pages {
            self.acknowledge_writes();
            let id = self.tree.device_leaf().ok_or(PoolError::Full)?;
            self.cached -= self.tree.node(id).pages.len();
            self.pending.removed(&self.tree.node(id).pages, Medium::Device);
            if self.tree.node(id).host == Host::Held {
                self.tree.node_mut(id).on_device = false;
            } else {
                self.tree.delete(id);
            }
        }
        Ok(())
    }

    /// What was on its way to the host has arrived, or found no room there.
    fn acknowledge_writes(&mut self) {
        for id in std::mem::take(&mut self.writing) {
            let count = self.tree.node(id).pages.len();
            let follows =
                self.tree.node(id).parent.is_some_and(|parent| {
                    self.tree.is_root(parent) || self.tree.node(parent).host == Host::Held
                });
            if !follows || !self.make_host_room(count) {
                self.tree.node_mut(id).host = Host::Absent;
                continue;
            }
            self.on_host += count;
            self.tree.node_mut(id).host = Host::Held;
            let keys = self.tree.keys_of(id);
            self.pending.stored(&self.tree.node(id).pages, self.tree.page_before(id), Medium::Host, &keys);
        }
    }

    fn make_host_room(&mut self, pages: usize) -> bool {
        while self.config.host_pages - self.on_host < pages {
            let Some(id) = self.tree.host_leaf() else { return false };
            let gone = self.tree.delete(id);
            self.on_host -= gone.len();
            self.pending.removed(&gone, Medium::Host);
        }
        true
    }
}
