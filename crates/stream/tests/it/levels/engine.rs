//! A naive TensorRT-LLM: a set of blocks per window, and a buffer of what it has to tell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

/// Tokens of a full block.
pub const BLOCK_SIZE: usize = 4;
/// Tokens of the longest prompt.
const PROMPT: usize = 14;

/// What a pool of one window holds: every block with its level.
#[derive(Debug, Clone, Default)]
struct Pool {
    window: u32,
    levels: BTreeMap<u64, usize>,
}

/// Where a block is in its prompt.
#[derive(Debug, Clone, Copy)]
struct Known {
    parent: Option<u64>,
    prompt: u8,
    first: usize,
    end: usize,
}

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct Shape {
    /// In the order in which the pools are announced; the largest is the main one.
    pub windows: Vec<u32>,
    /// Blocks of the device and of the host, per pool.
    pub blocks: [usize; 2],
    /// Events that the buffer holds.
    pub buffer: usize,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    shape: Shape,
    pools: Vec<Pool>,
    known: BTreeMap<u64, Known>,
    next_id: u64,
    buffer: VecDeque<Value>,
}

impl Engine {
    pub fn new(shape: Shape) -> Self {
        let known = BTreeMap::new();
        let mut engine = Self { shape, pools: Vec::new(), known, next_id: 0, buffer: VecDeque::new() };
        engine.start();
        engine
    }

    /// Dies and comes back with nothing.
    pub fn restart(&mut self, device: usize) {
        self.shape.blocks[0] = device;
        self.start();
    }

    fn start(&mut self) {
        (self.next_id, self.buffer) = (0, VecDeque::new());
        self.pools = self.shape.windows.iter().map(|&window| Pool { window, ..Pool::default() }).collect();
        for at in 0..self.pools.len() {
            let blocks = self.shape.blocks;
            self.tell(at, &json!({"type": "created", "num_blocks_per_cache_level": blocks}));
        }
    }

