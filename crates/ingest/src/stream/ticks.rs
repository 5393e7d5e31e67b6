//! When a stream wants a tick. Most are idle most of the time: nobody looks at them until their moment has
//! come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_socket::Alarm;
use parking_lot::Mutex;

use super::Stream;

/// No moment at all.
const NEVER: u64 = u64::MAX;

/// The moment of the next tick, in microseconds on the plane's monotonic clock. Written under the stream's
/// lock, read without.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    /// Until when a tick changes nothing.
    idle_until: AtomicU64,
    /// The moment that the thread of its socket last read; zero before it has asked.
    promised: AtomicU64,
    alarm: Mutex<Option<Alarm>>,
}

impl Ticks {
    /// Nothing changes until this moment, unless something is fed. A thread that sleeps for longer is woken.
    pub(super) fn set(&self, idle_until: Duration) {
        let at = idle_until.as_micros().try_into().unwrap_or(NEVER);
        self.idle_until.store(at, Ordering::SeqCst);
        if self.promised.fetch_min(at, Ordering::SeqCst) > at
            && let Some(alarm) = &*self.alarm.lock()
        {
            alarm.ring();
        }
    }

    /// The moment, which the caller will wait for. One that is set meanwhile and is earlier is not missed:
    /// either it is seen here, or the setter sees which moment was read.
    fn tell(&self) -> u64 {
        loop {
            let at = self.idle_until.load(Ordering::SeqCst);
            self.promised.store(at, Ordering::SeqCst);
            if self.idle_until.load(Ordering::SeqCst) >= at {
                return at;
            }
        }
    }
}

impl Stream {
    /// Whether a tick at this moment may change anything. Asking costs no lock.
    pub(crate) fn needs_tick(&self, now: Instant) -> bool {
        self.clock.mono(now).as_micros() >= u128::from(self.ticks.idle_until.load(Ordering::Acquire))
    }

    /// When a tick may change something; `None` while only what is fed does. The thread that asked is woken
    /// by the alarm when it becomes earlier.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.ticks.tell() {
            NEVER => None,
            at => self.clock.origin().checked_add(Duration::from_micros(at)),
        }
    }

    /// Rings from now on when a tick is due earlier than was said.
    pub(crate) fn set_alarm(&self, alarm: Alarm) {
        *self.ticks.alarm.lock() = Some(alarm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_moment_is_noticed_and_a_later_one_is_left_for_the_next_look() {
        let ticks = Ticks::default();
        ticks.set(Duration::from_secs(5));
        assert_eq!(ticks.promised.load(Ordering::SeqCst), 0, "nobody has asked");
        assert_eq!(ticks.tell(), 5_000_000);
        ticks.set(Duration::from_secs(9));
        assert_eq!(ticks.promised.load(Ordering::SeqCst), 5_000_000);
        ticks.set(Duration::from_secs(1));
        assert_eq!(ticks.promised.load(Ordering::SeqCst), 1_000_000, "rung once for it");
        ticks.set(Duration::MAX);
        assert_eq!(ticks.tell(), NEVER);
    }
}
