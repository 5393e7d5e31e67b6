//! What is counted, for metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kvplane_inference::NoTokens;

use crate::api::Api;

/// Upper ends of the buckets, in seconds.
const FIRST_TOKEN: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
const PER_TOKEN: [f64; 12] = [0.001, 0.002_5, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];
const QUEUE: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5];

/// How a request was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// By the ids of its prompt.
    Tokens,
    /// By load: its ids were not known.
    Load,
    /// In turn: nothing is known of the engines that serve it.
    InTurn,
}

impl Decision {
    const ALL: [(Self, &str); 3] =
        [(Self::Tokens, "tokens"), (Self::Load, "load"), (Self::InTurn, "in_turn")];
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Whole.
    Finished,
    /// The client went before its end.
    ClientGone,
    /// The engine's connection ended before it did.
    Broken,
    /// The engine was silent for too long.
    Silent,
}

impl Ended {
    pub(crate) fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    const ALL: [(Self, &str); 4] = [
        (Self::Finished, "finished"),
        (Self::ClientGone, "client_gone"),
        (Self::Broken, "broken"),
        (Self::Silent, "silent"),
    ];
}

/// Where the prompt of a request was computed whose engine only decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefilled {
    /// On an engine that prefills.
    Apart,
    /// On the engine that decodes: nearly all of it was there, or it is an API that knows no other way.
    InPlace,
    /// Not on the engine that was to prefill.
    Failed,
}

impl Prefilled {
    const ALL: [(Self, &str); 3] =
        [(Self::Apart, "apart"), (Self::InPlace, "in_place"), (Self::Failed, "failed")];
}

/// What came of a request's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exported {
    /// The collector took it.
    Sent,
    /// The collector did not.
    Failed,
    /// Too many waited for it.
    Dropped,
}

impl Exported {
    const ALL: [(Self, &str); 3] =
        [(Self::Sent, "sent"), (Self::Failed, "failed"), (Self::Dropped, "dropped")];
}

/// Why a request was sent once more.
pub(crate) const RETRIES: [&str; 6] =
    ["connect", "stale_connection", "connection_lost", "timeout", "status", "not_understood"];

/// How long something took: counts by upper ends, in seconds.
#[derive(Debug)]
pub(crate) struct Times {
    bounds: &'static [f64],
    /// One for each bound; the last is everything above the last bound.
    counts: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

/// Times at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct TimesRead {
    /// Seconds in all.
    pub sum: f64,
    /// How many in all.
    pub count: u64,
    /// Upper ends and counts; the last end is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl Times {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, nanoseconds: AtomicU64::new(0) }
    }

    pub(crate) fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        one(&self.counts[at]);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn read(&self) -> TimesRead {
        let ends = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = ends.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        TimesRead { sum: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9, count, buckets }
    }
}

/// Counters of a gateway.
#[derive(Debug)]
pub struct Stats {
    /// By API, then by the hundreds of the status.
    requests: [[AtomicU64; 5]; Api::ALL.len()],
    decisions: [AtomicU64; Decision::ALL.len()],
    without_tokens: [AtomicU64; NoTokens::ALL.len()],
    ended: [AtomicU64; Ended::ALL.len()],
    retries: [AtomicU64; RETRIES.len()],
    limited: [AtomicU64; 3],
    prefills: [AtomicU64; Prefilled::ALL.len()],
    traces: [AtomicU64; Exported::ALL.len()],
    refused: [AtomicU64; Bound::ALL.len()],
    pub(crate) unretried: AtomicU64,
    pub(crate) forwarded_ids: AtomicU64,
    pub(crate) withdrawn_ids: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) first_token: Times,
    pub(crate) per_token: Times,
    pub(crate) queue: Times,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            requests: Default::default(),
            decisions: Default::default(),
            without_tokens: Default::default(),
            ended: Default::default(),
            retries: Default::default(),
            limited: Default::default(),
            prefills: Default::default(),
            traces: Default::default(),
            refused: Default::default(),
            unretried: AtomicU64::new(0),
            forwarded_ids: AtomicU64::new(0),
            withdrawn_ids: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            first_token: Times::new(&FIRST_TOKEN),
            per_token: Times::new(&PER_TOKEN),
            queue: Times::new(&QUEUE),
        }
    }
}

