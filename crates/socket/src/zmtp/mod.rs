//! ZMTP 3.1, sans IO: bytes in, events and bytes out. <https://rfc.zeromq.org/spec/37/>
//!
//! ```text
//! greeting.rs    the first 64 bytes: signature, version, mechanism
//! command.rs     READY, ERROR, SUBSCRIBE, PING, PONG
//! frame.rs       frames to messages and commands, bounded before anything is allocated
//! mechanism.rs   what happens between the greeting and the first message; NULL today
//! session.rs     one side of one connection, made of the above
//! ```
//!
//! Only the reading side is here: a SUB and a DEALER. Nothing in this module knows time, sockets or threads.

#[cfg(any(test, feature = "checks"))]
pub mod checks;
pub(crate) mod command;
pub(crate) mod frame;
pub(crate) mod greeting;
pub(crate) mod mechanism;
pub(crate) mod session;

/// Which socket we are to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketType {
    Sub,
    Dealer,
}

impl SocketType {
    /// Its name in the READY command.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::Sub => b"SUB",
            Self::Dealer => b"DEALER",
        }
    }

    /// Whether a peer of type `other` may talk to us.
    pub(crate) fn accepts(self, other: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(other, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(other, b"ROUTER" | b"DEALER" | b"REP"),
        }
    }
}

/// Why a connection was closed: the peer does not keep to the protocol, or to our limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("the peer does not speak ZMTP: its first bytes are not a ZMTP signature")]
    Signature,
    #[error("the peer speaks ZMTP {0}.x: version 3.0 or later is required (libzmq 4.0 or later)")]
    Version(u8),
    #[error("the peer uses the security mechanism {0:?}: only NULL is supported")]
    Mechanism(String),
    #[error("the peer closed the handshake with an error: {0:?}")]
    Rejected(String),
    #[error("the peer is a {0:?} socket: expected PUB or XPUB for events, ROUTER for replay")]
    SocketType(String),
    #[error("frame flags {0:#04x} have reserved or contradicting bits")]
    Flags(u8),
    #[error("a message before the handshake was complete")]
    EarlyMessage,
    #[error("a command of {0} bytes: the limit is {max}", max = frame::MAX_COMMAND_BYTES)]
    CommandTooLarge(u64),
    #[error("a message of {size} bytes or more: the limit is {limit}")]
    MessageTooLarge { size: u64, limit: u64 },
    #[error("a message of more than {max} frames", max = frame::MAX_FRAMES_COUNTED)]
    TooManyFrames,
    #[error("a malformed {0} command")]
    Command(&'static str),
}

impl ProtocolError {
    /// A stable word for counters.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Signature => "signature",
            Self::Version(_) => "version",
            Self::Mechanism(_) => "mechanism",
            Self::Rejected(_) => "rejected",
            Self::SocketType(_) => "socket_type",
            Self::Flags(_) => "flags",
            Self::EarlyMessage => "early_message",
            Self::CommandTooLarge(_) => "command_too_large",
            Self::MessageTooLarge { .. } => "message_too_large",
            Self::TooManyFrames => "too_many_frames",
            Self::Command(_) => "command",
        }
    }
}

/// Text from a peer, for an error: printable ASCII, and not much of it.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const LONGEST: usize = 64;
    let shown = bytes.iter().take(LONGEST);
    shown.map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' }).collect()
}

#[cfg(test)]
mod tests;
