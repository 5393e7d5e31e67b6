//! Tells what is held again and again, so that no server forgets it.

use std::time::Duration;

use super::Outbox;
use super::holdings::{Queued, Reported, SlotId};

/// Prefixes that are refreshed are collected for this long.
const REFRESH_STEP: Duration = Duration::from_secs(1);

/// Where the walk over all prefixes is that tells them again.
#[derive(Debug, Default)]
pub(super) struct Lap {
    pub(super) at: usize,
    pub(super) walked: Duration,
    owed: f64,
}

impl Outbox {
    /// Queues what is to be refreshed. The walk goes over all slots once in a refresh, so nothing comes in
    /// bursts, also after everything was reported at once.
    pub(super) fn walk(&mut self, now: Duration) {
        let step = self.refresh_step();
        let since = now.saturating_sub(self.lap.walked);
        if since < step {
            return;
        }
        self.lap.walked = now;
        let slots = self.holdings.len();
        let share = since.as_secs_f64() / self.options.refresh.as_secs_f64().max(f64::MIN_POSITIVE);
        self.lap.owed = (self.lap.owed + share * slots as f64).min(slots as f64);
        while self.lap.owed >= 1.0 {
            self.lap.owed -= 1.0;
            if self.lap.at >= slots {
                self.lap.at = 0;
            }
            let id = self.lap.at as SlotId;
            self.lap.at += 1;
            let slot = self.holdings.slot(id);
            let is_reported =
                slot.sure && slot.wanted.is_some_and(|tier| slot.reported == Reported::At(tier));
            if is_reported && !slot.in_flight && slot.queued == Queued::No {
                self.queue(id, Queued::Add, now);
                self.holdings.slot_mut(id).refreshed = true;
            }
        }
    }

    pub(super) fn refresh_step(&self) -> Duration {
        REFRESH_STEP.min(self.options.refresh / 64)
    }
}
