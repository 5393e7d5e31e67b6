//! What goes into the state machine and what comes out of it.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::Reason;

use super::Last;
use crate::persist::persist_enum;

/// What to do with what is known when batches are lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnGap {
    /// Fail closed: drop the residency, go on as `lower`.
    #[default]
    Drop,
    /// The operator's explicit opposite: keep it, go on as `unsound`.
    Keep,
}

/// How a stream is followed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether there is a replay endpoint to ask.
    pub replay: bool,
    /// What an unfilled gap does.
    pub on_gap: OnGap,
    /// How many live batches are held while a verdict is pending. Overflow is a gap.
    pub hold_batches: usize,
    /// How many bytes of them.
    pub hold_bytes: usize,
    /// Disconnected for longer than this is `down`.
    pub down_after: Duration,
    /// The first question after this much silence ...
    pub quiet_first: Duration,
    /// ... and then one every so often. Twice as long after each answer without news, up to four times, while
    /// the engine is proven to be there by other means.
    pub quiet_every: Duration,
    /// Shortens pauses between questions by up to a quarter, differently for each value, so that streams that
    /// fell silent together are not asked together. Zero: pauses are as they are.
    pub spread: u64,
    /// How often a failed replay is tried before the stream goes on without it.
    pub replay_attempts: u32,
    /// The pause between two tries.
    pub retry_pause: Duration,
    /// Without a replay endpoint: how long a missing batch may still arrive out of order.
    pub reorder_wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replay: true,
            on_gap: OnGap::Drop,
            hold_batches: 10_000,
            hold_bytes: 64 << 20,
            down_after: Duration::from_secs(10),
            quiet_first: Duration::from_secs(1),
            quiet_every: Duration::from_secs(30),
            spread: 0,
            replay_attempts: 3,
            retry_pause: Duration::from_millis(300),
            reorder_wait: Duration::from_millis(200),
        }
    }
}

/// Where a batch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The publisher's live socket.
    Live,
    /// The publisher's replay ring.
    Replay,
}

/// A batch whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequenced {
    /// The publisher's own number.
    pub sequence: u64,
    /// The payload's identity.
    pub digest: u128,
    /// The payload.
    pub payload: Bytes,
    /// Where it came from.
    pub origin: Origin,
    /// What was last before it: where to step back to if it turns out unreadable.
    pub(crate) previous: Option<Last>,
    /// It was the first of its epoch to be placed.
    pub(crate) first: bool,
}

/// Why a new epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochCause {
    /// The live sequence went back to something that is not a duplicate.
    SequenceWentBack,
    /// The replay ring holds another batch where our last one was.
    DifferentBatch,
    /// The replay ring does not reach our last batch, and nothing above it either.
    RingBelowCursor,
    /// The ring was cut above our last batch: it may be the same life, nothing proves it.
    RingCut,
    /// There was nobody to ask, and what came next does not prove it.
    NothingToAsk,
    /// The engine's event ids began again.
    IdsBeganAgain,
    /// The engine cleared its cache under a number that had passed, as it does when it starts.
    StartUpClear,
    /// The server sent its whole state anew.
    SnapshotSent,
    /// The server does not have what follows our last batch.
    CursorRefused,
    /// The server said that it lost continuity.
    DataLoss,
    /// The server said that it cannot tell what the engine holds.
    Untellable,
    /// Two publishers are heard under one topic.
    Interleaved,
    /// The plane that is followed says so.
    Upstream,
    /// The stream was taken off the plane: nothing of it counts any more.
    Removed,
}

persist_enum!(EpochCause {
    SequenceWentBack = 0,
    DifferentBatch = 1,
    RingBelowCursor = 2,
    RingCut = 3,
    NothingToAsk = 4,
    IdsBeganAgain = 5,
    StartUpClear = 6,
    SnapshotSent = 7,
    CursorRefused = 8,
    DataLoss = 9,
    Untellable = 10,
    Interleaved = 11,
    Upstream = 12,
    Removed = 13,
});

impl EpochCause {
    /// Whether this proves a restart (rather than failing to prove that there was none).
    pub fn proven(self) -> bool {
        matches!(
            self,
            Self::SequenceWentBack
                | Self::DifferentBatch
                | Self::RingBelowCursor
                | Self::IdsBeganAgain
                | Self::StartUpClear
                | Self::Upstream
        )
    }

    /// In words, for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SequenceWentBack => "the sequence number went back",
            Self::DifferentBatch => "the replay ring holds another batch at our last sequence",
            Self::RingBelowCursor => "the replay ring ends below our last sequence",
            Self::RingCut => "the replay ring was cut above our last sequence",
            Self::NothingToAsk => "no replay could prove that it is the same process",
            Self::IdsBeganAgain => "the engine's event ids restarted",
            Self::StartUpClear => "the engine cleared its cache with an old sequence number",
            Self::SnapshotSent => "the server sent its whole state again",
            Self::CursorRefused => "the server no longer has the events after our last sequence",
            Self::DataLoss => "the server lost continuity",
            Self::Untellable => "the server does not know what the engine holds",
            Self::Interleaved => "two publishers use one topic",
            Self::Upstream => "reported by the upstream kvplane",
            Self::Removed => "the stream was removed",
        }
    }
}

/// What the driver has to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the replay socket, from `from` inclusive. Any request before this one is void.
    Replay {
        /// To be handed back with every answer.
        id: u64,
        /// The first sequence wanted.
        from: u64,
    },
    /// Ask for the engine's start time.
    Hint {
        /// To be handed back with the answer.
        id: u64,
    },
    /// Subscribe again: the present subscription is void.
    Resubscribe,
    /// Apply this batch.
    Apply(Sequenced),
    /// Forget everything: another epoch of the publisher, or one that may be another.
    NewEpoch(EpochCause),
    /// The history is known from the publisher's very first batch on (or it has not published yet).
    HeardFromStart,
    /// The history begins at this sequence; what came before is unknown.
    KnownFrom(u64),
    /// Batches are lost: drop the residency, keep the dictionary.
    DropResidency(Reason),
    /// Batches are lost and the operator wants to keep what is known.
    KeepAfterLoss,
    /// Something about the source makes answers worth less.
    Degrade(Reason),
    /// It does no longer.
    Resolve(Reason),
}

/// What happened so far; for status and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Gaps seen in the live sequence.
    pub gaps: u64,
    /// Gaps that could not be filled.
    pub gaps_unfilled: u64,
    /// Batches that a replay brought.
    pub replayed_batches: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Replays that failed.
    pub replays_failed: u64,
    /// Restarts proven.
    pub restarts: u64,
    /// New epochs because sameness could not be proven.
    pub unproven: u64,
    /// Duplicates dropped.
    pub duplicates: u64,
    /// Late batches of a life or range that is over, refused.
    pub refused: u64,
    /// Times the hold overflowed.
    pub hold_overflows: u64,
    /// Disconnects noticed.
    pub disconnects: u64,
    /// Batches that could not be decoded.
    pub undecodable: u64,
    /// Times a replay address turned out to be another publisher's.
    pub replays_foreign: u64,
    /// Times that a stream stopped being `live` because nothing proved that its engine was there.
    pub silences: u64,
    /// Times that two publishers were heard under one topic.
    pub interleavings: u64,
    /// Inputs that only another kind of source has: a defect of kvplane.
    pub misdirected: u64,
}
