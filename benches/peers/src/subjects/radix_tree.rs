//! Dynamo's `RadixTree`: one thread applies events and asks.

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;
use std::rc::Rc;

use dynamo_kv_router::protocols::{BlockHashOptions, LocalBlockHash, RouterEvent};
use dynamo_kv_router::{RadixTree, compute_block_hash_for_seq};

use super::{Column, Reader, Subject, dynamo};
use crate::workload::{BLOCK_TOKENS, Blocks, Slice};

pub(super) struct Radix {
    tree: Rc<RefCell<RadixTree>>,
    staged: Vec<Option<RouterEvent>>,
}

impl Radix {
    pub(super) fn new() -> Self {
        Self { tree: Rc::new(RefCell::new(RadixTree::new())), staged: Vec::new() }
    }
}

impl Subject for Radix {
    fn columns(&self) -> &'static [Column] {
        &[Column::RadixTree]
    }

    fn stage(&mut self, slice: &Slice, blocks: &Blocks) {
        self.staged = dynamo::stage(slice, blocks);
    }

    fn apply(&mut self, events: Range<usize>) {
        let mut tree = self.tree.borrow_mut();
        for event in self.staged[events].iter_mut().filter_map(Option::take) {
            let applied = tree.apply_event(event);
            debug_assert!(applied.is_ok());
        }
    }

    fn unstage(&mut self) {
        self.staged = Vec::new();
    }

    fn reader(&self, _column: Column) -> Box<dyn Reader> {
        Box::new(Asker { tree: self.tree.clone(), prompts: Vec::new() })
    }

    fn remote_reader(&self, _column: Column) -> Option<Box<dyn Reader + Send>> {
        None
    }

    fn remove_engine(&mut self, engine: u32) {
        self.tree.borrow_mut().remove_worker(u64::from(engine));
    }
}

struct Asker {
    tree: Rc<RefCell<RadixTree>>,
    /// A lookup takes its prompt away: that is how the tree wants it, and a copy would be timed.
    prompts: Vec<Vec<LocalBlockHash>>,
}

impl Reader for Asker {
    fn load(&mut self, prompts: &[Vec<u64>]) {
        self.prompts = dynamo::prompts(prompts);
    }

    fn lookup(&mut self, prompt: usize) {
        let prompt = std::mem::take(&mut self.prompts[prompt]);
        black_box(&self.tree.borrow().find_matches(prompt, false));
    }

    fn lookup_tokens(&mut self, tokens: &[u32]) {
        let prompt = compute_block_hash_for_seq(tokens, BLOCK_TOKENS as u32, BlockHashOptions::default());
        black_box(&self.tree.borrow().find_matches(prompt, false));
    }

    fn depths(&mut self, prompt: usize, depths: &mut [u32]) {
        let prompt = self.prompts[prompt].clone();
        dynamo::spread(&self.tree.borrow().find_matches(prompt, false), depths);
    }
}
