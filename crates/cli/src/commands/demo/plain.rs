//! A plain consumer: what somebody believes who subscribes to an engine's events and applies them as they
//! come, without asking what came before, whether one is missing, or whose they are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_socket::{Endpoint, SocketError, Sockets, SubscriberHandler, Subscription, SubscriptionHandle};
use kvplane_wire::trtllm::encode::{TrtData, TrtEvent};
use kvplane_wire::{Decoder, Event, Hash, Tokens};
use parking_lot::Mutex;

use super::fleet::{Held, bits};

/// A plain consumer of one engine.
pub(super) struct PlainConsumer {
    believes: Arc<Believes>,
    _subscription: SubscriptionHandle,
}

#[derive(Default)]
struct Believes {
    blocks: Mutex<BTreeSet<u64>>,
    prefixes: Mutex<Prefixes>,
    /// The number of the last batch, plus one; 0 before the first.
    next_sequence: AtomicU64,
    connected: AtomicBool,
}

/// Which prefixes are believed to be held.
#[derive(Default)]
struct Prefixes {
    /// The prefix that ends with a block of the engine.
    by_block: HashMap<u64, u64>,
    held: HashSet<u64>,
}

impl Prefixes {
    fn store(&mut self, hashes: &[Hash], parent: Option<u64>, tokens: &[u32], size: usize) {
        let mut previous = match parent {
            None => None,
            Some(parent) => match self.by_block.get(&parent) {
                Some(prefix) => Some(*prefix),
                // A beginning that was never heard of.
                None => return,
            },
        };
        let mut contents = Vec::new();
        hash_blocks(tokens, size.max(1), Namespace::PLAIN, &mut contents);
        for (hash, content) in hashes.iter().zip(contents) {
            let prefix = chain_hash(previous, content);
            self.by_block.insert(hash.bits, prefix);
            self.held.insert(prefix);
            previous = Some(prefix);
        }
    }

    fn remove(&mut self, block: u64) {
        if let Some(prefix) = self.by_block.remove(&block) {
            self.held.remove(&prefix);
        }
    }
}

/// What a plain consumer believes, beside the truth.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Belief {
    /// Blocks that it believes the engine to hold.
    pub(super) blocks: usize,
    /// Those among them that the engine does not hold.
    pub(super) phantoms: usize,
    /// Blocks that the engine holds, and it does not know of.
    pub(super) unknown: usize,
}

impl PlainConsumer {
    pub(super) fn start(sockets: &Sockets, events: &str) -> Result<Self, SocketError> {
        let believes = Arc::new(Believes::default());
        let handler = Handler { believes: believes.clone(), decoder: Decoder::default() };
        let subscription = Subscription::new(Endpoint::Connect(events.to_owned()));
        let subscription = sockets.subscribe(subscription, Box::new(handler))?;
        Ok(Self { believes, _subscription: subscription })
    }

    /// Whether it was ever connected.
    pub(super) fn is_connected(&self) -> bool {
        self.believes.connected.load(Ordering::Acquire)
    }

    /// The number of the last batch that it heard.
    pub(super) fn last_sequence(&self) -> Option<u64> {
        self.believes.next_sequence.load(Ordering::Acquire).checked_sub(1)
    }

    /// How many blocks of a prompt it believes to be held, given the prompt's prefixes.
    pub(super) fn holds(&self, chain: &[u64]) -> usize {
        let prefixes = self.believes.prefixes.lock();
        chain.iter().take_while(|prefix| prefixes.held.contains(prefix)).count()
    }

    /// What it believes of an engine that holds this.
    pub(super) fn belief(&self, truth: &Held) -> Belief {
        Belief::of(&self.believes.blocks.lock(), truth)
    }
}

impl Belief {
    fn of(blocks: &BTreeSet<u64>, truth: &Held) -> Self {
        let phantoms = blocks.iter().filter(|hash| !truth.contains_key(hash)).count();
        Self { blocks: blocks.len(), phantoms, unknown: truth.len() - (blocks.len() - phantoms) }
    }

    /// What somebody believes who has drained these events, and none before.
    pub(super) fn of_drained(events: &[TrtEvent], truth: &Held) -> Self {
        let mut blocks = BTreeSet::new();
        for event in events {
            match &event.data {
                TrtData::Stored { blocks: stored, .. } => {
                    blocks.extend(stored.iter().map(|block| bits(&block.block_hash)));
                }
                TrtData::Removed { block_hashes } => {
                    for hash in block_hashes {
                        blocks.remove(&bits(hash));
                    }
                }
                _ => {}
            }
        }
        Self::of(&blocks, truth)
    }

    /// In words, beside what was believed before.
    pub(super) fn words(&self, engine: &str, before: Option<&Self>) -> String {
        let Self { blocks, phantoms, unknown } = self;
        let before = before.map_or_else(String::new, |before| {
            format!(" (before: {} phantom, {} missing)", before.phantoms, before.unknown)
        });
        format!("sees {blocks} blocks on {engine}: {phantoms} phantom, {unknown} missing{before}")
    }
}

struct Handler {
    believes: Arc<Believes>,
    decoder: Decoder,
}

impl SubscriberHandler for Handler {
    fn connected(&mut self) {
        self.believes.connected.store(true, Ordering::Release);
    }

    fn disconnected(&mut self) {}

    fn message(&mut self, _topic: &[u8], sequence: u64, payload: Bytes) {
        let Ok(batch) = self.decoder.decode(&payload) else { return };
        let mut blocks = self.believes.blocks.lock();
        let mut prefixes = self.believes.prefixes.lock();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    let hashes = batch.stored_hashes(stored);
                    blocks.extend(hashes.iter().map(|hash| hash.bits));
                    if let Tokens::Flat(tokens) = batch.tokens(stored) {
                        let parent = stored.parent.map(|parent| parent.bits);
                        prefixes.store(hashes, parent, tokens, stored.block_size as usize);
                    }
                }
                Event::Removed(removed) => {
                    for hash in batch.removed_hashes(removed) {
                        blocks.remove(&hash.bits);
                        prefixes.remove(hash.bits);
                    }
                }
                Event::Cleared { .. } => {
                    blocks.clear();
                    *prefixes = Prefixes::default();
                }
                _ => {}
            }
        }
        self.believes.next_sequence.store(sequence + 1, Ordering::Release);
    }

    fn malformed(&mut self, _reason: &'static str) {}

    fn tick(&mut self, _now: Instant) {}
}
