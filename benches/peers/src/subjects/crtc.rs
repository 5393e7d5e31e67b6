//! Dynamo's `ConcurrentRadixTreeCompressed`, as its router runs it by default: in a pool of threads that apply events.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use dynamo_kv_router::indexer::KvIndexerInterface;
use dynamo_kv_router::protocols::{BlockHashOptions, LocalBlockHash, RouterEvent};
use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, SyncIndexer, ThreadPoolIndexer, compute_block_hash_for_seq,
};

use super::{Column, Reader, Subject, dynamo};
use crate::workload::{BLOCK_TOKENS, Blocks, Slice};

/// Its router's default for `router_event_threads`.
const THREADS: usize = 4;

pub(super) struct Crtc {
    pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    staged: Vec<Option<RouterEvent>>,
}

impl Crtc {
    pub(super) fn new() -> Self {
        let tree = ConcurrentRadixTreeCompressed::new();
        Self { pool: ThreadPoolIndexer::new(tree, THREADS, BLOCK_TOKENS as u32), staged: Vec::new() }
    }

    fn asker(&self) -> Asker {
        Asker { tree: self.pool.backend_arc(), prompts: Vec::new() }
    }
}

impl Subject for Crtc {
    fn columns(&self) -> &'static [Column] {
        &[Column::Crtc]
    }

    fn stage(&mut self, slice: &Slice, blocks: &Blocks) {
        self.staged = dynamo::stage(slice, blocks);
    }

    fn apply(&mut self, events: Range<usize>) {
        for event in self.staged[events].iter_mut().filter_map(Option::take) {
            let queued = self.pool.enqueue_event(event);
            debug_assert!(queued.is_ok());
        }
    }

    fn drain(&mut self) {
        let flushed = pollster::block_on(self.pool.flush_and_wait());
        debug_assert!(flushed.is_ok());
    }

    fn unstage(&mut self) {
        self.staged = Vec::new();
    }

    fn reader(&self, _column: Column) -> Box<dyn Reader> {
        Box::new(self.asker())
    }

    fn remote_reader(&self, _column: Column) -> Option<Box<dyn Reader + Send>> {
        Some(Box::new(self.asker()))
    }

    fn remove_engine(&mut self, engine: u32) {
        pollster::block_on(self.pool.remove_worker(u64::from(engine)));
    }
}

struct Asker {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    prompts: Vec<Vec<LocalBlockHash>>,
}

impl Reader for Asker {
    fn load(&mut self, prompts: &[Vec<u64>]) {
        self.prompts = dynamo::prompts(prompts);
    }

    fn lookup(&mut self, prompt: usize) {
        black_box(&self.tree.find_matches(&self.prompts[prompt], false));
    }

    fn lookup_tokens(&mut self, tokens: &[u32]) {
        let prompt = compute_block_hash_for_seq(tokens, BLOCK_TOKENS as u32, BlockHashOptions::default());
        black_box(&self.tree.find_matches(&prompt, false));
    }

    fn depths(&mut self, prompt: usize, depths: &mut [u32]) {
        dynamo::spread(&self.tree.find_matches(&self.prompts[prompt], false), depths);
    }
}
