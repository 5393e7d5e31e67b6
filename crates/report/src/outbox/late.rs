//! Calls that nobody answered. The server may apply one after calls that were made later: what it was about
//! is reported once more when that cannot happen any longer.

use std::collections::VecDeque;
use std::time::Duration;

use super::Outbox;
use super::holdings::{Reported, SlotId};

/// What calls without an answer were about.
#[derive(Debug)]
pub(super) struct Late {
    /// For so long after it was given up a call may still be applied.
    pub(super) grace: Duration,
    /// From when on no call will be, as far as is known.
    pub(super) until: Duration,
    /// Prefixes, and when they are reported once more; the earliest first.
    slots: VecDeque<(Duration, SlotId)>,
}

impl Late {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, until: Duration::ZERO, slots: VecDeque::new() }
    }

    /// When there is something to tell once more.
    pub(super) fn next(&self) -> Option<Duration> {
        self.slots.front().map(|&(due, _)| due)
    }

    /// Everything is cleared, and once more when no call is late any longer.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }
}

impl Outbox {
    /// A call about a prefix had no answer. It is remembered until that call cannot be applied any more.
    pub(super) fn is_late(&mut self, id: SlotId, now: Duration) {
        let slot = self.holdings.slot_mut(id);
        if slot.late < u16::MAX {
            slot.late += 1;
            self.late.slots.push_back((now + self.late.grace, id));
        }
    }

    /// Tells once more what calls may have undone that were late.
    pub(super) fn tell_late(&mut self, now: Duration) {
        while let Some(&(due, id)) = self.late.slots.front().filter(|(due, _)| *due <= now) {
            debug_assert!(self.holdings.slot(id).is_used(), "due at {due:?}");
            self.late.slots.pop_front();
            let slot = self.holdings.slot_mut(id);
            slot.late -= 1;
            if slot.in_flight {
                // The late one may have been applied after this one.
                self.is_late(id, now);
            } else if slot.late == 0 {
                self.holdings.set_reported(id, Reported::Perhaps);
                self.settle(id, now);
            }
        }
    }
}
