//! Why a stream is not `exact`: one table from which everything about a reason follows.

use std::fmt;

use crate::Trust;

/// Where a reason comes from, and with that what ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// Something happened. The next time that the state is known whole ends it.
    Past,
    /// Batches were lost, copies counted too often, or a flush was not shown: residency was dropped, and what
    /// blocks are is still known. Ends as `Past` does.
    Loss,
    /// Describes what is, not what happened: it comes and goes with it.
    Standing,
    /// The source is so: nothing that is heard ends it, only the source itself.
    Source,
}

/// Whether a state can be credited while a reason is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credit {
    /// Where its level is credited.
    ByLevel,
    /// At no level.
    Never,
}

/// What is known of a reason.
#[derive(Debug)]
struct Facts {
    name: &'static str,
    level: Trust,
    nature: Nature,
    credit: Credit,
    words: &'static str,
}

/// The table: `Variant { "name", level, nature, credit, "in words" }`. A row is all that a new reason needs,
/// and a row that leaves something out does not compile.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident { $name:literal, $level:ident, $nature:ident, $credit:ident, $words:literal })*) => {
        /// Why a stream is not `exact`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: [Reason; [$(Reason::$variant),*].len()] = [$(Reason::$variant),*];

            const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$variant => &Facts {
                        name: $name,
                        level: Trust::$level,
                        nature: Nature::$nature,
                        credit: Credit::$credit,
                        words: $words,
                    },)*
                }
            }
        }
    };
}

