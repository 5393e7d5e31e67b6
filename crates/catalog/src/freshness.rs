//! How old the proof is that a stream's engine is there, readable without the stream's lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_core::Continuity;

/// Nothing has been proven yet.
const NEVER: u64 = u64::MAX;

/// When a stream's engine was last proven to be there. Written under the stream's lock, read by every
/// question.
#[derive(Debug)]
pub struct Freshness {
    /// The zero of the plane's monotonic clock.
    origin: Instant,
    /// `None`: the source cannot fall silent, as the engine's own process.
    max_silence: Option<Duration>,
    /// Microseconds on the plane's monotonic clock.
    proven_at: AtomicU64,
}

impl Freshness {
    /// Nothing has been proven. Times of proof count from `origin`; without `max_silence` the source cannot
    /// fall silent.
    pub fn new(origin: Instant, max_silence: Option<Duration>) -> Self {
        Self { origin, max_silence, proven_at: AtomicU64::new(NEVER) }
    }

    /// The moment of the last proof, since the origin.
    pub fn set(&self, proven_at: Option<Duration>) {
        if let Some(at) = proven_at {
            self.proven_at.store(at.as_micros() as u64, Ordering::Release);
        }
    }

    /// How old the last proof is; `None` before the first. Zero where the source cannot fall silent.
    pub fn age(&self) -> Option<Duration> {
        self.age_at(kvplane_runtime::now())
    }

    /// [`Self::age`] at a moment: a caller with many streams reads the clock once.
    pub fn age_at(&self, now: Instant) -> Option<Duration> {
        if self.max_silence.is_none() {
            return Some(Duration::ZERO);
        }
        match self.proven_at.load(Ordering::Acquire) {
            NEVER => None,
            at => Some(now.saturating_duration_since(self.origin).saturating_sub(Duration::from_micros(at))),
        }
    }

    /// Whether the source can fall silent and nothing has been proven yet.
    pub(crate) fn is_unproven(&self) -> bool {
        self.max_silence.is_some() && self.proven_at.load(Ordering::Acquire) == NEVER
    }

    /// The last moment at which the last proof is not too old; `None` where there is no such moment.
    pub(crate) fn expiry(&self) -> Option<Instant> {
        let max = self.max_silence?;
        match self.proven_at.load(Ordering::Acquire) {
            NEVER => None,
            at => self.origin.checked_add(Duration::from_micros(at).saturating_add(max)),
        }
    }

    /// The longest age at which the stream is credited; `None` where the source cannot fall silent.
    pub fn max_silence(&self) -> Option<Duration> {
        self.max_silence
    }

    /// Whether the last proof is too old for the stream to be credited.
    pub fn is_stale(&self) -> bool {
        self.is_too_old(self.age())
    }

    /// Whether a proof of this age is too old.
    pub fn is_too_old(&self, age: Option<Duration>) -> bool {
        self.max_silence.is_some_and(|max| age.is_none_or(|age| age > max))
    }

    /// Where a stream stands that would stand there if its last proof were of this moment.
    pub fn judge(&self, continuity: Continuity, age: Option<Duration>) -> Continuity {
        if continuity == Continuity::Live && self.is_too_old(age) {
            Continuity::Recovering
        } else {
            continuity
        }
    }
}

/// An age as it is sent: whole milliseconds, rounded up so that nothing looks younger than it is.
pub fn age_ms(age: Duration) -> u64 {
    age.as_micros().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}
