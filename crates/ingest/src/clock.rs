//! The two clocks of a recorder's inputs.

use std::time::{Duration, Instant};

use kvplane_stream::Now;

/// Reads both clocks. One per plane, so that monotonic times compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
    origin_unix_ms: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: kvplane_runtime::now(), origin_unix_ms: unix_ms() }
    }

    /// Unix milliseconds that never go back, whatever is done to the wall clock meanwhile: for numbers that
    /// must rise.
    pub(crate) fn steady_unix_ms(self) -> u64 {
        let passed = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.origin_unix_ms.saturating_add(passed)
    }

    /// The zero of the monotonic clock.
    pub(crate) fn origin(self) -> Instant {
        self.origin
    }

    /// A moment on the plane's monotonic clock.
    pub(crate) fn mono(self, at: Instant) -> Duration {
        at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(self) -> Now {
        Now { mono: self.origin.elapsed(), unix_ms: unix_ms() }
    }
}

fn unix_ms() -> u64 {
    kvplane_runtime::unix_ms()
}
