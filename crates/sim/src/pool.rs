//! A paged block pool with prefix reuse, as vLLM's `BlockPool`.
//!
//! A request takes over the longest cached prefix (never its whole prompt: the last token is always
//! computed), gets fresh blocks for the rest from the head of the free queue, and holds all of them until it
//! ends. Freed blocks keep their content and go to the tail of the queue, last block first, so that of one
//! prompt the end is evicted before the beginning. A block that is taken while it still has content is an
//! eviction: one [`BlockRemoved`](OwnedEvent::Removed) for that one copy. Nothing is deduplicated: two
//! requests that compute the same block hold two copies. TensorRT-LLM's cache differs in that: see [`Habits`].

use std::collections::BTreeMap;
use std::ops::Range;

use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedRemoved, OwnedStored};
use rustc_hash::FxHashMap;

use crate::cache::{Copies, Keys};
use crate::digest::{Digest, HashForm};

#[cfg(test)]
mod tests;

/// Sizes and identity of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Physical blocks.
    pub blocks: usize,
    /// What the hash chain starts from.
    pub seed: u64,
    /// How hashes are written.
    pub hash_form: HashForm,
    /// Whose pool it is.
    pub habits: Habits,
}

/// Where engines with such a pool differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Habits {
    /// Two requests that compute the same block hold two copies. Stores tell adapter and salt.
    #[default]
    Vllm,
    /// A block is cached once: a second copy is of no use, and not told. Stores tell no adapter and no salt.
    Trtllm,
}

/// Why the cache refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All blocks are held by running requests.
    #[error("not enough free blocks")]
    Full,
    /// A reset while requests hold blocks.
    #[error("blocks are held by running requests")]
    Held,
}

/// The pool.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    blocks: Vec<Block>,
    /// Free blocks by the time of their release: the first is the next to be taken.
    free: BTreeMap<u64, usize>,
    clock: u64,
    cached: FxHashMap<Digest, Vec<usize>>,
    events: Vec<OwnedEvent>,
}

#[derive(Debug, Default)]
struct Block {
    digest: Option<Digest>,
    holders: u32,
    /// Key in the free queue while nobody holds the block.
    freed_at: u64,
}

/// The blocks of one running request. Give it back with [`Pool::finish`].
#[derive(Debug)]
pub struct Table {
    keys: Keys,
    tokens: Vec<u32>,
    blocks: Vec<usize>,
    digests: Vec<Digest>,
    cached_blocks: usize,
}

impl Table {
    /// Prompt blocks that were found in the cache.
    pub fn cached_blocks(&self) -> usize {
        self.cached_blocks
    }

