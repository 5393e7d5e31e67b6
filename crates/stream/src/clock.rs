//! Time, passed in: this room never reads a clock.

use std::time::Duration;

/// One moment, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since an arbitrary origin: for deadlines and silence.
    pub mono: Duration,
    /// Wall clock: for epochs and what people read.
    pub unix_ms: u64,
}
