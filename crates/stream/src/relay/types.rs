//! What goes into the state machine.

use std::time::Duration;

use kvplane_core::Trouble;

use crate::sequencer::OnGap;

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
    /// The trouble of the streams behind the call, for status, counters and logs.
    pub fn trouble(self) -> Trouble {
        match self {
            Self::Ok => Trouble::Ended,
            Self::OutOfRange => Trouble::OutOfRange,
            Self::DataLoss => Trouble::DataLoss,
            Self::Unimplemented => Trouble::Unimplemented,
            Self::FailedPrecondition => Trouble::FailedPrecondition,
            Self::Deadline => Trouble::Timeout,
            Self::Unreachable => Trouble::Unreachable,
            Self::Other => Trouble::Refused,
        }
    }
}
