//! The physical blocks of a pool, whichever group they serve.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::PoolError;
use crate::cache::Copies;
use crate::digest::Digest;

/// What a block holds: its hash, in a group.
pub(super) type Name = (usize, Digest);

/// All blocks. Those that nobody holds keep their content until they are taken.
#[derive(Debug)]
pub(super) struct Blocks {
    all: Vec<Block>,
    /// Free blocks by the time of their release, empty ones first: the first is the next to be taken.
    free: BTreeMap<i64, usize>,
    clock: i64,
    cached: FxHashMap<Name, Vec<usize>>,
}

#[derive(Debug, Default)]
struct Block {
    name: Option<Name>,
    holders: u32,
    /// Key in the free queue while nobody holds the block.
    freed_at: i64,
}

impl Blocks {
    pub(super) fn new(count: usize) -> Self {
        let block = |index: usize| Block { freed_at: index as i64, ..Block::default() };
        Self {
            all: (0..count).map(block).collect(),
            free: (0..count).map(|index| (index as i64, index)).collect(),
            clock: count as i64,
            cached: FxHashMap::default(),
        }
    }

    /// How many could be taken, if those of `wanted` that are free were held first.
    pub(super) fn free_besides(&self, wanted: impl Iterator<Item = usize>) -> usize {
        self.free.len() - wanted.filter(|block| self.all[*block].holders == 0).count()
    }

    /// The block that was stored first under a name.
    pub(super) fn find(&self, name: &Name) -> Option<usize> {
        self.cached.get(name).and_then(|copies| copies.first()).copied()
    }

    pub(super) fn hold(&mut self, block: usize) {
        let entry = &mut self.all[block];
        if entry.holders == 0 {
            self.free.remove(&entry.freed_at);
        }
        entry.holders += 1;
    }

    pub(super) fn release(&mut self, block: usize) {
        let entry = &mut self.all[block];
        entry.holders -= 1;
        if entry.holders == 0 {
            self.clock += 1;
            // What holds nothing is taken before anything else.
            entry.freed_at = if entry.name.is_some() { self.clock } else { -self.clock };
            self.free.insert(entry.freed_at, block);
        }
    }

    /// Takes all blocks from their holders.
    pub(super) fn release_all(&mut self) {
        for block in 0..self.all.len() {
            if self.all[block].holders > 0 {
                self.all[block].holders = 1;
                self.release(block);
            }
        }
    }

    /// Takes the block that is next, and says what it held until now.
    pub(super) fn take(&mut self) -> Result<(usize, Option<Name>), PoolError> {
        let (_, block) = self.free.pop_first().ok_or(PoolError::Full)?;
        self.all[block].holders = 1;
        Ok((block, self.forget(block)))
    }

    /// Makes a block findable.
    pub(super) fn name(&mut self, block: usize, name: Name) {
        self.all[block].name = Some(name);
        self.cached.entry(name).or_default().push(block);
    }

    /// Makes a block unfindable, and says what it was found by.
    pub(super) fn forget(&mut self, block: usize) -> Option<Name> {
        let name = self.all[block].name.take()?;
        if let Some(copies) = self.cached.get_mut(&name) {
            copies.retain(|copy| *copy != block);
            if copies.is_empty() {
                self.cached.remove(&name);
            }
        }
        Some(name)
    }

    /// Makes all blocks unfindable; refused while one is held.
    pub(super) fn forget_all(&mut self) -> Result<(), PoolError> {
        if self.free.len() < self.all.len() {
            return Err(PoolError::Held);
        }
        self.cached.clear();
        self.all.iter_mut().for_each(|block| block.name = None);
        Ok(())
    }

    /// What a group has: each hash's 64 bits with its number of copies.
    pub(super) fn copies(&self, group: usize) -> Copies {
        let of_group = self.cached.iter().filter(|((of, _), _)| *of == group);
        of_group.map(|((_, digest), copies)| (digest.bits(), copies.len())).collect()
    }
}
