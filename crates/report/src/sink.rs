//! Where notes go.

use kvplane_hints::Note;

/// Takes what changed for one replica, in order. It never waits: a slow sink queues what it still owes.
pub trait Sink: Send + 'static {
    /// What changed.
    fn tell(&mut self, notes: &[Note]);
}

/// Why blocks are withheld: the protocol has no way to say what would make them right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Withheld {
    /// Their salt is not part of a fingerprint: another tenant's prompt would match.
    Salted,
    /// Neither are images and other further keys, nor is what builds on them.
    Keyed,
    /// Their positions are pairs of tokens.
    Bigrams,
    /// They are not full.
    Partial,
    /// Their adapter has no name.
    UnnamedAdapter,
    /// The name of their adapter is longer than servers take.
    LongAdapter,
    /// Other groups decide with them how much can be reused.
    Hybrid,
    /// The engine gives up the last block that it finds: every prefix would be said to be a block longer than
    /// it is.
    GivesUpLast,
    /// The stream is not trusted enough, or the tier does not say exactly what it would give back.
    NotExact,
    /// They lie where nobody can say.
    UnknownTier,
}

impl Withheld {
    /// Every reason, for metrics that show all of them.
    pub const ALL: [Withheld; 10] = [
        Self::Salted,
        Self::Keyed,
        Self::Bigrams,
        Self::Partial,
        Self::UnnamedAdapter,
        Self::LongAdapter,
        Self::Hybrid,
        Self::GivesUpLast,
        Self::NotExact,
        Self::UnknownTier,
    ];

    /// The name used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Salted => "salted",
            Self::Keyed => "keyed",
            Self::Bigrams => "bigrams",
            Self::Partial => "partial",
            Self::UnnamedAdapter => "unnamed_adapter",
            Self::LongAdapter => "long_adapter",
            Self::Hybrid => "hybrid",
            Self::GivesUpLast => "gives_up_last",
            Self::NotExact => "not_exact",
            Self::UnknownTier => "unknown_tier",
        }
    }
}
