//! Simulated engines: their caches, what runs on them, and which of them may be given more.

use super::blocks::BlockId;
use super::cache::Cache;
use super::rng::Rng;
use super::slice::{Kind, Slice};

/// Blocks that a prefill step computes and announces at most: 8,192 tokens.
const PREFILL_BLOCKS: usize = 512;

/// Requests that run at the same time: on average, and on one engine at most.
const RUNNING_MEAN: usize = 8;
const RUNNING_MAX: usize = 2 * RUNNING_MEAN;

/// One request.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) engine: u32,
    /// Prompt and answer.
    pub(crate) chain: Vec<BlockId>,
    /// How many blocks of the chain are prompt.
    pub(crate) prompt: usize,
    /// Which conversation it belongs to, for whoever made it.
    pub(crate) conversation: usize,
}

#[derive(Debug)]
struct Running {
    turn: Turn,
    /// Blocks of the chain that are computed, and pinned.
    done: usize,
}

/// All engines.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) caches: Vec<Cache>,
    running: Vec<Running>,
    /// How many run on each engine.
    running_on: Vec<usize>,
    /// Blocks that they will have when they are done. They all fit, so that nobody ever waits for another's blocks.
    promised_on: Vec<usize>,
    capacity: usize,
    /// Blocks that each engine has computed: what balancing looks at.
    load: Vec<usize>,
    serving: Vec<u32>,
    is_serving: Vec<bool>,
}

impl Fleet {
    /// Engines with caches of so many blocks.
    pub(crate) fn new(engines: usize, capacity: usize) -> Self {
        Self {
            caches: (0..engines).map(|_| Cache::new(capacity)).collect(),
            running: Vec::new(),
            running_on: vec![0; engines],
            promised_on: vec![0; engines],
            capacity,
            load: vec![0; engines],
            serving: (0..engines as u32).collect(),
            is_serving: vec![true; engines],
        }
    }

    /// From now on, requests go to these engines alone.
    pub(crate) fn serve_only(&mut self, engines: impl Fn(u32) -> bool) {
        self.serving = (0..self.caches.len() as u32).filter(|engine| engines(*engine)).collect();
        self.is_serving = (0..self.caches.len() as u32).map(&engines).collect();
    }

    /// Whether enough is running.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.len() >= self.serving.len() * RUNNING_MEAN
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    pub(crate) fn serves(&self, engine: u32) -> bool {
        self.is_serving[engine as usize]
    }

    /// Whether an engine can take a request of so many blocks.
    pub(crate) fn has_room(&self, engine: u32, length: usize) -> bool {
        let engine = engine as usize;
        self.running_on[engine] < RUNNING_MAX && self.promised_on[engine] + length <= self.capacity
    }

    /// Of two engines drawn by lot, the one with less load.
    pub(crate) fn less_loaded_of_two(&self, length: usize, rng: &mut Rng) -> Option<u32> {
        let mut draw = || self.serving[rng.below(self.serving.len())];
        [draw(), draw()]
            .into_iter()
            .filter(|engine| self.has_room(*engine, length))
            .min_by_key(|engine| self.load[*engine as usize])
    }

    /// The engine with the least load.
    pub(crate) fn least_loaded(&self, length: usize) -> Option<u32> {
        let free = self.serving.iter().copied().filter(|engine| self.has_room(*engine, length));
        free.min_by_key(|engine| self.load[*engine as usize])
    }

    /// The engine that holds most of a prompt, if that is at least half.
    pub(crate) fn holder_of_half(&self, prompt: &[BlockId], length: usize) -> Option<u32> {
        let free = self.serving.iter().copied().filter(|engine| self.has_room(*engine, length));
        let depths = free.map(|engine| (self.caches[engine as usize].depth(prompt), engine));
        depths.max().filter(|(depth, _)| depth * 2 >= prompt.len()).map(|(_, engine)| engine)
    }

    /// What is computed of the requests that run.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &[BlockId]> {
        self.running.iter().map(|running| &running.turn.chain[..running.done])
    }

    pub(crate) fn start(&mut self, turn: Turn, slice: &mut Slice) {
        slice.arrive(&turn.chain[..turn.prompt]);
        self.running_on[turn.engine as usize] += 1;
        self.promised_on[turn.engine as usize] += turn.chain.len();
        self.running.push(Running { turn, done: 0 });
    }

    /// One step of one request. Returns the request when it is over.
    pub(crate) fn step(&mut self, rng: &mut Rng, slice: &mut Slice) -> Option<Turn> {
        let number = rng.below(self.running.len());
        let Running { turn, done } = &mut self.running[number];
        let cache = &mut self.caches[turn.engine as usize];
        // Blocks that are here need not be computed.
        while *done < turn.prompt && cache.pin(turn.chain[*done]) {
            *done += 1;
        }
        let rest = &turn.chain[*done..];
        let step = if *done < turn.prompt {
            let chunk = &rest[..PREFILL_BLOCKS.min(turn.prompt - *done)];
            chunk.iter().take_while(|block| !cache.contains(**block)).count()
        } else {
            1.min(rest.len())
        };
        let evicted = cache.make_room(step)?;
        slice.push(turn.engine, Kind::Remove, &evicted);
        for &block in &rest[..step] {
            cache.insert_pinned(block);
        }
        let parent = done.checked_sub(1).map(|last| turn.chain[last]);
        slice.push(turn.engine, Kind::Store { parent }, &rest[..step]);
        *done += step;
        self.load[turn.engine as usize] += step;
        if *done < turn.chain.len() {
            return None;
        }
        for block in turn.chain.iter().rev() {
            cache.unpin(*block);
        }
        self.running_on[turn.engine as usize] -= 1;
        self.promised_on[turn.engine as usize] -= turn.chain.len();
        Some(self.running.swap_remove(number).turn)
    }
}
