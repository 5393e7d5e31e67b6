//! vLLM's colder tiers: what a request computes is written to the host in chunks of blocks, and from there to storage.
//!
//! A chunk is found by its last hash. It is written with the step that completed it, or with the next one, so
//! that a chunk may be published before the one that it follows. A request goes on with whole chunks behind what
//! the device has, if that is worth a chunk at least. What the host loses it tells; storage loses silently.
//!
//! ```text
//!  blocks     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//!  device     | x | x | x |
//!  host       | x   x | x   x | x   x |       |   chunks of two: blocks 3, 4 and 5 are loaded. Without the last chunk,
//!                                                 block 3 alone would not be
//! ```

use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

use super::Table;
use super::shelf::Shelf;
use crate::cache::Copies;
use crate::digest::{Digest, HashForm};
use crate::load::Random;

/// The medium of the host.
const HOST: &str = "CPU";
/// One chunk in this many is written a step later.
const LATE: u64 = 4;

/// Sizes of the colder tiers, and how they are published.
#[derive(Debug, Clone, Copy)]
pub struct HostConfig {
    /// Tokens per device block.
    pub block_size: usize,
    /// Tokens per chunk, a multiple of that.
    pub chunk: usize,
    /// Chunks that fit on the host.
    pub chunks: usize,
    /// Chunks that fit into storage; 0 for no such tier.
    pub stored_chunks: usize,
    /// The medium of storage.
    pub storage_medium: &'static str,
    /// What is published.
    pub style: HostForm,
    /// How hashes are written.
    pub hash_form: HashForm,
    /// Determines which chunks are late, and the order of those that are published together.
    pub seed: u64,
}

/// How the host tier is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostForm {
    /// Not at all.
    Nothing,
    /// One store of many hashes, as 32 bytes whatever the device's look like, without a group (vLLM before 0.24).
    Raw {
        /// Tokens that a store says a block has.
        block_size: u32,
    },
    /// A store for every chunk, with its last hash and nothing else.
    Placeholders,
    /// A store for every chunk, with all hashes, tokens and the parent, without extra keys.
    SelfDescribing,
}

/// The host, and storage behind it.
#[derive(Debug)]
pub(super) struct Host {
    config: HostConfig,
    memory: Shelf,
    storage: Shelf,
    /// Chunks that are written with the next step.
    late: Vec<Chunk>,
    random: Random,
    events: Vec<OwnedEvent>,
}

#[derive(Debug)]
struct Chunk {
    hashes: Vec<Digest>,
    /// All that there is to tell about it.
    announced: OwnedStored,
}

impl Host {
    pub(super) fn new(config: HostConfig) -> Self {
        Self {
            config,
            memory: Shelf::new(config.chunks),
            storage: Shelf::new(config.stored_chunks),
            late: Vec::new(),
            random: Random::new(config.seed),
            events: Vec::new(),
        }
    }

    /// How far a prompt goes on behind what the device has of it, in tokens; nothing beyond `limit`.
    pub(super) fn goes_on_to(&self, digests: &[Digest], on_device: usize, limit: usize) -> usize {
        let chunk = self.config.chunk;
        let is_here = |number: &usize| {
            let last = &digests[self.last_hash(*number)];
            self.memory.has(last) || self.storage.has(last)
        };
        let first = on_device / chunk;
        let end = (first + (first..limit / chunk).take_while(is_here).count()) * chunk;
        if end >= on_device + chunk { end } else { on_device }
    }

    /// A request looks for its prompt: what is here of it was used now, its beginning last.
    pub(super) fn look(&mut self, digests: &[Digest]) {
        for number in (0..digests.len() * self.config.block_size / self.config.chunk).rev() {
            let last = digests[self.last_hash(number)];
            self.memory.touch(&last);
            self.storage.touch(&last);
        }
    }

    /// A step of a request is done: its chunks that are full by now are written, and those that were late.
    pub(super) fn write(&mut self, table: &mut Table) {
        let full = table.tokens.len() / self.config.chunk;
        let new: Vec<Chunk> = (table.offloaded..full)
            .filter(|number| !self.has(&table.digests[self.last_hash(*number)]))
            .map(|number| self.chunk(table, number))
            .collect();
        table.offloaded = full;
        let mut ready = std::mem::take(&mut self.late);
        for chunk in new {
            let is_late = self.random.below(LATE) == 0;
            if is_late { self.late.push(chunk) } else { ready.push(chunk) }
        }
        ready.truncate(self.memory.capacity());
        // They are done in no order.
        for end in (1..ready.len()).rev() {
            let other = self.random.below(end as u64 + 1) as usize;
            ready.swap(end, other);
        }
        let gone = self.memory.make_room(ready.len());
        self.tell_removed(gone);
        for chunk in &ready {
            self.memory.put(chunk.hashes.clone());
        }
        self.tell_stored(&ready);
        self.write_on(ready);
    }

