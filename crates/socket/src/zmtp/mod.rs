//! ZMTP 3.1, sans IO: bytes in, events and bytes out. <https://rfc.zeromq.org/spec/37/>
//!
//! ```text
//! greeting.rs    the first 64 bytes: signature, version, mechanism
//! command.rs     READY, ERROR, SUBSCRIBE, CANCEL, PING, PONG
//! frame.rs       frames to messages and commands, bounded before anything is allocated
//! mechanism.rs   what happens between the greeting and the first message; NULL today
//! session.rs     one side of one connection, made of the above
//! ```
//!
//! Four sockets are here: SUB and DEALER read, XPUB and ROUTER publish. Nothing in this module knows time,
//! sockets or threads.

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
    XPub,
    Router,
}

impl SocketType {
    /// Its name in the READY command.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::Sub => b"SUB",
            Self::Dealer => b"DEALER",
            Self::XPub => b"XPUB",
            Self::Router => b"ROUTER",
        }
    }

    /// Whether a peer of type `other` may talk to us.
    pub(crate) fn accepts(self, other: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(other, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(other, b"ROUTER" | b"DEALER" | b"REP"),
            Self::XPub => matches!(other, b"SUB" | b"XSUB"),
            Self::Router => matches!(other, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }

    /// Whether READY tells identities: of sockets that are addressed by them, as libzmq does.
    pub(crate) fn has_identity(self) -> bool {
        matches!(self, Self::Dealer | Self::Router)
    }

    /// Whether it is one of the publishing side.
    pub(crate) fn publishes(self) -> bool {
        matches!(self, Self::XPub | Self::Router)
    }

    /// Which sockets may be at the other end, for an error.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Sub => "PUB or XPUB",
            Self::Dealer => "ROUTER",
            Self::XPub => "SUB or XSUB",
            Self::Router => "DEALER, REQ or ROUTER",
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
    #[error("the peer is a {found:?} socket: expected {expected}")]
    SocketType { found: String, expected: &'static str },
    #[error("an identity of {0} bytes that is too long, or begins with 0")]
    Identity(usize),
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
            Self::SocketType { .. } => "socket_type",
            Self::Identity(_) => "identity",
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
mod publisher_tests;
#[cfg(test)]
mod tests;
