//! What an answer from a stream is worth.

use std::fmt;

/// Where a stream's state machine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Continuity {
    /// Never reached yet.
    Connecting,
    /// A verdict is pending: after a (re)connect, or while a gap is being filled.
    Recovering,
    /// Following.
    Live,
    /// Out of reach for longer than the limit: not credited, state kept for a return.
    Down,
}

impl Continuity {
    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Recovering => "recovering",
            Self::Live => "live",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for Continuity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an answer is worth, best first. The order is the order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// What is said to be resident is exactly what the engine holds.
    Exact,
    /// No phantoms, but blocks may be missing.
    Lower,
    /// Something unknown was skipped.
    Unverified,
    /// May hold phantoms.
    Unsound,
}

impl Trust {
    /// Every level, best first.
    pub const ALL: [Trust; 4] = [Trust::Exact, Trust::Lower, Trust::Unverified, Trust::Unsound];

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Lower => "lower",
            Self::Unverified => "unverified",
            Self::Unsound => "unsound",
        }
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a stream is not `exact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing has been heard yet, so nothing is known.
    Unheard,
    /// What happened before the first batch cannot be had.
    History,
    /// Batches were lost and could not be replayed; residency was dropped.
    Gap,
    /// The same publisher or a new one: it could not be proven; residency was dropped.
    Unproven,
    /// A batch could not be decoded, also when replayed; residency was dropped.
    Undecodable,
    /// A store was malformed and rejected.
    MalformedStore,
    /// The live state reached its memory budget; further stores are not recorded.
    Budget,
    /// Too many stores wait for a parent that never came; the rest is not recorded.
    WaitingOverflow,
    /// The cache was cleared while tiers other than the device had an unknown past.
    TierHistory,
    /// An event of an unknown kind was skipped.
    UnknownEvent,
    /// A block lies on a medium whose name is unknown.
    UnknownMedium,
    /// A removal was malformed and rejected: what it named may be gone.
    MalformedRemoval,
    /// Batches were lost and the operator chose to keep what was known.
    GapKept,
    /// Blocks of the stream contradict the configured block size.
    BlockSize,
    /// The engine gave one hash to two different blocks: what it removes cannot be told.
    AmbiguousHash,
    /// A batch names another rank than its stream's: it is of another cache.
    ForeignRank,
    /// Two of the engine's blocks have one hash: when either goes, neither is said to be held any more.
    SharedHash,
    /// The engine's hashes may not tell positions apart, as those of old `SGLang` releases do not.
    UnprovenHash,
    /// The engine publishes no events: nothing of it can be known.
    EventsDisabled,
    /// Somebody else reads the engine's event buffer too: events are missing; residency was dropped.
    StolenDrain,
    /// Events are missing from the engine's buffer: it overflowed, or somebody else reads it; residency was dropped.
    SuspectedDrain,
    /// A relay stands between: it may leave out events and cannot tell every restart.
    Relay,
    /// Blocks lie in a tier from which the engine never tells a removal: some of them may be gone.
    UnremovedTier,
    /// What a group of the cache needs to go on from a boundary is not known; as much is asked of it as of any that is.
    UnknownGroup,
    /// No group of the cache is known to keep whole prefixes: only those that one of them has kept whole are counted.
    NoFullGroup,
    /// The groups' block sizes fit no common boundary or are not known yet, or there are too many groups: nothing is counted. Or where
    /// small blocks lie is not known: less is counted than may be there.
    GroupLayout,
    /// How many blocks a colder tier gives back at once is not known: less is counted than may be there.
    ChunkSize,
    /// More copies were told than the engine has blocks: some were announced again. Residency was dropped, and copies are no longer counted.
    OverCount,
    /// Copies are not counted, and a held block was announced again: when one copy goes, none is said to be left.
    Presence,
    /// Blocks of a group that keeps no whole prefixes were announced again, and perhaps never held.
    Reannounced,
    /// A block left the device that had left it before, in a life that is known whole: the earlier removal was meant for another tier, and
    /// others may have been too.
    UnknownRemoval,
    /// The engine serves adapters, and its events do not say which blocks are theirs: they look like plain ones.
    UntoldAdapters,
    /// The engine accepted a flush, and its stream does not show it yet: what is known may be gone. Never credited.
    Flushing,
    /// The engine accepted a flush, and its stream did not show it in time; residency was dropped.
    UnprovenFlush,
    /// The plane that this one follows says `lower`, for a reason that this build does not know.
    UpstreamLower,
    /// The same with `unverified`.
    UpstreamUnverified,
    /// The same with `unsound`.
    UpstreamUnsound,
}

impl Reason {
    /// Every reason, for metrics that show all of them.
    pub const ALL: [Reason; 37] = [
        Reason::Unheard,
        Reason::History,
        Reason::Gap,
        Reason::Unproven,
        Reason::Undecodable,
        Reason::MalformedStore,
        Reason::Budget,
        Reason::WaitingOverflow,
        Reason::TierHistory,
        Reason::UnknownEvent,
        Reason::UnknownMedium,
        Reason::MalformedRemoval,
        Reason::GapKept,
        Reason::BlockSize,
        Reason::AmbiguousHash,
        Reason::ForeignRank,
        Reason::SharedHash,
        Reason::UnprovenHash,
        Reason::EventsDisabled,
        Reason::StolenDrain,
        Reason::SuspectedDrain,
        Reason::Relay,
        Reason::UnremovedTier,
        Reason::UnknownGroup,
        Reason::NoFullGroup,
        Reason::GroupLayout,
        Reason::ChunkSize,
        Reason::OverCount,
        Reason::Presence,
        Reason::Reannounced,
        Reason::UnknownRemoval,
        Reason::UntoldAdapters,
        Reason::Flushing,
        Reason::UnprovenFlush,
        Reason::UpstreamLower,
        Reason::UpstreamUnverified,
        Reason::UpstreamUnsound,
    ];

    /// How bad it is.
    pub fn trust(self) -> Trust {
        match self {
            Self::Unheard
            | Self::History
            | Self::Gap
            | Self::Unproven
            | Self::Undecodable
            | Self::MalformedStore
            | Self::Budget
            | Self::WaitingOverflow
            | Self::TierHistory
            | Self::EventsDisabled
            | Self::StolenDrain
            | Self::SuspectedDrain
            | Self::SharedHash
            | Self::NoFullGroup
            | Self::GroupLayout
            | Self::ChunkSize
            | Self::OverCount
            | Self::Presence
            | Self::UnknownRemoval
            | Self::UnprovenFlush
            | Self::UpstreamLower => Trust::Lower,
            Self::UnknownEvent
            | Self::UnknownMedium
            | Self::BlockSize
            | Self::Relay
            | Self::UnprovenHash
            | Self::UnremovedTier
            | Self::UnknownGroup
            | Self::Reannounced
            | Self::UntoldAdapters
            | Self::UpstreamUnverified => Trust::Unverified,
            Self::MalformedRemoval
            | Self::GapKept
            | Self::AmbiguousHash
            | Self::ForeignRank
            | Self::Flushing
            | Self::UpstreamUnsound => Trust::Unsound,
        }
    }

    /// Whether it is in the nature of the source: then nothing that is heard takes it away.
    pub fn is_permanent(self) -> bool {
        self == Self::Relay
    }

    /// Whether nothing is credited while it holds, whatever levels are.
    pub fn forbids_credit(self) -> bool {
        self == Self::Flushing
    }

    /// The reason of a name, if this build knows it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// What stands for a reason that this build does not know, of a state of that worth. An exact state has none.
    pub fn unknown(level: Trust) -> Option<Self> {
        match level {
            Trust::Exact => None,
            Trust::Lower => Some(Self::UpstreamLower),
            Trust::Unverified => Some(Self::UpstreamUnverified),
            Trust::Unsound => Some(Self::UpstreamUnsound),
        }
    }

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unheard => "unheard",
            Self::History => "history",
            Self::Gap => "gap",
            Self::Unproven => "unproven",
            Self::Undecodable => "undecodable",
            Self::MalformedStore => "malformed_store",
            Self::Budget => "budget",
            Self::WaitingOverflow => "waiting_overflow",
            Self::TierHistory => "tier_history",
            Self::UnknownEvent => "unknown_event",
            Self::UnknownMedium => "unknown_medium",
            Self::MalformedRemoval => "malformed_removal",
            Self::GapKept => "gap_kept",
            Self::BlockSize => "block_size",
            Self::AmbiguousHash => "ambiguous_hash",
            Self::ForeignRank => "foreign_rank",
            Self::SharedHash => "shared_hash",
            Self::UnprovenHash => "unproven_hash",
            Self::EventsDisabled => "events_disabled",
            Self::StolenDrain => "stolen_drain",
            Self::SuspectedDrain => "suspected_drain",
            Self::Relay => "relay",
            Self::UnremovedTier => "unremoved_tier",
            Self::UnknownGroup => "unknown_group",
            Self::NoFullGroup => "no_full_group",
            Self::GroupLayout => "group_layout",
            Self::ChunkSize => "chunk_size",
            Self::OverCount => "over_count",
            Self::Presence => "presence",
            Self::Reannounced => "reannounced",
            Self::UnknownRemoval => "unknown_removal",
            Self::UntoldAdapters => "untold_adapters",
            Self::Flushing => "flushing",
            Self::UnprovenFlush => "unproven_flush",
            Self::UpstreamLower => "upstream_lower",
            Self::UpstreamUnverified => "upstream_unverified",
            Self::UpstreamUnsound => "upstream_unsound",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reason and since when it holds (unix milliseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degradation {
    /// Why.
    pub reason: Reason,
    /// Since when, unix milliseconds.
    pub since_ms: u64,
}

/// All that keeps a stream from being `exact`. The worst reason decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustState {
    active: Vec<Degradation>,
}

impl TrustState {
    /// What another plane says that a state is worth: `(reason, since)` as told, and never better than its level.
    pub fn as_told<'t>(level: Trust, reasons: impl IntoIterator<Item = (&'t str, u64)>) -> Self {
        let mut told = Self::default();
        let mut since = 0;
        for (name, since_ms) in reasons {
            since = since_ms;
            if let Some(reason) = Reason::named(name).or_else(|| Reason::unknown(level)) {
                told.degrade(reason, since_ms);
            }
        }
        if told.level() < level
            && let Some(reason) = Reason::unknown(level)
        {
            told.degrade(reason, since);
        }
        told
    }

    /// The level: the worst of what is active.
    pub fn level(&self) -> Trust {
        self.active.iter().map(|d| d.reason.trust()).max().unwrap_or(Trust::Exact)
    }

    /// The degradation that decides: one that forbids credit, or else the level; of equal ones the first that came.
    pub fn worst(&self) -> Option<Degradation> {
        let level = self.level();
        let decides = |d: &&Degradation| d.reason.trust() == level;
        let forbids = self.active.iter().find(|d| d.reason.forbids_credit());
        forbids.or_else(|| self.active.iter().find(decides)).copied()
    }

    /// Whether the state is credited where these levels are.
    pub fn is_credited(&self, credit: &[Trust]) -> bool {
        credit.contains(&self.level()) && !self.active.iter().any(|d| d.reason.forbids_credit())
    }

    /// The level, were it not for one reason.
    pub fn level_besides(&self, reason: Reason) -> Trust {
        let others = self.active.iter().filter(|d| d.reason != reason);
        others.map(|d| d.reason.trust()).max().unwrap_or(Trust::Exact)
    }

    /// Adds a reason. Returns true if it was not there yet.
    pub fn degrade(&mut self, reason: Reason, now_ms: u64) -> bool {
        if self.has(reason) {
            return false;
        }
        self.active.push(Degradation { reason, since_ms: now_ms });
        true
    }

    /// Takes a reason away. Returns true if it was there.
    pub fn resolve(&mut self, reason: Reason) -> bool {
        let before = self.active.len();
        self.active.retain(|d| d.reason != reason);
        self.active.len() != before
    }

    /// The state is known whole again: only what is in the nature of the source stays.
    pub fn restore(&mut self) {
        self.active.retain(|degradation| degradation.reason.is_permanent());
    }

    /// Whether a reason is active.
    pub fn has(&self, reason: Reason) -> bool {
        self.active.iter().any(|d| d.reason == reason)
    }

    /// All active reasons, oldest first.
    pub fn active(&self) -> &[Degradation] {
        &self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_never_taken_for_better() {
        let told = TrustState::as_told(Trust::Lower, [("gap", 1), ("history", 2)]);
        assert_eq!(
            told.active().iter().map(|d| d.reason).collect::<Vec<_>>(),
            [Reason::Gap, Reason::History]
        );
        let told = TrustState::as_told(Trust::Unsound, [("gap", 1), ("a_later_word", 2)]);
        assert_eq!(told.worst(), Some(Degradation { reason: Reason::UpstreamUnsound, since_ms: 2 }));
        let told = TrustState::as_told(Trust::Unverified, [("gap", 3)]);
        assert_eq!(told.worst(), Some(Degradation { reason: Reason::UpstreamUnverified, since_ms: 3 }));
        assert_eq!(TrustState::as_told(Trust::Exact, []).level(), Trust::Exact);
        assert!(Reason::ALL.into_iter().all(|reason| Reason::named(reason.as_str()) == Some(reason)));
    }

    #[test]
    fn what_is_being_flushed_is_never_credited() {
        let mut trust = TrustState::default();
        trust.degrade(Reason::GapKept, 1);
        assert!(trust.is_credited(&[Trust::Unsound]) && !trust.is_credited(&[Trust::Lower]));
        trust.degrade(Reason::Flushing, 2);
        assert!(!trust.is_credited(&Trust::ALL));
        assert_eq!(trust.worst(), Some(Degradation { reason: Reason::Flushing, since_ms: 2 }));
        trust.resolve(Reason::GapKept);
        assert_eq!(trust.level_besides(Reason::Flushing), Trust::Exact);
    }

    #[test]
    fn the_worst_reason_decides() {
        let mut trust = TrustState::default();
        assert_eq!(trust.level(), Trust::Exact);
        assert!(trust.degrade(Reason::Gap, 1));
        assert!(trust.degrade(Reason::MalformedRemoval, 2));
        assert!(!trust.degrade(Reason::Gap, 3));
        assert_eq!(trust.worst(), Some(Degradation { reason: Reason::MalformedRemoval, since_ms: 2 }));
        assert!(trust.resolve(Reason::MalformedRemoval));
        assert_eq!(trust.level(), Trust::Lower);
    }
}
