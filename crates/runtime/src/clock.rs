//! The machine's clocks.

#![allow(clippy::disallowed_methods, reason = "this is where clocks are read")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock: for ages, deadlines and durations.
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day since 1970: for people, and for engines that stamp with it. It can jump, so it orders
/// nothing. A clock that is set to a moment before 1970 reads zero.
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// [`unix_time`] in whole milliseconds.
pub fn unix_ms() -> u64 {
    u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
}