    /// Everything in the buffer.
    pub fn drain(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.buffer).into()
    }

    /// Spoils the number of an event that waits: nobody can tell which it is.
    pub fn spoil(&mut self, at: usize) {
        let events = self.buffer.len().max(1);
        if let Some(event) = self.buffer.get_mut(at % events) {
            event["event_id"] = Value::Null;
        }
    }

    /// What is held: (window, level, hash).
    pub fn held(&self) -> BTreeSet<(u32, usize, u64)> {
        let of = |pool: &Pool| pool.levels.iter().map(|(&hash, &level)| (pool.window, level, hash)).collect();
        self.pools.iter().flat_map(|pool| -> Vec<_> { of(pool) }).collect()
    }

    /// What those who know whole prefixes in full blocks should see: (level, hash).
    pub fn main_full(&self) -> BTreeSet<(usize, u64)> {
        let main = self.main_window();
        let of_main = self.held().into_iter().filter(|(window, ..)| *window == main);
        of_main.map(|(_, level, hash)| (level, hash)).filter(|(_, hash)| self.is_full(*hash)).collect()
    }

    /// The window whose blocks are whole prefixes.
    pub fn main_window(&self) -> u32 {
        self.shape.windows.iter().copied().max().unwrap_or_default()
    }

    fn is_full(&self, hash: u64) -> bool {
        let known = self.known[&hash];
        known.end - known.first == BLOCK_SIZE
    }

    /// A request for the first `length` tokens of a prompt: what is there is used, what is not is stored.
    pub fn request(&mut self, pool: usize, prompt: u8, length: usize) {
        let pool = pool % self.pools.len();
        let path = path(prompt, length.min(PROMPT));
        self.known.extend(path.iter().copied());
        let missing = path.iter().filter(|(hash, _)| !self.is_on_device(pool, *hash)).count();
        if self.used(pool, 0) + missing > self.shape.blocks[0] {
            return;
        }
        let mut stored: Vec<(u64, Known)> = Vec::new();
        for (hash, known) in path {
            match self.pools[pool].levels.get(&hash) {
                Some(0) => {}
                Some(&level) => self.change_level(pool, hash, level, 0),
                None => stored.push((hash, known)),
            }
        }
        let Some((_, first)) = stored.first() else { return };
        let parent = first.parent;
        let blocks: Vec<Value> = stored.iter().map(|(hash, known)| block(*hash, known)).collect();
        self.tell(pool, &json!({"type": "stored", "parent_hash": parent, "blocks": blocks}));
        self.pools[pool].levels.extend(stored.iter().map(|(hash, _)| (*hash, 0)));
    }

    /// A block that nothing is built on goes for good.
    pub fn evict(&mut self, pool: usize, which: usize) {
        let pool = pool % self.pools.len();
        let leaves = self.without_children(pool, |_| true);
        let Some(&hash) = leaves.get(which % leaves.len().max(1)) else { return };
        self.pools[pool].levels.remove(&hash);
        self.tell(pool, &json!({"type": "removed", "block_hashes": [hash]}));
    }

    /// A block that nothing on the device is built on goes to the host.
    pub fn offload(&mut self, pool: usize, which: usize) {
        let pool = pool % self.pools.len();
        if self.used(pool, 1) >= self.shape.blocks[1] {
            return;
        }
        let mut ends = self.without_children(pool, |level| level == 0);
        ends.retain(|hash| self.is_on_device(pool, *hash));
        let Some(&hash) = ends.get(which % ends.len().max(1)) else { return };
        self.change_level(pool, hash, 0, 1);
    }

    fn change_level(&mut self, pool: usize, hash: u64, old: usize, new: usize) {
        let level = json!({"type": "event_diff", "new_value": new, "old_value": old});
        self.tell(
            pool,
            &json!({"type": "updated", "block_hash": hash, "cache_level": level, "priority": null}),
        );
        self.pools[pool].levels.insert(hash, new);
    }

    fn without_children(&self, pool: usize, counts: impl Fn(usize) -> bool) -> Vec<u64> {
        let levels = &self.pools[pool].levels;
        let children = levels.iter().filter(|(_, level)| counts(**level));
        let parents: BTreeSet<u64> = children.filter_map(|(hash, _)| self.known[hash].parent).collect();
        levels.keys().copied().filter(|hash| !parents.contains(hash)).collect()
    }

    fn is_on_device(&self, pool: usize, hash: u64) -> bool {
        self.pools[pool].levels.get(&hash) == Some(&0)
    }

    fn used(&self, pool: usize, level: usize) -> usize {
        self.pools[pool].levels.values().filter(|of| **of == level).count()
    }

    fn tell(&mut self, pool: usize, data: &Value) {
        let window = self.pools[pool].window;
        self.buffer.push_back(json!({"event_id": self.next_id, "data": data, "window_size": window}));
        self.next_id += 1;
        if self.buffer.len() > self.shape.buffer {
            self.buffer.pop_front();
        }
    }
}

/// The blocks of a prompt's beginning. Prompts have their first block in common.
fn path(prompt: u8, length: usize) -> Vec<(u64, Known)> {
    let mut parent = None;
    let mut path = Vec::new();
    for first in (0..length).step_by(BLOCK_SIZE) {
        let end = length.min(first + BLOCK_SIZE);
        let prompt = if first == 0 { 0 } else { prompt };
        let hash = 1 + u64::from(prompt) * 1000 + end as u64;
        path.push((hash, Known { parent, prompt, first, end }));
        parent = Some(hash);
    }
    path
}

fn block(hash: u64, known: &Known) -> Value {
    let tokens: Vec<Value> = (known.first..known.end)
        .map(|at| json!({"type": "unique_token", "token_id": usize::from(known.prompt) * 100 + at, "token_extra_id": 0}))
        .collect();
    json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": 0, "priority": 35})
}
