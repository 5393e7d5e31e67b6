//! What one caller may ask for: models, and how much in a minute. No clock: times are passed in.

use std::collections::HashSet;
use std::time::Duration;

/// What a caller is allowed. The default allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Models and adapters that it may ask for; absent: all.
    pub models: Option<HashSet<String>>,
    /// Requests in a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens in a minute, of prompts and answers together.
    pub tokens_per_minute: Option<u64>,
    /// Requests at the same time.
    pub in_flight: Option<u32>,
    /// Whose cache its prompts use: tenants never share blocks.
    pub tenant: Option<String>,
}

impl Limits {
    /// Whether a model may be asked for.
    pub fn allow(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }
}

/// What a caller used up, and when it may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Requests(Duration),
    Tokens(Duration),
    InFlight,
}

impl Over {
    /// What of it is over, in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Requests(_) => "requests",
            Self::Tokens(_) => "tokens",
            Self::InFlight => "in_flight",
        }
    }

    /// Whole seconds until it makes sense to ask again.
    pub(crate) fn retry_after(self) -> u32 {
        match self {
            Self::InFlight => 1,
            Self::Requests(wait) | Self::Tokens(wait) => {
                u32::try_from(wait.as_secs() + 1).unwrap_or(u32::MAX)
            }
        }
    }
}

/// A minute's worth, refilled all the time. May be overdrawn: what a request costs is known when it is over.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    level: f64,
    at: Duration,
}

impl Bucket {
    fn refill(&mut self, per_minute: f64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * per_minute / 60.0).min(per_minute);
        self.at = self.at.max(now);
    }

    /// How long until there is so much.
    fn wait(self, wanted: f64, per_minute: f64) -> Duration {
        Duration::try_from_secs_f64((wanted - self.level).max(0.0) * 60.0 / per_minute.max(f64::MIN_POSITIVE))
            .unwrap_or(Duration::MAX)
            .min(Duration::from_hours(1))
    }
}

/// What one caller used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    in_flight: u32,
}

impl Meter {
    /// A request begins, if it may. Each one that does has to [`leave`](Self::leave).
    pub(crate) fn enter(&mut self, limits: &Limits, now: Duration) -> Result<(), Over> {
        if limits.in_flight.is_some_and(|most| self.in_flight >= most) {
            return Err(Over::InFlight);
        }
        if let Some(per_minute) = limits.tokens_per_minute {
            let per_minute = per_minute as f64;
            let bucket = self.tokens.get_or_insert(Bucket { level: per_minute, at: now });
            bucket.refill(per_minute, now);
            if bucket.level < 1.0 {
                return Err(Over::Tokens(bucket.wait(1.0, per_minute)));
            }
        }
        if let Some(per_minute) = limits.requests_per_minute {
            let per_minute = f64::from(per_minute);
            let bucket = self.requests.get_or_insert(Bucket { level: per_minute, at: now });
            bucket.refill(per_minute, now);
            if bucket.level < 1.0 {
                return Err(Over::Requests(bucket.wait(1.0, per_minute)));
            }
            bucket.level -= 1.0;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// A request has ended, and used this many tokens.
    pub(crate) fn leave(&mut self, tokens: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(bucket) = &mut self.tokens {
            bucket.level -= tokens as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_minute_has_so_many_requests() {
        let limits = Limits { requests_per_minute: Some(6), ..Limits::default() };
        let mut meter = Meter::default();
        for _ in 0..6 {
            meter.enter(&limits, at(0)).unwrap();
        }
        let over = meter.enter(&limits, at(0)).unwrap_err();
        assert_eq!((over, over.retry_after()), (Over::Requests(at(10)), 11));
        meter.enter(&limits, at(10)).unwrap();
        assert!(meter.enter(&limits, at(11)).is_err());
    }

    #[test]
    fn tokens_may_be_overdrawn_once() {
        let limits = Limits { tokens_per_minute: Some(600), ..Limits::default() };
        let mut meter = Meter::default();
        meter.enter(&limits, at(0)).unwrap();
        meter.leave(1_200);
        assert_eq!(meter.enter(&limits, at(0)), Err(Over::Tokens(Duration::from_secs_f64(60.1))));
        assert!(meter.enter(&limits, at(61)).is_ok());
    }

    #[test]
    fn requests_at_the_same_time() {
        let limits = Limits { in_flight: Some(1), ..Limits::default() };
        let mut meter = Meter::default();
        meter.enter(&limits, at(0)).unwrap();
        assert_eq!(meter.enter(&limits, at(0)), Err(Over::InFlight));
        meter.leave(0);
        assert!(meter.enter(&limits, at(0)).is_ok());
    }

    #[test]
    fn models() {
        let limits = Limits { models: Some(HashSet::from(["a".to_owned()])), ..Limits::default() };
        assert!(limits.allow("a") && !limits.allow("b") && Limits::default().allow("b"));
    }

    proptest! {
        /// Against a count of what was let in: no window of time has more than a minute's worth and what was refilled.
        #[test]
        fn never_more_than_refilled(per_minute in 1u32..100, steps in prop::collection::vec((0u64..5_000, 1usize..20), 1..40)) {
            let limits = Limits { requests_per_minute: Some(per_minute), ..Limits::default() };
            let (mut meter, mut now, mut taken) = (Meter::default(), at(0), 0.0);
            for (later, asked) in steps {
                now += Duration::from_millis(later);
                for _ in 0..asked {
                    if let Err(over) = meter.enter(&limits, now) {
                        // The wait it is given is long enough, and not a second too long.
                        let Over::Requests(wait) = over else { panic!() };
                        prop_assert!(meter.clone().enter(&limits, now + wait + Duration::from_millis(1)).is_ok());
                    } else {
                        taken += 1.0;
                    }
                }
                let allowed = f64::from(per_minute) * (1.0 + now.as_secs_f64() / 60.0);
                prop_assert!(taken <= allowed + 1e-6);
            }
        }
    }
}
