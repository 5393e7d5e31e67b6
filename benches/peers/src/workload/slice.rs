//! A stretch of the workload: what engines announced, and which requests came in between.

use std::ops::Range;

use super::blocks::BlockId;

/// What an engine announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Blocks that follow `parent`, or start a prompt.
    Store { parent: Option<BlockId> },
    /// Blocks that were evicted.
    Remove,
}

/// One event of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) engine: u32,
    pub(crate) kind: Kind,
    blocks: Range<usize>,
}

/// A request comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// How many events of the slice came before it.
    pub(crate) after: usize,
    prompt: Range<usize>,
}

/// Events in order. Blocks lie in one list: a slice of millions of blocks has few allocations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) events: Vec<Event>,
    pub(crate) arrivals: Vec<Arrival>,
    blocks: Vec<BlockId>,
    prompts: Vec<BlockId>,
}

impl Slice {
    pub(crate) fn push(&mut self, engine: u32, kind: Kind, blocks: &[BlockId]) {
        if blocks.is_empty() {
            return;
        }
        let start = self.blocks.len();
        self.blocks.extend_from_slice(blocks);
        self.events.push(Event { engine, kind, blocks: start..self.blocks.len() });
    }

    pub(crate) fn arrive(&mut self, prompt: &[BlockId]) {
        let start = self.prompts.len();
        self.prompts.extend_from_slice(prompt);
        self.arrivals.push(Arrival { after: self.events.len(), prompt: start..self.prompts.len() });
    }

    /// The blocks of an event.
    pub(crate) fn blocks(&self, event: &Event) -> &[BlockId] {
        &self.blocks[event.blocks.clone()]
    }

    /// The prompt of a request.
    pub(crate) fn prompt(&self, arrival: &Arrival) -> &[BlockId] {
        &self.prompts[arrival.prompt.clone()]
    }

    /// Blocks stored plus blocks removed.
    pub(crate) fn block_operations(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks of all prompts.
    pub(crate) fn prompt_blocks(&self) -> usize {
        self.prompts.len()
    }
}