reasons! {
    /// Nothing has been heard yet, so nothing is known.
    Unheard {
        "unheard", Lower, Past, ByLevel,
        "no event received from the engine yet"
    }
    /// What happened before the first batch cannot be had.
    History {
        "history", Lower, Past, ByLevel,
        "events before the first batch are unavailable, so blocks may be missing"
    }
    /// Batches were lost and could not be replayed; residency was dropped.
    Gap {
        "gap", Lower, Loss, ByLevel,
        "batches were lost and could not be replayed; known blocks were dropped until the engine announces them again"
    }
    /// The same publisher or a new one: it could not be proven; residency was dropped.
    Unproven {
        "unproven", Lower, Past, ByLevel,
        "could not prove that the publisher is still the same process; known blocks were dropped until the engine announces them again"
    }
    /// A batch could not be decoded, also when replayed; residency was dropped.
    Undecodable {
        "undecodable", Lower, Loss, ByLevel,
        "a batch could not be decoded, nor its replay; known blocks were dropped until the engine announces them again"
    }
    /// A store was malformed and rejected.
    MalformedStore {
        "malformed_store", Lower, Past, ByLevel,
        "a malformed store was skipped"
    }
    /// The live state reached its memory budget; further stores are not recorded.
    Budget {
        "budget", Lower, Past, ByLevel,
        "the stream's memory budget is used up, so new blocks are not recorded"
    }
    /// Too many stores wait for a parent that never came; the rest is not recorded.
    WaitingOverflow {
        "waiting_overflow", Lower, Past, ByLevel,
        "too many blocks wait for an unknown parent; the rest are not recorded"
    }
    /// The cache was cleared while tiers other than the device had an unknown past.
    TierHistory {
        "tier_history", Lower, Past, ByLevel,
        "the cache was cleared; which blocks the colder tiers kept is unknown"
    }
    /// An event of an unknown kind was skipped.
    UnknownEvent {
        "unknown_event", Unverified, Past, ByLevel,
        "an event of an unknown kind was skipped"
    }
    /// A block lies on a medium whose name is unknown.
    UnknownMedium {
        "unknown_medium", Unverified, Past, ByLevel,
        "blocks are on an unknown medium"
    }
    /// A removal was malformed and rejected: what it named may be gone.
    MalformedRemoval {
        "malformed_removal", Unsound, Past, ByLevel,
        "a removal was malformed: its blocks may be gone"
    }
    /// Batches were lost and the operator chose to keep what was known.
    GapKept {
        "gap_kept", Unsound, Past, ByLevel,
        "batches were lost, and on_gap = \"keep\" keeps blocks that may be gone"
    }
    /// Blocks of the stream contradict the configured block size.
    BlockSize {
        "block_size", Unverified, Past, ByLevel,
        "blocks contradict the configured block size"
    }
    /// The engine gave one hash to two different blocks: what it removes is unknown.
    AmbiguousHash {
        "ambiguous_hash", Unsound, Past, ByLevel,
        "the engine gave one hash to two blocks: its removals are ambiguous"
    }
    /// A batch names another rank than its stream's: it is of another cache.
    ForeignRank {
        "foreign_rank", Unsound, Past, ByLevel,
        "a batch names another rank, which has another cache"
    }
    /// Two of the engine's blocks have one hash: when either goes, neither is said to be held any more.
    SharedHash {
        "shared_hash", Lower, Past, ByLevel,
        "two blocks share one hash: when either is removed, neither is counted"
    }
    /// The engine's hashes may not tell positions apart, as those of old `SGLang` releases do not.
    UnprovenHash {
        "unproven_hash", Unverified, Past, ByLevel,
        "the engine's hashes may not depend on the position"
    }
    /// The engine publishes no events: nothing of it can be known.
    EventsDisabled {
        "events_disabled", Lower, Past, ByLevel,
        "no event ever arrived: events are disabled, or another reader took them"
    }
    /// Somebody else reads the engine's event buffer too: events are missing; residency was dropped.
    StolenDrain {
        "stolen_drain", Lower, Loss, ByLevel,
        "another reader drains the engine's event buffer, so events are missing"
    }
    /// Events are missing from the engine's buffer: it overflowed, or somebody else reads it; residency was
    /// dropped.
    SuspectedDrain {
        "suspected_drain", Lower, Loss, ByLevel,
        "events are missing from the engine's buffer: it overflowed, or another reader drains it"
    }
    /// A relay stands between: it may leave out events and cannot tell every restart.
    Relay {
        "relay", Unverified, Source, ByLevel,
        "events come through a relay, which cannot prove everything"
    }
    /// Blocks lie in a tier from which the engine never tells a removal: some of them may be gone.
    UnremovedTier {
        "unremoved_tier", Unverified, Standing, ByLevel,
        "blocks are in a tier whose removals the engine never announces"
    }
    /// What a group of the cache needs to go on from a boundary is not known; as much is asked of it as of
    /// any that is.
    UnknownGroup {
        "unknown_group", Unverified, Standing, ByLevel,
        "a cache group is of an unknown kind"
    }
    /// No group of the cache is known to keep whole prefixes: only those that one of them has kept whole are
    /// counted.
    NoFullGroup {
        "no_full_group", Lower, Standing, ByLevel,
        "no cache group keeps whole prefixes"
    }
    /// The groups' block sizes fit no common boundary or are not known yet, or there are too many groups:
    /// nothing is counted. Or where small blocks lie is not known: less is counted than may be there.
    GroupLayout {
        "group_layout", Lower, Standing, ByLevel,
        "the block sizes of the cache groups do not match, or are not known yet"
    }
    /// How many blocks a colder tier gives back at once is not known: less is counted than may be there.
    ChunkSize {
        "chunk_size", Lower, Standing, ByLevel,
        "the chunk size of a colder tier is unknown, so fewer blocks are counted"
    }
    /// A tier behind the device holds blocks that are known by their hash alone, or whose parent is not
    /// known: they are not counted.
    UnknownContent {
        "unknown_content", Lower, Standing, ByLevel,
        "a colder tier holds blocks whose tokens or parents were never announced, so they are not counted"
    }
    /// More copies were announced than the engine has blocks: some were announced again. Residency was
    /// dropped, and copies are no longer counted.
    OverCount {
        "over_count", Lower, Loss, ByLevel,
        "more copies were announced than the engine has blocks; known blocks were dropped until the engine announces them again"
    }
    /// Copies are not counted, and a held block was announced again: when one copy goes, none is said to be
    /// left.
    Presence {
        "presence", Lower, Standing, ByLevel,
        "copies are not counted, and a held block was announced again"
    }
    /// Blocks of a group that keeps no whole prefixes were announced again, and perhaps never held.
    Reannounced {
        "reannounced", Unverified, Past, ByLevel,
        "blocks were announced again that may never have been held"
    }
    /// Blocks came from a peer that does not say how old its dump is: some may have gone before they came.
    PeerDump {
        "peer_dump", Unverified, Past, ByLevel,
        "blocks come from a peer's dump of unknown age: some may be gone"
    }
    /// A block left the device that had left it before, in a life that is known whole: the earlier removal
    /// was meant for another tier, and others may have been too.
    UnknownRemoval {
        "unknown_removal", Lower, Past, ByLevel,
        "a block was removed twice: one removal may have meant another tier"
    }
    /// The engine serves adapters, and its events do not say which blocks are theirs: they look like plain
    /// ones.
    UntoldAdapters {
        "untold_adapters", Unverified, Standing, ByLevel,
        "the engine serves adapters, and its events do not name them"
    }
    /// The engine accepted a flush, and its stream does not show it yet: what is known may be gone. Never
    /// credited.
    Flushing {
        "flushing", Unsound, Past, Never,
        "the engine may have flushed, not confirmed by its events yet: nothing is credited"
    }
    /// The engine accepted a flush, and its stream did not show it in time; residency was dropped.
    UnprovenFlush {
        "unproven_flush", Lower, Loss, ByLevel,
        "the engine may have flushed, not confirmed by its events in time; known blocks were dropped until the engine announces them again"
    }
    /// Two publishers take turns under one topic: whose blocks are held is unknown. Never credited.
    Interleaved {
        "interleaved", Unsound, Source, Never,
        "two publishers use one topic, so nothing is credited; give each engine its own topic or address"
    }
    /// The plane that this one follows says `lower`, for a reason that this build does not know.
    UpstreamLower {
        "upstream_lower", Lower, Past, ByLevel,
        "reported by the upstream kvplane, with a reason that this release does not know"
    }
    /// The same with `unverified`.
    UpstreamUnverified {
        "upstream_unverified", Unverified, Past, ByLevel,
        "reported by the upstream kvplane, with a reason that this release does not know"
    }
    /// The same with `unsound`.
    UpstreamUnsound {
        "upstream_unsound", Unsound, Past, ByLevel,
        "reported by the upstream kvplane, with a reason that this release does not know"
    }
}

