//! What happens between the greeting and the first message.
//!
//! NULL is the only mechanism: each side sends READY. CURVE would be a second implementation of
//! [`Mechanism`]: it exchanges more commands before it is done, and then opens MESSAGE commands into frames.

use super::command::{self, Command};
use super::{ProtocolError, SocketType, printable};

/// A security mechanism, as the side that dials or listens.
pub(crate) trait Mechanism: Send {
    /// Its name in the greeting.
    fn name(&self) -> &'static [u8];

    /// Both sides named this mechanism: says the first words.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Hears a command of the handshake and answers it; true when the handshake is complete.
    fn command(&mut self, heard: &Command<'_>, out: &mut Vec<u8>) -> Result<bool, ProtocolError>;

    /// The identity that the peer gave, once the handshake is complete; empty when it gave none.
    fn identity(&self) -> &[u8];
}

/// No security: READY from both sides.
#[derive(Debug)]
pub(crate) struct Null {
    socket: SocketType,
    identity: Vec<u8>,
}

impl Null {
    pub(crate) fn new(socket: SocketType) -> Self {
        Self { socket, identity: Vec::new() }
    }
}

impl Mechanism for Null {
    fn name(&self) -> &'static [u8] {
        b"NULL"
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        command::ready(self.socket, out);
    }

    fn command(&mut self, heard: &Command<'_>, _out: &mut Vec<u8>) -> Result<bool, ProtocolError> {
        match heard {
            Command::Ready { properties } => {
                self.identity = command::check_ready(self.socket, properties)?.to_vec();
                Ok(true)
            }
            Command::Error { reason } => Err(ProtocolError::Rejected(printable(reason))),
            _ => Err(ProtocolError::Command("handshake")),
        }
    }

    fn identity(&self) -> &[u8] {
        &self.identity
    }
}
