//! A paged block pool with prefix reuse, as vLLM's.
//!
//! A request takes over the longest cached prefix (never its whole prompt: the last token is always
//! computed), gets fresh blocks for the rest from the head of the free queue, and holds them until it
//! ends. Freed blocks keep their content and go to the tail of the queue, last block first, so that of one
//! prompt the end is evicted before the beginning; those without content go to its head. A block that is
//! taken while it still has content is an eviction: one [`BlockRemoved`](OwnedEvent::Removed) for that one
//! copy. Nothing is deduplicated: two requests that compute the same block hold two copies. TensorRT-LLM's
//! cache differs in that: see [`Habits`].
//!
//! A hybrid model has several groups of layers, and all share the blocks: a block serves one group at a time.
//!
//! ```text
//!  prompt            |  0 |  1 |  2 |  3 |  4 |  5 |  6 | .   hashes: one chain for all groups
//!  full              | F0 | F1 | F2 | F3 | F4 | F5 | F6 | F   every block
//!  sliding window    |    |    |    |    | S4 | S5 | S6 | S   the last few; those before were given up
//!  mamba             |    |    |    |    |    |    | M6 | M   the state at a boundary, and the one that runs
//! ```
//!
//! A request goes on from the longest prefix whose end every group can go on from: see [`Pool::would_hit`].
//! Windows are cached where a later request may go on, and nowhere else: see
//! [`PoolConfig::keeps_tails_only`].

mod announce;
mod blocks;
mod commit;
mod group;
mod host;
mod lookup;
mod shelf;

#[cfg(test)]
mod tests;

use kvplane_wire::OwnedEvent;
use serde::Deserialize;

use self::blocks::Blocks;
use self::group::Group;
pub(crate) use self::group::Groups;
pub use self::group::{GroupKind, GroupSpec, UnknownGroup};
use self::host::Host;
pub use self::host::{HostConfig, HostForm};
use crate::cache::GroupState;
use crate::digest::{Digest, HashForm};
use crate::keys::Keys;

/// Sizes and identity of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Tokens per block, for groups that have no size of their own.
    pub block_size: usize,
    /// The groups, in the order in which they are published; one that keeps everything without.
    pub groups: Vec<GroupSpec>,
    /// Physical blocks, for all groups together.
    pub blocks: usize,
    /// What the hash chain starts from.
    pub seed: u64,
    /// How hashes are written.
    pub hash_form: HashForm,
    /// Whose pool it is.
    pub habits: Habits,
    /// The last block that is found is computed again, as with EAGLE.
    pub eagle: bool,
    /// Windows are cached only before the last boundary of a prompt that can be gone on from, and before the
    /// end of what the groups that keep everything had of it (vLLM since 0.22). Without, every block is
    /// cached that was computed.
    pub keeps_tails_only: bool,
    /// The beginning of a large block is cached by the hash where it ends, until the block is full (vLLM since 0.24).
    pub keeps_partial: bool,
    /// The tiers behind the device, for a pool with one group that keeps everything.
    pub host: Option<HostConfig>,
}

/// Where engines with such a pool differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Habits {
    /// Two requests that compute the same block hold two copies. Stores tell adapter and salt.
    #[default]
    Vllm,
    /// A block is cached once: a second copy is of no use, and not published. Stores tell no adapter and no
    /// salt. One group.
    Trtllm,
}

/// What a request's events tell of what was found for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Nothing: only what is new is published.
    #[default]
    #[serde(alias = "default", alias = "incremental")]
    New,
    /// It is published again, as one store per group without a parent. Windows are published whole, also
    /// where nothing is held.
    Full,
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
    groups: Groups,
    blocks: Blocks,
    host: Option<Host>,
    events: Vec<OwnedEvent>,
}

