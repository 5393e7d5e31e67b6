//! When a thread's subscriptions want to be looked at.
//!
//! Deadlines are rounded up to slots of one tick. So a thread wakes up once for all that is due within a
//! tick, and its work is what is due: a subscription that waits is in a slot, and nobody looks at it before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Subscriptions by the slot that they wait for.
pub(crate) struct Timers {
    began: Instant,
    tick: Duration,
    slots: BTreeMap<u64, Vec<u64>>,
}

impl Timers {
    /// Slots are counted from `began`.
    pub(crate) fn new(began: Instant, tick: Duration) -> Self {
        Self { began, tick: tick.max(Duration::from_millis(1)), slots: BTreeMap::new() }
    }

    /// Puts a subscription into the slot of a deadline, unless it waits for an earlier one. Every slot is
    /// after `now`: what is due already gets its turn with the next tick.
    pub(crate) fn set(&mut self, id: u64, waits_for: &mut Option<u64>, due: Instant, now: Instant) {
        let until = due.saturating_duration_since(self.began).as_nanos();
        let slot = until.div_ceil(self.tick.as_nanos()) as u64;
        let slot = slot.max(self.passed(now) + 1);
        if waits_for.is_none_or(|waits_for| slot < waits_for) {
            *waits_for = Some(slot);
            self.slots.entry(slot).or_default().push(id);
        }
    }

    /// The earliest slot that has come, and who is in it. Some may wait for another one by now, or be gone.
    pub(crate) fn come(&mut self, now: Instant) -> Option<(u64, Vec<u64>)> {
        let passed = self.passed(now);
        let first = self.slots.first_entry()?;
        (*first.key() <= passed).then(|| first.remove_entry())
    }

    /// How long until a slot comes.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let (&slot, _) = self.slots.first_key_value()?;
        let at = Duration::from_nanos_u128(self.tick.as_nanos().saturating_mul(slot.into()));
        Some(at.saturating_sub(now.saturating_duration_since(self.began)))
    }

    /// The slot that is the present one.
    fn passed(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.began).as_nanos() / self.tick.as_nanos()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    #[test]
    fn whoever_is_due_comes_within_a_tick_and_nobody_before() {
        let began = kvplane_runtime::now();
        let at = |millis| began + Duration::from_millis(millis);
        let mut timers = Timers::new(began, TICK);
        assert_eq!(timers.rest(began), None);
        let mut slots = [None; 4];
        for (id, due) in [(0, 250), (1, 300), (2, 0), (3, 999)] {
            timers.set(id, &mut slots[id as usize], at(due), at(50));
        }
        assert_eq!(
            timers.rest(at(50)),
            Some(Duration::from_millis(50)),
            "what is due comes with the next tick"
        );
        assert_eq!(timers.come(at(99)), None);
        assert_eq!(timers.come(at(100)), Some((1, vec![2])));
        assert_eq!(timers.come(at(299)), None);
        assert_eq!(timers.come(at(5_000)), Some((3, vec![0, 1])), "the earliest first, also after a stall");
        assert_eq!(timers.come(at(5_000)), Some((10, vec![3])));
        assert_eq!((timers.come(at(5_000)), timers.rest(at(5_000))), (None, None));
    }

    #[test]
    fn an_earlier_deadline_counts_and_a_later_one_waits_for_the_look() {
        let began = kvplane_runtime::now();
        let at = |millis| began + Duration::from_millis(millis);
        let (mut timers, mut slot) = (Timers::new(began, TICK), None);
        timers.set(7, &mut slot, at(500), began);
        timers.set(7, &mut slot, at(900), began);
        assert_eq!(slot, Some(5), "a later deadline moves nothing: it is found at the earlier one");
        timers.set(7, &mut slot, at(200), began);
        assert_eq!(slot, Some(2));
        assert_eq!(timers.come(at(200)), Some((2, vec![7])));
    }
}
