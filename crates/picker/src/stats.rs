//! What was counted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use kvplane_inference::NoTokens;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Picked by the ids of its prompt.
    Tokens,
    /// Picked by load: the ids are not known.
    Load,
    /// Sent in turn: kvplane knows nothing of the model.
    InTurn,
    /// Refused: its body cannot be understood, or is too long.
    Invalid,
    /// Refused: no endpoint is eligible.
    NoEndpoint,
    /// Refused: everybody is busy.
    Shed,
    /// Refused: `prefer: if-available`, and nothing is cached.
    NotCached,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 7] = [
        Self::Tokens,
        Self::Load,
        Self::InTurn,
        Self::Invalid,
        Self::NoEndpoint,
        Self::Shed,
        Self::NotCached,
    ];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Load => "load",
            Self::InTurn => "in_turn",
            Self::Invalid => "invalid",
            Self::NoEndpoint => "no_endpoint",
            Self::Shed => "shed",
            Self::NotCached => "not_cached",
        }
    }
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Whole, with the tokens that were cached.
    Usage,
    /// Whole, and the engine did not say what was cached.
    NoUsage,
    /// The engine answered with an error.
    Failed,
    /// Somebody went before the end.
    Aborted,
}

impl Ended {
    const ALL: [(Self, &str); 4] = [
        (Self::Usage, "usage"),
        (Self::NoUsage, "no_usage"),
        (Self::Failed, "failed"),
        (Self::Aborted, "aborted"),
    ];
}

/// Counters, for metrics.
#[derive(Debug, Default)]
pub struct Stats {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    without_tokens: [AtomicU64; NoTokens::ALL.len()],
    ended: [AtomicU64; Ended::ALL.len()],
    wrong_endpoint: AtomicU64,
    rewritten: AtomicU64,
    streams: AtomicUsize,
    all_streams: AtomicU64,
    in_flight: AtomicUsize,
}

impl Stats {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_without(&self, why: NoTokens) {
        self.without_tokens[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_end(&self, ended: Ended) {
        self.ended[ended as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_wrong_endpoint(&self) {
        self.wrong_endpoint.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_rewritten(&self) {
        self.rewritten.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_began(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.all_streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_ended(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> &AtomicUsize {
        &self.in_flight
    }

    /// Requests by what became of them.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Outcome::ALL.iter().zip(&self.outcomes).map(|(one, n)| (one.as_str(), n.load(Ordering::Relaxed)))
    }

    /// Picks by load, by why the ids were not known.
    pub fn without_tokens(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NoTokens::ALL
            .iter()
            .zip(&self.without_tokens)
            .map(|(one, n)| (one.as_str(), n.load(Ordering::Relaxed)))
    }

    /// Picks by how they ended.
    pub fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Ended::ALL.iter().zip(&self.ended).map(|((_, name), n)| (*name, n.load(Ordering::Relaxed)))
    }

    /// Answers of somebody else than the endpoint that was picked.
    pub fn wrong_endpoints(&self) -> u64 {
        self.wrong_endpoint.load(Ordering::Relaxed)
    }

    /// Requests for which another model was asked for.
    pub fn rewritten(&self) -> u64 {
        self.rewritten.load(Ordering::Relaxed)
    }

    /// Streams that there were.
    pub fn all_streams(&self) -> u64 {
        self.all_streams.load(Ordering::Relaxed)
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}
