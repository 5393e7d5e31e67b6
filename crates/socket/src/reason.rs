//! The stable words under which faults of peers are counted.

use kvplane_wire::replay::ReplyError;

use crate::connection::{Closed, Refusal};

/// Why frames are not the message that was expected.
pub(crate) fn of_frames(error: ReplyError) -> &'static str {
    match error {
        ReplyError::Frames(_) => "frame_count",
        ReplyError::Sequence(_) => "sequence_length",
        ReplyError::Delimiter => "delimiter",
        ReplyError::HalfEnd => "half_end",
    }
}

/// Why a connection was closed, when that is the peer's fault.
pub(crate) fn word_of(closed: &Closed) -> Option<&'static str> {
    match closed {
        Closed::Protocol(error) => Some(error.word()),
        Closed::HandshakeTimeout => Some("handshake_timeout"),
        Closed::Memory => Some("listener_memory"),
        Closed::Refused(Refusal::Subscriptions) => Some("too_many_subscriptions"),
        Closed::Refused(Refusal::Identity) => Some("duplicate_identity"),
        Closed::Refused(Refusal::Connections) => Some("too_many_connections"),
        Closed::Refused(Refusal::ConnectionsOfHost) => Some("too_many_connections_of_host"),
        Closed::End | Closed::Io(_) | Closed::Silent(_) => None,
    }
}