/// Bounds of the gateway itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Requests,
    RequestsOfPeer,
    BodyBytes,
    BodyBytesOfPeer,
    BodySize,
    BodyTime,
}

impl Bound {
    const ALL: [(Self, &str); 6] = [
        (Self::Requests, "too_many_requests"),
        (Self::RequestsOfPeer, "too_many_requests_of_peer"),
        (Self::BodyBytes, "body_bytes"),
        (Self::BodyBytesOfPeer, "body_bytes_of_peer"),
        (Self::BodySize, "body_too_large"),
        (Self::BodyTime, "body_timeout"),
    ];
}

/// Limits of callers that were reached.
const LIMITED: [&str; 3] = ["requests", "tokens", "in_flight"];

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Stats {
    pub(crate) fn answered(&self, api: Api, status: u16) {
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        one(&self.requests[api as usize][class]);
    }

    pub(crate) fn decided(&self, decision: Decision, without: Option<NoTokens>) {
        one(&self.decisions[decision as usize]);
        if let Some(why) = without {
            one(&self.without_tokens[why as usize]);
        }
    }

    pub(crate) fn ended(&self, ended: Ended) {
        one(&self.ended[ended as usize]);
    }

    pub(crate) fn retried(&self, why: &str) {
        if let Some(at) = RETRIES.iter().position(|known| *known == why) {
            one(&self.retries[at]);
        }
    }

    pub(crate) fn exported(&self, what: Exported, count: u64) {
        self.traces[what as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn prefilled(&self, how: Prefilled) {
        one(&self.prefills[how as usize]);
    }

    pub(crate) fn limited(&self, what: &str) {
        if let Some(at) = LIMITED.iter().position(|known| *known == what) {
            one(&self.limited[at]);
        }
    }

    pub(crate) fn refused(&self, bound: Bound) {
        one(&self.refused[bound as usize]);
    }

    pub(crate) fn took(&self, first: Option<Duration>, rest: Option<(Duration, u64)>) {
        if let Some(first) = first {
            self.first_token.record(first);
        }
        if let Some((took, tokens)) = rest
            && tokens > 1
        {
            self.per_token.record(took / u32::try_from(tokens - 1).unwrap_or(u32::MAX));
        }
    }

    /// Requests by API and by the hundreds of their status.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        Api::ALL.iter().zip(&self.requests).flat_map(|(api, classes)| {
            let counts = CLASSES.iter().zip(classes).map(|(class, n)| (*class, n.load(Ordering::Relaxed)));
            counts.filter(|(_, count)| *count > 0).map(|(class, count)| (api.as_str(), class, count))
        })
    }

    /// Each other counter with a label.
    pub fn labelled(&self) -> [Vec<(&'static str, u64)>; 8] {
        fn read<const N: usize>(
            names: impl Iterator<Item = &'static str>,
            counts: &[AtomicU64; N],
        ) -> Vec<(&'static str, u64)> {
            names.zip(counts).map(|(name, count)| (name, count.load(Ordering::Relaxed))).collect()
        }
        [
            read(Decision::ALL.iter().map(|(_, name)| *name), &self.decisions),
            read(NoTokens::ALL.iter().map(|why| why.as_str()), &self.without_tokens),
            read(Ended::ALL.iter().map(|(_, name)| *name), &self.ended),
            read(RETRIES.into_iter(), &self.retries),
            read(LIMITED.into_iter(), &self.limited),
            read(Prefilled::ALL.iter().map(|(_, name)| *name), &self.prefills),
            read(Exported::ALL.iter().map(|(_, name)| *name), &self.traces),
            read(Bound::ALL.iter().map(|(_, name)| *name), &self.refused),
        ]
    }

    /// Retries that were not made because their budget was used up, prompts sent as ids, and endpoints that
    /// were found not to take them.
    pub fn counts(&self) -> [u64; 3] {
        [&self.unretried, &self.forwarded_ids, &self.withdrawn_ids].map(|count| count.load(Ordering::Relaxed))
    }

    /// Requests in progress.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed) as u64
    }

    /// Times to the first byte, between tokens, and until a request was sent on.
    pub fn times(&self) -> [TimesRead; 3] {
        [self.first_token.read(), self.per_token.read(), self.queue.read()]
    }
}
