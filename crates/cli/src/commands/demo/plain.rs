//! A plain consumer: what somebody believes who subscribes to an engine's events and applies them as they come, without asking
//! what came before, whether one is missing, or whose they are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use kvplane_socket::{Endpoint, SocketError, Sockets, SubscriberHandler, Subscription, SubscriptionHandle};
use kvplane_wire::trtllm::encode::{TrtData, TrtEvent};
use kvplane_wire::{Decoder, Event};
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
    connected: AtomicBool,
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
            format!(" (before: {} and {})", before.phantoms, before.unknown)
        });
        format!(
            "believes that {engine} holds {blocks} blocks: {phantoms} of them are not there, and {unknown} that are there it does not know{before}"
        )
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

    fn message(&mut self, _topic: &[u8], _sequence: u64, payload: Bytes) {
        let Ok(batch) = self.decoder.decode(&payload) else { return };
        let mut blocks = self.believes.blocks.lock();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    blocks.extend(batch.stored_hashes(stored).iter().map(|hash| hash.bits));
                }
                Event::Removed(removed) => {
                    for hash in batch.removed_hashes(removed) {
                        blocks.remove(&hash.bits);
                    }
                }
                Event::Cleared { .. } => blocks.clear(),
                _ => {}
            }
        }
    }

    fn malformed(&mut self, _reason: &'static str) {}

    fn tick(&mut self, _now: Instant) {}
}
