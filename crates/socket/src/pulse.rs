//! Whether a thread still goes round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When a thread last began a round of its work.
pub(crate) struct Pulse {
    since: Instant,
    /// In milliseconds from `since`.
    last: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { since: kvplane_runtime::now(), last: AtomicU64::new(0) }
    }
}

impl Pulse {
    /// A round begins.
    pub(crate) fn beat(&self) {
        self.last.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long the round has lasted.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}
