//! Where tokens go that were cached and not delivered.

/// Why tokens were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Evicted everywhere.
    Capacity,
    /// Held, but not in all groups that the engine needs to go on.
    NotResumable,
    /// Held by somebody who may not be picked.
    Eligibility,
    /// Held by somebody who would have cost more.
    Load,
    /// The engine let go of a block after the decision.
    EvictedBetween,
    /// Another engine served.
    WrongEndpoint,
    /// Another rank served.
    WrongRank,
    /// The engine saw another prompt.
    WrongTokens,
    /// The engine began a new life.
    Restart,
    /// The prediction was not exact, and said so.
    NotExact,
    /// Nothing explains it.
    Unknown,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 11] = [
        Self::Capacity,
        Self::NotResumable,
        Self::Eligibility,
        Self::Load,
        Self::EvictedBetween,
        Self::WrongEndpoint,
        Self::WrongRank,
        Self::WrongTokens,
        Self::Restart,
        Self::NotExact,
        Self::Unknown,
    ];

    /// Its name in receipts and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::NotResumable => "not_resumable",
            Self::Eligibility => "eligibility",
            Self::Load => "load",
            Self::EvictedBetween => "evicted_between",
            Self::WrongEndpoint => "wrong_endpoint",
            Self::WrongRank => "wrong_rank",
            Self::WrongTokens => "wrong_tokens",
            Self::Restart => "restart",
            Self::NotExact => "not_exact",
            Self::Unknown => "unknown",
        }
    }
}

/// Tokens by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses([u64; Cause::ALL.len()]);

impl Losses {
    /// Tokens lost by a cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that there are, in the order of the causes.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self.of(cause))).filter(|(_, tokens)| *tokens > 0)
    }

    pub(crate) fn add(&mut self, cause: Cause, tokens: u64) {
        self.0[cause as usize] += tokens;
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
