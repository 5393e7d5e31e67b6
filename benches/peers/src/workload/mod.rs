//! The workloads: simulated engines under a seeded load, as events and prompts.
//!
//! Nothing here is timed. A [`World`] makes up the next stretch of events when it is asked to, and its caches
//! then are the truth that every answer is compared with.

mod blocks;
mod cache;
mod conversations;
mod fleet;
mod prompts;
mod rng;
mod slice;
#[cfg(test)]
mod tests;
mod trace;

use std::path::Path;

pub(crate) use blocks::{BLOCK_TOKENS, BlockId, Blocks, EngineHashes, tokens};
pub(crate) use cache::Cache;
pub(crate) use conversations::Depth;
pub(crate) use slice::{Kind, Slice};
pub(crate) use trace::BadTrace;

use conversations::Conversations;
use fleet::{Fleet, Turn};
use rng::Rng;
use trace::Trace;

/// How large a fleet is, and what its conversations are like.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) engines: usize,
    /// Blocks in each engine's cache.
    pub(crate) capacity: usize,
    pub(crate) depths: Vec<Depth>,
}

/// The conversations of the synthetic workloads.
pub(crate) const DEPTHS: [Depth; 3] = [
    Depth { blocks: 64, share: 0.6, turns: 4 },
    Depth { blocks: 512, share: 0.3, turns: 8 },
    Depth { blocks: 2048, share: 0.1, turns: 10 },
];

#[derive(Debug)]
enum Source {
    Conversations(Conversations),
    Trace(Trace),
}

/// A fleet of simulated engines and those who use it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) blocks: Blocks,
    fleet: Fleet,
    source: Source,
    rng: Rng,
}

impl World {
    /// A fleet with made-up conversations.
    pub(crate) fn of_conversations(shape: &Shape, seed: u64) -> Self {
        let (mut blocks, mut rng) = (Blocks::default(), Rng::new(seed));
        let conversations =
            Conversations::new(&shape.depths, shape.engines * shape.capacity, &mut blocks, &mut rng);
        let fleet = Fleet::new(shape.engines, shape.capacity);
        Self { blocks, fleet, source: Source::Conversations(conversations), rng }
    }

    /// A fleet that serves a recorded trace.
    pub(crate) fn of_trace(
        engines: usize,
        capacity: usize,
        path: &Path,
        seed: u64,
    ) -> Result<Self, BadTrace> {
        Ok(Self {
            blocks: Blocks::default(),
            fleet: Fleet::new(engines, capacity),
            source: Source::Trace(Trace::read(path)?),
            rng: Rng::new(seed),
        })
    }

    /// The caches, by engine.
    pub(crate) fn caches(&self) -> &[Cache] {
        &self.fleet.caches
    }

    /// Blocks that all engines hold together.
    pub(crate) fn resident(&self) -> usize {
        self.caches().iter().map(Cache::len).sum()
    }

    /// Runs until every cache is full.
    pub(crate) fn fill(&mut self) -> Slice {
        let mut slice = Slice::default();
        let mut full = 0;
        while full < self.fleet.caches.len() {
            if self.fleet.caches[full].is_full() {
                full += 1;
            } else if !self.advance(&mut slice) {
                break;
            }
        }
        slice
    }

    /// Runs until so many blocks were stored or removed, or a trace is over.
    pub(crate) fn churn(&mut self, block_operations: usize) -> Slice {
        let mut slice = Slice::default();
        while slice.block_operations() < block_operations && self.advance(&mut slice) {}
        slice
    }

    /// From now on, requests go to these engines alone. Those of the others are run to their end.
    pub(crate) fn serve_only(&mut self, engines: impl Fn(u32) -> bool) -> Slice {
        let mut slice = Slice::default();
        self.fleet.serve_only(engines);
        while !self.fleet.is_idle() {
            self.step(&mut slice);
        }
        slice
    }

    /// One step. `false` if there is nothing left to do.
    fn advance(&mut self, slice: &mut Slice) -> bool {
        if !self.fleet.is_busy()
            && let Some(turn) = self.next_turn()
        {
            self.fleet.start(turn, slice);
        }
        if self.fleet.is_idle() {
            return !matches!(&self.source, Source::Trace(trace) if trace.is_over());
        }
        self.step(slice);
        true
    }

    fn next_turn(&mut self) -> Option<Turn> {
        match &mut self.source {
            Source::Conversations(conversations) => {
                conversations.next(&self.fleet, &mut self.blocks, &mut self.rng)
            }
            Source::Trace(trace) => trace.next(&self.fleet, &mut self.blocks),
        }
    }

    fn step(&mut self, slice: &mut Slice) {
        let Some(turn) = self.fleet.step(&mut self.rng, slice) else { return };
        match &mut self.source {
            Source::Conversations(conversations) => conversations.end(turn, &mut self.rng),
            Source::Trace(trace) => trace.end(turn),
        }
    }
}