/// The blocks of one running request. Give it back with [`Pool::finish`].
#[derive(Debug)]
pub struct Table {
    keys: Keys,
    tokens: Vec<u32>,
    digests: Vec<Digest>,
    cached_tokens: usize,
    /// Of each group.
    held: Vec<Held>,
    /// Boundaries, in tokens, before which windows are cached.
    anchors: [usize; 2],
    /// Chunks that were looked at already to be written to the host.
    offloaded: usize,
}

/// What a request has of a group.
#[derive(Debug, Default)]
struct Held {
    /// Its blocks from the start of the prompt on; `None` where the group keeps none.
    blocks: Vec<Option<usize>>,
    /// How many were looked at already to be published.
    announced: usize,
    /// How many were given up already.
    passed: usize,
}

impl Table {
    /// Prompt tokens that were found in the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Everything computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(config: PoolConfig) -> Self {
        Self {
            groups: Groups::new(&config.groups, config.block_size),
            blocks: Blocks::new(config.blocks),
            host: config.host.map(Host::new),
            events: Vec::new(),
            config,
        }
    }

    /// Starts a request: reuses what is cached of `prompt`, computes the rest.
    pub fn begin(&mut self, prompt: &[u32], keys: Keys, report: Report) -> Result<Table, PoolError> {
        let digests = self.chain(prompt, &keys);
        let found = self.found(&digests, prompt.len());
        let mut table = Table {
            keys,
            tokens: prompt.to_vec(),
            digests,
            cached_tokens: found.cached,
            held: Vec::new(),
            anchors: [self.last_boundary(prompt.len()), found.full],
            offloaded: 0,
        };
        let groups = self.groups.all.iter().enumerate();
        table.held = groups.map(|group| self.hits(group, found.on_device, &table.digests)).collect();
        self.fill(&mut table)?;
        if let Some(host) = &mut self.host {
            host.look(&table.digests);
        }
        if report == Report::Full {
            self.repeat(&table, found.on_device);
        }
        // What is loaded is stored before what is computed.
        self.commit(&mut table, found.cached);
        self.commit(&mut table, prompt.len());
        self.keep_partial(&table);
        self.write_to_host(&mut table);
        Ok(table)
    }

    /// Computes one more token of a running request.
    pub fn append(&mut self, table: &mut Table, token: u32) -> Result<(), PoolError> {
        let computed = table.tokens.len();
        for (group, held) in self.groups.all.iter().zip(&mut table.held) {
            let passed = group.passed(computed).max(held.passed);
            for block in held.blocks[held.passed..passed].iter_mut().rev().filter_map(Option::take) {
                self.blocks.release(block);
            }
            held.passed = passed;
        }
        let is_full = |group: &Group, held: &Held| computed == held.blocks.len() * group.size;
        let full: Vec<usize> = (0..table.held.len())
            .filter(|number| is_full(&self.groups.all[*number], &table.held[*number]))
            .collect();
        if self.blocks.free_besides(std::iter::empty()) < full.len() {
            return Err(PoolError::Full);
        }
        for number in full {
            let block = self.take()?;
            table.held[number].blocks.push(Some(block));
        }
        table.tokens.push(token);
        if table.tokens.len().is_multiple_of(self.groups.fine) {
            let start = table.tokens.len() - self.groups.fine;
            let digest = self.digest(table.digests.last(), start, &table.tokens[start..], &table.keys);
            table.digests.push(digest);
            self.commit(table, table.tokens.len());
        }
        self.write_to_host(table);
        Ok(())
    }

    /// Ends a request: its blocks become free and stay cached until they are taken.
    pub fn finish(&mut self, table: &Table) {
        for block in table.held.iter().flat_map(|held| held.blocks.iter().rev().flatten()) {
            self.blocks.release(*block);
        }
    }

    /// Takes their blocks from all requests: their tables are worth nothing any more, and are not to be given back.
    pub fn preempt(&mut self) {
        self.blocks.release_all();
    }

    /// Forgets every cached block of the device, and of colder tiers if they are to be `emptied` too; refused
    /// while a request holds one. The same is published either way.
    pub fn reset(&mut self, emptied: bool) -> Result<(), PoolError> {
        self.blocks.forget_all()?;
        self.events.push(OwnedEvent::Cleared);
        if let Some(host) = self.host.as_mut().filter(|_| emptied) {
            host.clear();
        }
        Ok(())
    }

    /// The events since the last call, in order: those of the device before those of colder tiers.
    pub fn take_events(&mut self) -> Vec<OwnedEvent> {
        let mut events = std::mem::take(&mut self.events);
        events.extend(self.host.as_mut().map(Host::take_events).unwrap_or_default());
        events
    }

    /// What each group holds.
    pub fn resident(&self) -> Vec<GroupState> {
        let device = (0..self.groups.all.len()).map(|group| self.blocks.copies(group));
        let mut groups: Vec<_> =
            device.map(|device| GroupState { device, ..GroupState::default() }).collect();
        if let (Some(first), Some(host)) = (groups.first_mut(), &self.host) {
            first.host = host.on_host();
            first.storage = host.in_storage();
        }
        groups
    }

    /// How many tokens of `prompt` would be found now: the most, in steps that every group has and without
    /// the last token, from which every group can go on.
    pub fn would_hit(&self, prompt: &[u32], keys: &Keys) -> usize {
        self.found(&self.chain(prompt, keys), prompt.len()).cached
    }

    /// Holds what was found, and takes fresh blocks for the rest of a prompt. Without room for all, nothing is done.
    fn fill(&mut self, table: &mut Table) -> Result<(), PoolError> {
        let length = table.tokens.len();
        let wanted: Vec<Vec<bool>> = (self.groups.all.iter().zip(&table.held))
            .map(|(group, held)| {
                (held.blocks.len()..length.div_ceil(group.size))
                    .map(|block| self.is_wanted(group, block, length))
                    .collect()
            })
            .collect();
        let fresh = wanted.iter().flatten().filter(|wanted| **wanted).count();
        let hits = || table.held.iter().flat_map(|held| held.blocks.iter().flatten().copied());
        if self.blocks.free_besides(hits()) < fresh {
            return Err(PoolError::Full);
        }
        hits().for_each(|block| self.blocks.hold(block));
        for (held, wanted) in table.held.iter_mut().zip(wanted) {
            for wanted in wanted {
                let block = if wanted { Some(self.take()?) } else { None };
                held.blocks.push(block);
            }
        }
        Ok(())
    }

    /// Whether a group has a block for a part of a prompt that is computed at once. States are kept at the
    /// last boundary that every group has, and at the end.
    fn is_wanted(&self, group: &Group, block: usize, length: usize) -> bool {
        let boundary = length / self.groups.unit * self.groups.unit;
        let is_end = block + 1 == length.div_ceil(group.size);
        group.kind != GroupKind::Mamba || is_end || (block + 1) * group.size == boundary
    }

    fn chain(&self, tokens: &[u32], keys: &Keys) -> Vec<Digest> {
        let mut digests: Vec<Digest> = Vec::with_capacity(tokens.len() / self.groups.fine);
        for block in tokens.chunks_exact(self.groups.fine) {
            let start = digests.len() * self.groups.fine;
            digests.push(self.digest(digests.last(), start, block, keys));
        }
        digests
    }

    fn digest(&self, before: Option<&Digest>, start: usize, tokens: &[u32], keys: &Keys) -> Digest {
        Digest::of(self.config.seed, before, tokens, &keys.of_block(start, start + tokens.len()))
    }

    /// Takes the next free block; what it held is evicted.
    fn take(&mut self) -> Result<usize, PoolError> {
        let (block, evicted) = self.blocks.take()?;
        self.events.extend(evicted.map(|name| announce::removed(&self.config, name)));
        Ok(block)
    }

    /// What a step completed goes on to the host.
    fn write_to_host(&mut self, table: &mut Table) {
        if let Some(host) = &mut self.host {
            host.write(table);
        }
    }
}
