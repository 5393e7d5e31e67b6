//! The two clocks that a recorder is told.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvplane_stream::Now;

/// Reads both clocks. One per plane, so that monotonic times compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// A moment on the plane's monotonic clock.
    pub(crate) fn mono(self, at: Instant) -> Duration {
        at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(self) -> Now {
        let unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Now { mono: self.origin.elapsed(), unix_ms }
    }
}
