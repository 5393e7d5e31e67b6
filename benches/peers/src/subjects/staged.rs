//! Events for subjects that borrow them: all blocks in two lists.

use std::ops::Range;

use crate::workload::{BlockId, Kind, Slice};

/// One event; its blocks are a part of the lists.
#[derive(Debug)]
pub(crate) enum Step<H> {
    Store { engine: u32, parent: Option<H>, blocks: Range<usize> },
    Remove { engine: u32, hashes: Range<usize> },
}

/// Events in a subject's own types: `B` for a stored block, `H` for an engine's hash.
#[derive(Debug)]
pub(crate) struct Staged<B, H> {
    pub(crate) steps: Vec<Step<H>>,
    pub(crate) blocks: Vec<B>,
    pub(crate) hashes: Vec<H>,
}

impl<B, H> Default for Staged<B, H> {
    fn default() -> Self {
        Self { steps: Vec::new(), blocks: Vec::new(), hashes: Vec::new() }
    }
}

impl<B, H> Staged<B, H> {
    pub(crate) fn new(
        slice: &Slice,
        block: impl Fn(u32, BlockId) -> B,
        hash: impl Fn(u32, BlockId) -> H,
    ) -> Self {
        let mut staged = Self::default();
        for event in &slice.events {
            let engine = event.engine;
            let blocks = slice.blocks(event).iter();
            staged.steps.push(match event.kind {
                Kind::Store { parent } => {
                    let start = staged.blocks.len();
                    staged.blocks.extend(blocks.map(|&id| block(engine, id)));
                    let parent = parent.map(|id| hash(engine, id));
                    Step::Store { engine, parent, blocks: start..staged.blocks.len() }
                }
                Kind::Remove => {
                    let start = staged.hashes.len();
                    staged.hashes.extend(blocks.map(|&id| hash(engine, id)));
                    Step::Remove { engine, hashes: start..staged.hashes.len() }
                }
            });
        }
        staged
    }
}