    /// Everything computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(config: PoolConfig) -> Self {
        let blocks: Vec<Block> =
            (0..config.blocks).map(|index| Block { freed_at: index as u64, ..Block::default() }).collect();
        let free = (0..config.blocks).map(|index| (index as u64, index)).collect();
        Self {
            clock: config.blocks as u64,
            config,
            blocks,
            free,
            cached: FxHashMap::default(),
            events: Vec::new(),
        }
    }

    /// Starts a request: reuses what is cached of `prompt`, computes the rest.
    pub fn begin(&mut self, prompt: &[u32], keys: Keys) -> Result<Table, PoolError> {
        let size = self.config.block_size;
        let digests = self.chain(prompt, &keys);
        let reusable = prompt.len().saturating_sub(1) / size;
        let hits: Vec<usize> =
            digests.iter().take(reusable).map_while(|digest| self.lookup(digest)).collect();
        let fresh = prompt.len().div_ceil(size) - hits.len();
        let taken_from_free = hits.iter().filter(|&&block| self.blocks[block].holders == 0).count();
        if self.free.len() - taken_from_free < fresh {
            return Err(PoolError::Full);
        }
        let cached_blocks = hits.len();
        for &block in &hits {
            self.hold(block);
        }
        let mut blocks = hits;
        for _ in 0..fresh {
            blocks.push(self.take()?);
        }
        let mut table = Table { keys, tokens: prompt.to_vec(), blocks, digests, cached_blocks };
        self.commit(&mut table, cached_blocks);
        Ok(table)
    }

    /// Computes one more token of a running request.
    pub fn append(&mut self, table: &mut Table, token: u32) -> Result<(), PoolError> {
        let size = self.config.block_size;
        if table.tokens.len() == table.blocks.len() * size {
            table.blocks.push(self.take()?);
        }
        table.tokens.push(token);
        if table.tokens.len().is_multiple_of(size) {
            let from = table.tokens.len() - size;
            let keys = block_keys(&table.keys, from == 0);
            let digest = Digest::of(self.config.seed, table.digests.last(), &table.tokens[from..], &keys);
            let index = table.digests.len();
            table.digests.push(digest);
            self.commit(table, index);
        }
        Ok(())
    }

    /// Ends a request: its blocks become free and stay cached until they are taken.
    pub fn finish(&mut self, table: &Table) {
        for &block in table.blocks.iter().rev() {
            self.blocks[block].holders -= 1;
            if self.blocks[block].holders == 0 {
                self.clock += 1;
                self.blocks[block].freed_at = self.clock;
                self.free.insert(self.clock, block);
            }
        }
    }

    /// Forgets every cached block; refused while a request holds one.
    pub fn reset(&mut self) -> Result<(), PoolError> {
        if self.free.len() < self.blocks.len() {
            return Err(PoolError::Held);
        }
        self.cached.clear();
        for block in &mut self.blocks {
            block.digest = None;
        }
        self.events.push(OwnedEvent::Cleared);
        Ok(())
    }

    /// The events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<OwnedEvent> {
        std::mem::take(&mut self.events)
    }

    /// What is cached: each hash's 64 bits with its number of copies.
    pub fn resident(&self) -> Copies {
        self.cached.iter().map(|(digest, copies)| (digest.bits(), copies.len())).collect()
    }

    /// How many tokens of `prompt` would be found now.
    pub fn would_hit(&self, prompt: &[u32], keys: &Keys) -> usize {
        let reusable = prompt.len().saturating_sub(1) / self.config.block_size;
        let digests = self.chain(prompt, keys);
        let hits = digests.iter().take(reusable).take_while(|digest| self.lookup(digest).is_some());
        hits.count() * self.config.block_size
    }

    fn chain(&self, tokens: &[u32], keys: &Keys) -> Vec<Digest> {
        let mut digests: Vec<Digest> = Vec::with_capacity(tokens.len() / self.config.block_size);
        for block in tokens.chunks_exact(self.config.block_size) {
            let keys = block_keys(keys, digests.is_empty());
            digests.push(Digest::of(self.config.seed, digests.last(), block, &keys));
        }
        digests
    }

    fn lookup(&self, digest: &Digest) -> Option<usize> {
        self.cached.get(digest).and_then(|copies| copies.first()).copied()
    }

    fn hold(&mut self, block: usize) {
        let entry = &mut self.blocks[block];
        if entry.holders == 0 {
            self.free.remove(&entry.freed_at);
        }
        entry.holders += 1;
    }

    /// Takes the block that was free for longest; what it held is evicted.
    fn take(&mut self) -> Result<usize, PoolError> {
        let (_, block) = self.free.pop_first().ok_or(PoolError::Full)?;
        self.blocks[block].holders = 1;
        if let Some(digest) = self.blocks[block].digest.take() {
            if let Some(copies) = self.cached.get_mut(&digest) {
                copies.retain(|&copy| copy != block);
                if copies.is_empty() {
                    self.cached.remove(&digest);
                }
            }
            self.events.push(OwnedEvent::Removed(OwnedRemoved {
                block_hashes: vec![digest.in_form(self.config.hash_form)],
                medium: Some("GPU".to_owned()),
                group: Some(0),
                ..OwnedRemoved::default()
            }));
        }
        Ok(block)
    }

    /// Makes the full blocks from `first` on findable, and announces them: in one event, unless some are not new.
    fn commit(&mut self, table: &mut Table, first: usize) {
        let once = self.config.habits == Habits::Trtllm;
        let mut start = first;
        for index in first..table.digests.len() {
            if once && self.cached.contains_key(&table.digests[index]) {
                self.announce(table, start..index);
                start = index + 1;
                continue;
            }
            let block = table.blocks[index];
            self.blocks[block].digest = Some(table.digests[index]);
            self.cached.entry(table.digests[index]).or_default().push(block);
        }
        self.announce(table, start..table.digests.len());
    }

    fn announce(&mut self, table: &Table, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let size = self.config.block_size;
        let form = self.config.hash_form;
        let tells_keys = self.config.habits == Habits::Vllm;
        let extra = |index: usize| {
            let keys = block_keys(&table.keys, index == 0);
            let texts = keys.iter().map(|key| OwnedExtraKey::Text((*key).to_owned())).collect::<Vec<_>>();
            if texts.is_empty() { None } else { Some(texts) }
        };
        let lora = table.keys.lora.as_ref().filter(|_| tells_keys);
        self.events.push(OwnedEvent::Stored(OwnedStored {
            block_hashes: table.digests[range.clone()].iter().map(|digest| digest.in_form(form)).collect(),
            parent: range.start.checked_sub(1).map(|parent| table.digests[parent].in_form(form)),
            token_ids: table.tokens[range.start * size..range.end * size].to_vec(),
            block_size: size as u32,
            lora_id: lora.map(|_| 1),
            lora_name: lora.cloned(),
            medium: Some("GPU".to_owned()),
            extra_keys: tells_keys.then(|| range.map(extra).collect()),
            group: Some(0),
            spec_kind: Some("full_attention".to_owned()),
            ..OwnedStored::default()
        }));
    }
}

/// A block's extra keys in vLLM's order: the adapter, then the salt in the first block.
fn block_keys(keys: &Keys, is_first: bool) -> Vec<&str> {
    let salt = keys.salt.as_deref().filter(|_| is_first);
    keys.lora.as_deref().into_iter().chain(salt).collect()
}
