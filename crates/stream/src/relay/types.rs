//! What goes into the state machine.

use std::time::Duration;

use crate::continuity::OnGap;

/// How a relayed stream is followed.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// What an unfilled gap does.
    pub on_gap: OnGap,
    /// Without a verdict for longer than this is `down`.
    pub down_after: Duration,
    /// A server that has our last batch sends it within this time.
    pub answer_within: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            on_gap: OnGap::Drop,
            down_after: Duration::from_secs(10),
            answer_within: Duration::from_secs(2),
        }
    }
}

/// How a call ended, or why there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server ended it without complaint.
    Ok,
    /// The server does not have what follows the number.
    OutOfRange,
    /// The server lost continuity.
    DataLoss,
    /// The server has no such method: there are no events.
    Unimplemented,
    /// The server cannot tell what the engine holds.
    FailedPrecondition,
    /// The server did not answer in time.
    Deadline,
    /// Nobody is there, or the connection broke.
    Unreachable,
    /// Any other status, or nonsense.
    Other,
}

impl Ended {
    /// The word for status, counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ended",
            Self::OutOfRange => "out_of_range",
            Self::DataLoss => "data_loss",
            Self::Unimplemented => "unimplemented",
            Self::FailedPrecondition => "failed_precondition",
            Self::Deadline => "timeout",
            Self::Unreachable => "unreachable",
            Self::Other => "refused",
        }
    }
}
