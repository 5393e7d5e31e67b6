//! Events until they are drained: numbered, and the oldest forgotten when there is no room.

use std::collections::VecDeque;

use kvplane_wire::trtllm::encode::TrtEvent;

/// An event and its place among those of all ranks.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) arrival: u64,
    pub(super) event: TrtEvent,
}

/// The events of one rank.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    capacity: usize,
    next_id: u64,
    kept: VecDeque<Kept>,
    /// Events that were forgotten before anybody drained them.
    forgotten: u64,
    /// Events to come that take a number and are forgotten at once.
    losing: u32,
}

impl Buffer {
    /// A buffer for this many events; without room there are no events at all.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Numbers an event and keeps it.
    pub(super) fn push(&mut self, arrival: u64, event: impl FnOnce(u64) -> TrtEvent) {
        if self.capacity == 0 {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        if self.losing > 0 {
            self.losing -= 1;
            self.forgotten += 1;
            return;
        }
        self.kept.push_back(Kept { arrival, event: event(id) });
        if self.kept.len() > self.capacity {
            self.kept.pop_front();
            self.forgotten += 1;
        }
    }

    /// Everything, which is then gone from here.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Kept> {
        self.kept.drain(..)
    }

    /// Makes the next events get lost.
    pub(super) fn lose(&mut self, events: u32) {
        self.losing += events;
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn has_events(&self) -> bool {
        self.capacity > 0
    }
}