impl Reason {
    /// The level of a stream for which this is the worst reason.
    pub fn trust(self) -> Trust {
        self.facts().level
    }

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// A clause for people who have not read the design: what happened, and what follows from it.
    pub fn words(self) -> &'static str {
        self.facts().words
    }

    /// Whether residency was dropped because of it, while it is still known what blocks are.
    pub fn is_loss(self) -> bool {
        self.facts().nature == Nature::Loss
    }

    /// Whether it describes what is, rather than what happened: it comes and goes with it.
    pub fn is_standing(self) -> bool {
        self.facts().nature == Nature::Standing
    }

    /// Whether it is in the nature of the source: then nothing that is heard takes it away.
    pub fn is_permanent(self) -> bool {
        self.facts().nature == Nature::Source
    }

    /// Whether nothing is credited while it holds, whatever levels are.
    pub fn forbids_credit(self) -> bool {
        self.facts().credit == Credit::Never
    }

    /// The reason's place in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The reason of a name, if this build knows it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// What stands for a reason that this build does not know, of a state of that level. An exact state has
    /// none.
    pub fn unknown(level: Trust) -> Option<Self> {
        match level {
            Trust::Exact => None,
            Trust::Lower => Some(Self::UpstreamLower),
            Trust::Unverified => Some(Self::UpstreamUnverified),
            Trust::Unsound => Some(Self::UpstreamUnsound),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_complete_and_names_are_unique() {
        let names: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), at);
            assert_eq!(Reason::named(reason.as_str()), Some(reason));
            assert_ne!(reason.trust(), Trust::Exact, "{reason}");
            assert!(!reason.words().is_empty(), "{reason}");
        }
    }

    #[test]
    fn losses_standing_and_permanent_reasons_are_those_of_the_table() {
        let are = |is: fn(Reason) -> bool| -> Vec<&str> {
            Reason::ALL.into_iter().filter(|reason| is(*reason)).map(Reason::as_str).collect()
        };
        let losses =
            ["gap", "undecodable", "stolen_drain", "suspected_drain", "over_count", "unproven_flush"];
        assert_eq!(are(Reason::is_loss), losses);
        let standing = [
            "unremoved_tier",
            "unknown_group",
            "no_full_group",
            "group_layout",
            "chunk_size",
            "unknown_content",
            "presence",
            "untold_adapters",
        ];
        assert_eq!(are(Reason::is_standing), standing);
        assert_eq!(are(Reason::is_permanent), ["relay", "interleaved"]);
        assert_eq!(are(Reason::forbids_credit), ["flushing", "interleaved"]);
    }
}
