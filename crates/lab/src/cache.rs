//! A prefix cache of blocks, least recently used first out. Blocks of running requests are pinned.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

/// What all engines of a fleet hold together, and never let go of: for bounds.
pub(crate) type Pool = Rc<RefCell<FxHashSet<u64>>>;

#[derive(Debug, Clone, Copy)]
struct Entry {
    pins: u32,
    stamp: u64,
    /// Announced: the router knows of it.
    visible: bool,
}

#[derive(Debug)]
pub(crate) struct Cache {
    blocks: FxHashMap<u64, Entry>,
    /// By age; an entry whose stamp is another was used again since.
    order: VecDeque<(u64, u64)>,
    /// Blocks that are nobody else's: not full yet, or being generated.
    private: u64,
    pinned: u64,
    capacity: u64,
    clock: u64,
    /// In the place of all of the above.
    pool: Option<Pool>,
}

impl Cache {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            blocks: FxHashMap::default(),
            order: VecDeque::new(),
            private: 0,
            pinned: 0,
            capacity,
            clock: 0,
            pool: None,
        }
    }

    /// A cache of everything that is computed anywhere.
    pub(crate) fn pooled(pool: Pool) -> Self {
        Self { pool: Some(pool), ..Self::new(u64::MAX) }
    }

    /// Blocks for which there is room.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The part that is in use by requests.
    pub(crate) fn usage(&self) -> f64 {
        (self.pinned + self.private) as f64 / self.capacity as f64
    }

    /// Blocks from the first on that are there.
    pub(crate) fn found(&self, blocks: &[u64]) -> usize {
        if let Some(pool) = &self.pool {
            let pool = pool.borrow();
            return blocks.iter().take_while(|block| pool.contains(block)).count();
        }
        blocks.iter().take_while(|block| self.blocks.contains_key(block)).count()
    }

    /// The same, as far as the router knows.
    pub(crate) fn announced(&self, blocks: &[u64]) -> usize {
        if self.pool.is_some() {
            return self.found(blocks);
        }
        let is_visible = |block: &&u64| self.blocks.get(block).is_some_and(|entry| entry.visible);
        blocks.iter().take_while(is_visible).count()
    }

    /// Takes room for a request: its blocks, found or new, and private ones. Says how many were found, or
    /// `None` if there is no room.
    pub(crate) fn admit(&mut self, blocks: &[u64], private: u64) -> Option<usize> {
        let found = self.found(blocks);
        if let Some(pool) = &self.pool {
            pool.borrow_mut().extend(blocks);
            return Some(found);
        }
        let pinned_already = blocks[..found].iter().filter(|block| self.is_pinned(**block)).count() as u64;
        let needed = blocks.len() as u64 - pinned_already + private;
        if self.pinned + self.private + needed > self.capacity {
            return None;
        }
        for block in &blocks[..found] {
            self.pin(*block);
        }
        let new = (blocks.len() - found) as u64 + private;
        while self.blocks.len() as u64 + self.private + new > self.capacity {
            if !self.evict() {
                break;
            }
        }
        for block in &blocks[found..] {
            self.pin(*block);
        }
        self.private += private;
        Some(found)
    }

    fn is_pinned(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|entry| entry.pins > 0)
    }

    fn pin(&mut self, block: u64) {
        let entry = self.blocks.entry(block).or_insert(Entry { pins: 0, stamp: 0, visible: false });
        if entry.pins == 0 {
            self.pinned += 1;
        }
        entry.pins += 1;
    }

    pub(crate) fn announce(&mut self, blocks: &[u64]) {
        for block in blocks {
            if let Some(entry) = self.blocks.get_mut(block) {
                entry.visible = true;
            }
        }
    }

    /// A request is over: its blocks may go, the last first, and what it filled stays as cached as the rest.
    pub(crate) fn release(&mut self, blocks: &[u64], private: u64, filled: &[u64]) {
        if let Some(pool) = &self.pool {
            pool.borrow_mut().extend(filled);
            return;
        }
        self.private -= private;
        for block in filled.iter().rev() {
            let room = (self.blocks.len() as u64 + self.private) < self.capacity;
            if room && !self.blocks.contains_key(block) {
                self.blocks.insert(*block, Entry { pins: 0, stamp: 0, visible: true });
            }
            self.touch(*block);
        }
        for block in blocks.iter().rev() {
            if let Some(entry) = self.blocks.get_mut(block) {
                entry.pins -= 1;
                if entry.pins == 0 {
                    self.pinned -= 1;
                    self.touch(*block);
                }
            }
        }
    }

    fn touch(&mut self, block: u64) {
        self.clock += 1;
        if let Some(entry) = self.blocks.get_mut(&block) {
            entry.stamp = self.clock;
            self.order.push_back((self.clock, block));
        }
    }

    fn evict(&mut self) -> bool {
        while let Some((stamp, block)) = self.order.pop_front() {
            if self.blocks.get(&block).is_some_and(|entry| entry.pins == 0 && entry.stamp == stamp) {
                self.blocks.remove(&block);
                return true;
            }
        }
        false
    }

    pub(crate) fn clear(&mut self) {
        if self.pool.is_none() {
            *self = Self::new(self.capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first_and_never_what_is_pinned() {
        let mut cache = Cache::new(6);
        assert_eq!(cache.admit(&[1, 2], 1), Some(0));
        assert_eq!((cache.announced(&[1, 2]), cache.found(&[1, 2])), (0, 2));
        cache.announce(&[1, 2]);
        assert_eq!(cache.admit(&[1, 3], 0), Some(1));
        assert_eq!(cache.admit(&[7, 8, 9], 0), None, "no room beside what is pinned");
        cache.release(&[1, 2], 1, &[4]);
        cache.release(&[1, 3], 0, &[]);
        assert_eq!(cache.announced(&[1, 2, 4]), 3);
        // 4, 2, 3, 1 by age: the deepest of each request first.
        assert_eq!(cache.admit(&[5, 6, 7, 8], 0), Some(0));
        assert_eq!((cache.found(&[1]), cache.found(&[2]), cache.found(&[4])), (1, 0, 0));
    }
}
