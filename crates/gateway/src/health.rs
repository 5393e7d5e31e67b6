//! Whether an endpoint takes requests: by what came of those it was sent, and by probes. No clock: times are passed in.
//!
//! ```text
//!              `failures` in a row                      its time is over: one trial
//!  closed ─────────────────────────> open ────────────────────────────────> half open
//!    ^                                ^ the trial failed: open for twice as long │
//!    └────────────────────────────────┴──────────────────────────────────────────┘ the trial succeeded: closed
//! ```
//!
//! Probes go beside it: an endpoint that fails some in a row is down until one succeeds.

use std::time::Duration;

/// When an endpoint is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthOptions {
    /// Failed requests in a row that open its breaker.
    pub failures: u32,
    /// How long it is open for the first time; each further time doubles it, up to `open_max`.
    pub open: Duration,
    /// The longest time that it stays open.
    pub open_max: Duration,
    /// Failed probes in a row after which the endpoint is down.
    pub probes: u32,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self { failures: 3, open: Duration::from_secs(1), open_max: Duration::from_secs(30), probes: 3 }
    }
}

/// A trial that nobody ended by then is forgotten: another may be made.
const TRIAL: Duration = Duration::from_secs(10);

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It takes requests.
    Up,
    /// It takes one request, to see how it is.
    Trial,
    /// Its breaker is open.
    Open,
    /// It fails its probes.
    Down,
}

impl Standing {
    pub(crate) const ALL: [Self; 4] = [Self::Up, Self::Trial, Self::Open, Self::Down];

    /// Its name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Trial => "trial",
            Self::Open => "open",
            Self::Down => "down",
        }
    }
}

/// What is known of one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    failures: u32,
    /// How often it was opened since a request succeeded.
    openings: u32,
    open_until: Option<Duration>,
    /// When a trial began that is not over.
    trial: Option<Duration>,
    failed_probes: u32,
    down: bool,
}

impl Health {
    pub(crate) fn standing(&self, now: Duration) -> Standing {
        if self.down {
            return Standing::Down;
        }
        match (self.open_until, self.trial) {
            (None, _) => Standing::Up,
            (Some(until), _) if now < until => Standing::Open,
            (Some(_), Some(trial)) if now < trial + TRIAL => Standing::Open,
            (Some(_), _) => Standing::Trial,
        }
    }

    /// A request is sent to it.
    pub(crate) fn sent(&mut self, now: Duration) {
        if self.standing(now) == Standing::Trial {
            self.trial = Some(now);
        }
    }

    /// A request was answered.
    pub(crate) fn succeeded(&mut self) {
        (self.failures, self.openings, self.open_until, self.trial) = (0, 0, None, None);
    }

    /// A request was not answered, or with an error of the engine's own.
    pub(crate) fn failed(&mut self, options: &HealthOptions, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        // Requests that were sent before it was opened say nothing new.
        let open = self.open_until.is_some_and(|until| now < until);
        if open || (self.trial.is_none() && self.failures < options.failures) {
            return;
        }
        let doubled = options.open.saturating_mul(1 << self.openings.min(16));
        self.openings = self.openings.saturating_add(1);
        self.open_until = Some(now + doubled.min(options.open_max));
        self.trial = None;
    }

    /// A request was given up by its client: it says nothing about the endpoint.
    pub(crate) fn given_up(&mut self) {
        self.trial = None;
    }

    /// A probe was answered, or not.
    pub(crate) fn probed(&mut self, options: &HealthOptions, well: bool, now: Duration) {
        if well {
            (self.failed_probes, self.down) = (0, false);
            // It lives: what it does with requests is seen by the next one.
            if let Some(until) = &mut self.open_until {
                *until = now.min(*until);
            }
        } else {
            self.failed_probes = self.failed_probes.saturating_add(1);
            self.down |= self.failed_probes >= options.probes;
        }
    }
}

#[cfg(test)]
mod tests;
