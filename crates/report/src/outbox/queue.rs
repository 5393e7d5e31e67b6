//! Prefixes in the order in which they are to be reported.

use std::collections::VecDeque;

use super::holdings::{Holdings, Queued, SlotId};

/// A queue of slots. A slot that leaves it early leaves a void entry behind, known by its number.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<(SlotId, u32)>,
    live: usize,
}

impl Queue {
    /// Slots that wait in it.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Entries, void ones included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(&mut self, id: SlotId, entry: u32) {
        self.entries.push_back((id, entry));
        self.live += 1;
    }

    /// A slot that was in it is not any more.
    pub(super) fn left(&mut self) {
        self.live -= 1;
    }

    pub(super) fn front(&self) -> Option<(SlotId, u32)> {
        self.entries.front().copied()
    }

    /// Takes the first entry, void or not; the caller says whether it was.
    pub(super) fn pop(&mut self) {
        self.entries.pop_front();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops void entries where they are too many: a prefix that comes and goes leaves one each time.
    pub(super) fn tidy(&mut self, holdings: &Holdings, kind: Queued) {
        if self.entries.len() > 2 * self.live + 1_024 {
            self.entries.retain(|&(id, entry)| is_live(holdings, id, entry, kind));
        }
    }
}

/// Whether an entry of a queue is its slot's latest.
pub(super) fn is_live(holdings: &Holdings, id: SlotId, entry: u32, kind: Queued) -> bool {
    // The queue may outlive what it names: after everything was dropped there are fewer slots.
    (id as usize) < holdings.len() && {
        let slot = holdings.slot(id);
        slot.queued == kind && slot.entry == entry
    }
}
