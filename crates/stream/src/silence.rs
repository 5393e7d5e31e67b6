//! A source of which nothing was proven for longer than the limit.

use std::time::Duration;

use kvplane_core::Continuity;

use crate::clock::Now;
use crate::sequencer::Counters;

/// Since when nothing has been proven, while that is too long.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    since: Option<Duration>,
    down: bool,
}

impl Silence {
    pub(crate) fn begin(&mut self, now: Now, counters: &mut Counters) {
        if self.since.is_none() {
            self.since = Some(now.mono);
            counters.silences += 1;
        }
    }

    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Time passed: a silence that lasts is `down`.
    pub(crate) fn tick(&mut self, now: Now, down_after: Duration) {
        self.down = self.since.is_some_and(|since| now.mono.saturating_sub(since) >= down_after);
    }

    /// Where a stream stands that would stand there, were it not for the silence.
    pub(crate) fn limit(&self, continuity: Continuity) -> Continuity {
        match continuity {
            _ if self.down => Continuity::Down,
            Continuity::Live if self.since.is_some() => Continuity::Recovering,
            other => other,
        }
    }
}
