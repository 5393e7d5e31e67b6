//! When a stream was last heard, and how long what it said was on its way.

use std::time::Duration;

use kvplane_core::Continuity;
use kvplane_stream::{Now, Recorder};

/// A stamp above this, in seconds, is a time of day (the year 2001): clocks that count from a machine's start
/// are far below.
const TIME_OF_DAY: f64 = 1e9;

/// How far ahead of this machine's clock another's may be. A stamp beyond is in some other unit.
const AHEAD: f64 = 86_400.0;

/// What there was before an input.
pub(super) struct Hearing {
    live: bool,
    batches: u64,
    replayed: u64,
}

impl Hearing {
    pub(super) fn begin(recorder: &Recorder) -> Self {
        Self {
            live: recorder.continuity() == Continuity::Live,
            batches: recorder.ledger().counters().batches,
            replayed: recorder.counters().replayed_batches,
        }
    }
}

/// When it was last heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// When the last event was noted, and how old it was then.
    last_event: Option<(Duration, Duration)>,
    lag: Option<Duration>,
}

impl Heard {
    /// Notes what an input brought. A batch that was asked for, or that waited for one, is as old as its
    /// stamp says: that is no time that it was on its way.
    pub(super) fn note(&mut self, before: &Hearing, recorder: &Recorder, now: Now) {
        let after = Hearing::begin(recorder);
        if after.batches == before.batches {
            return;
        }
        let age = age(recorder.ledger().last_timestamp(), now);
        let as_it_happened = before.live && after.live && before.replayed == after.replayed;
        (self.last_event, self.lag) = if as_it_happened {
            (Some((now.mono, Duration::ZERO)), age)
        } else {
            (age.map(|age| (now.mono, age)), None)
        };
    }

    pub(super) fn since_last_event(&self, now: Now) -> Option<Duration> {
        self.last_event.map(|(noted, age)| now.mono.saturating_sub(noted) + age)
    }

    pub(super) fn lag(&self) -> Option<Duration> {
        self.lag
    }
}

/// How old a batch is that was stamped with a time of day. One that is stamped with anything else has no age,
/// and none is younger than now.
fn age(stamp: Option<f64>, now: Now) -> Option<Duration> {
    let now = now.unix_ms as f64 / 1_000.0;
    let stamp = stamp.filter(|stamp| (TIME_OF_DAY..now + AHEAD).contains(stamp))?;
    Duration::try_from_secs_f64((now - stamp).max(0.0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_of_day_has_an_age() {
        let now = Now { mono: Duration::ZERO, unix_ms: 1_800_000_000_500 };
        let seconds = |stamp| age(Some(stamp), now).map(|age| age.as_secs_f64());
        assert_eq!(seconds(1_800_000_000.0), Some(0.5));
        assert_eq!(seconds(1_800_000_060.0), Some(0.0), "a clock that is ahead");
        // A machine's uptime, milliseconds, nothing that is a number.
        let year_10000 = 253_402_300_800.0;
        for stamp in
            [86_400.0, 1.8e12, year_10000, 1e300, -1.0, -1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
        {
            assert_eq!(seconds(stamp), None, "{stamp}");
        }
    }
}