    /// What the host was given is in storage too, if it was not yet. What storage drops for it, nothing tells.
    fn write_on(&mut self, mut chunks: Vec<Chunk>) {
        chunks.retain(|chunk| chunk.hashes.last().is_some_and(|last| !self.storage.has(last)));
        chunks.truncate(self.storage.capacity());
        self.storage.make_room(chunks.len());
        for chunk in chunks {
            if self.config.style != HostForm::Nothing {
                let stored = of_chunk(&chunk, self.config.storage_medium);
                self.events.push(OwnedEvent::Stored(stored));
            }
            self.storage.put(chunk.hashes);
        }
    }

    /// Forgets everything, and tells nothing.
    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.storage.clear();
        self.late.clear();
    }

    pub(super) fn take_events(&mut self) -> Vec<OwnedEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn on_host(&self) -> Copies {
        self.memory.copies()
    }

    pub(super) fn in_storage(&self) -> Copies {
        self.storage.copies()
    }

    /// Whether a chunk is here, or about to be.
    fn has(&self, last: &Digest) -> bool {
        self.memory.has(last) || self.late.iter().any(|chunk| chunk.hashes.last() == Some(last))
    }

    fn last_hash(&self, number: usize) -> usize {
        (number + 1) * self.config.chunk / self.config.block_size - 1
    }

    fn chunk(&self, table: &Table, number: usize) -> Chunk {
        let HostConfig { block_size, chunk, hash_form, .. } = self.config;
        let (start, end) = (number * chunk, (number + 1) * chunk);
        let hashes = table.digests[start / block_size..end / block_size].to_vec();
        let before =
            (start / block_size).checked_sub(1).map(|before| table.digests[before].in_form(hash_form));
        let announced = OwnedStored {
            block_hashes: hashes.iter().map(|digest| digest.in_form(hash_form)).collect(),
            parent: before,
            token_ids: table.tokens[start..end].to_vec(),
            block_size: block_size as u32,
            lora_id: table.keys.lora.as_ref().map(|_| 1),
            lora_name: table.keys.lora.clone(),
            medium: Some(HOST.to_owned()),
            group: Some(0),
            spec_kind: Some("full_attention".to_owned()),
            ..OwnedStored::default()
        };
        Chunk { hashes, announced }
    }

    fn tell_stored(&mut self, chunks: &[Chunk]) {
        match self.config.style {
            HostForm::Nothing => {}
            HostForm::Raw { .. } if chunks.is_empty() => {}
            HostForm::Raw { block_size } => {
                let raw = |chunk: &Chunk| chunk.hashes.last().map(|digest| digest.in_form(HashForm::Bytes32));
                let stored = placeholder(chunks.iter().filter_map(raw).collect(), block_size, HOST);
                self.events.push(OwnedEvent::Stored(OwnedStored { group: None, ..stored }));
            }
            HostForm::Placeholders => {
                let stored = chunks.iter().map(|chunk| OwnedEvent::Stored(of_chunk(chunk, HOST)));
                self.events.extend(stored);
            }
            HostForm::SelfDescribing => {
                self.events.extend(chunks.iter().map(|chunk| OwnedEvent::Stored(chunk.announced.clone())));
            }
        }
    }

    /// All chunks that went are one event.
    fn tell_removed(&mut self, chunks: Vec<Vec<Digest>>) {
        let form = match self.config.style {
            HostForm::Raw { .. } => HashForm::Bytes32,
            _ => self.config.hash_form,
        };
        let hashes = chunks.into_iter().flat_map(|hashes| {
            let known_by = if self.config.style == HostForm::SelfDescribing { 0 } else { hashes.len() - 1 };
            hashes.into_iter().skip(known_by)
        });
        let block_hashes: Vec<OwnedHash> = hashes.map(|digest| digest.in_form(form)).collect();
        if block_hashes.is_empty() || self.config.style == HostForm::Nothing {
            return;
        }
        let has_group = !matches!(self.config.style, HostForm::Raw { .. });
        self.events.push(OwnedEvent::Removed(OwnedRemoved {
            block_hashes,
            medium: Some(HOST.to_owned()),
            group: has_group.then_some(0),
            ..OwnedRemoved::default()
        }));
    }
}

/// A chunk by its last hash alone.
fn of_chunk(chunk: &Chunk, medium: &str) -> OwnedStored {
    placeholder(chunk.announced.block_hashes.last().cloned().into_iter().collect(), 0, medium)
}

/// A store that has hashes, and nothing about them.
fn placeholder(block_hashes: Vec<OwnedHash>, block_size: u32, medium: &str) -> OwnedStored {
    OwnedStored {
        block_hashes,
        block_size,
        medium: Some(medium.to_owned()),
        group: Some(0),
        ..OwnedStored::default()
    }
}
