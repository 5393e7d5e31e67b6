//! Reasons, said to somebody who has not read the design.

use crate::Reason;

impl Reason {
    /// A clause: what happened, and what follows from it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Unheard => "nothing has been heard of the engine yet",
            Self::History => "what happened before the first batch cannot be had, so blocks may be missing",
            Self::Gap => {
                "batches were lost and could not be replayed; what was held is forgotten until it is seen again"
            }
            Self::Unproven => {
                "it could not be proven that the publisher is still the same; what was held is forgotten until it is seen again"
            }
            Self::Undecodable => {
                "a batch could not be decoded, nor its copy; what was held is forgotten until it is seen again"
            }
            Self::MalformedStore => "a store was malformed and left out",
            Self::Budget => "the memory for this stream is full, so blocks are not recorded",
            Self::WaitingOverflow => "too many blocks wait for a parent that never came, and are left out",
            Self::TierHistory => "the cache was cleared, and what a tier behind the device kept is not known",
            Self::UnknownEvent => "an event of an unknown kind was skipped",
            Self::UnknownMedium => "blocks lie on a medium whose name is unknown",
            Self::MalformedRemoval => "a removal was malformed: what it named may be gone",
            Self::GapKept => "batches were lost, and on_gap = \"keep\" keeps what may be gone",
            Self::BlockSize => "blocks contradict the configured block size",
            Self::AmbiguousHash => "the engine gave one hash to two blocks: what it removes cannot be told",
            Self::ForeignRank => "a batch names another rank: it is of another cache",
            Self::SharedHash => "two blocks share one hash: when either goes, neither is counted",
            Self::UnprovenHash => "the engine's hashes may not tell positions apart",
            Self::EventsDisabled => "no event has ever come: events are off, or all were read before",
            Self::StolenDrain => "somebody else reads the engine's event buffer, so events are missing",
            Self::SuspectedDrain => {
                "events are missing from the engine's buffer: it overflowed, or somebody else reads it"
            }
            Self::Relay => "a relay stands between, which cannot prove everything",
            Self::UnremovedTier => "blocks lie in a tier from which the engine never tells a removal",
            Self::UnknownGroup => "a group of the cache is of a kind whose needs are not known",
            Self::NoFullGroup => "no group of the cache keeps whole prefixes",
            Self::GroupLayout => "the block sizes of the cache's groups do not fit, or are not known yet",
            Self::ChunkSize => "how much a colder tier gives back at once is not known, so less is counted",
            Self::OverCount => {
                "more copies were told than the engine has blocks; what was held is forgotten until it is seen again"
            }
            Self::Presence => "copies are not counted, and a held block was announced again",
            Self::Reannounced => "blocks were announced again that were perhaps never held",
            Self::UnknownRemoval => "a block left twice: a removal may have meant another tier",
            Self::UntoldAdapters => "the engine serves adapters, and its events do not name them",
            Self::Flushing => {
                "the engine may have flushed, and its stream does not show it yet: nothing is credited"
            }
            Self::UnprovenFlush => {
                "the engine may have flushed, and its stream did not show it in time; what was held is forgotten until it is seen again"
            }
            Self::UpstreamLower | Self::UpstreamUnverified | Self::UpstreamUnsound => {
                "the plane that is followed says so, for a reason of a newer release"
            }
        }
    }
}
