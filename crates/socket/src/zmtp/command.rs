//! Commands: what peers say to each other beside messages.
//!
//! ```text
//! command   1 byte length of the name, the name, data
//! READY     properties: 1 byte length of the name, the name, u32 BE length of the value, the value
//! ERROR     1 byte length of the reason, the reason
//! SUBSCRIBE the topic prefix
//! CANCEL    the topic prefix of an earlier SUBSCRIBE
//! PING      u16 BE time to live in tenths of a second, up to 16 bytes of context
//! PONG      the context of the PING that it answers
//! ```

use super::{ProtocolError, SocketType, printable};

/// The longest context of a PING.
pub(crate) const MAX_CONTEXT: usize = 16;

/// The longest identity.
const MAX_IDENTITY: usize = 255;

/// What a PONG brings back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PingContext {
    bytes: [u8; MAX_CONTEXT],
    length: u8,
}

impl PingContext {
    /// Our own: a counter.
    pub(crate) fn counter(counter: u64) -> Self {
        let mut bytes = [0; MAX_CONTEXT];
        bytes[..8].copy_from_slice(&counter.to_be_bytes());
        Self { bytes, length: 8 }
    }

    fn read(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_CONTEXT];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, length: data.len() as u8 })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The counter, if it is one of ours.
    pub(crate) fn as_counter(&self) -> Option<u64> {
        self.as_bytes().try_into().ok().map(u64::from_be_bytes)
    }
}

/// A command that came in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Ready {
        properties: &'a [u8],
    },
    Error {
        reason: &'a [u8],
    },
    Subscribe {
        topic: &'a [u8],
    },
    Cancel {
        topic: &'a [u8],
    },
    Ping {
        /// In tenths of a second; 0 is none.
        ttl: u16,
        context: PingContext,
    },
    Pong {
        context: PingContext,
    },
    /// One that we do not know.
    Other {
        name: &'a [u8],
    },
}

impl<'a> Command<'a> {
    /// Reads the body of a command frame.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Command;
        let (name, data) = short(body).ok_or_else(|| malformed("nameless"))?;
        Ok(match name {
            b"READY" => Self::Ready { properties: data },
            b"ERROR" => {
                // libzmq closes with an ERROR without any reason too.
                let (reason, _) = short(data).unwrap_or((data, &[]));
                Self::Error { reason }
            }
            b"SUBSCRIBE" => Self::Subscribe { topic: data },
            b"CANCEL" => Self::Cancel { topic: data },
            b"PING" => {
                let (ttl, context) = data.split_first_chunk::<2>().ok_or_else(|| malformed("PING"))?;
                let context = PingContext::read(context).ok_or_else(|| malformed("PING"))?;
                Self::Ping { ttl: u16::from_be_bytes(*ttl), context }
            }
            b"PONG" => Self::Pong { context: PingContext::read(data).ok_or_else(|| malformed("PONG"))? },
            b"" => return Err(malformed("nameless")),
            name => Self::Other { name },
        })
    }
}

/// The value of a READY command's property; names are not case-sensitive. `None` when there is none.
pub(crate) fn property<'a>(
    mut properties: &'a [u8],
    wanted: &[u8],
) -> Result<Option<&'a [u8]>, ProtocolError> {
    let malformed = || ProtocolError::Command("READY");
    let mut found = None;
    while !properties.is_empty() {
        let (name, rest) = short(properties).ok_or_else(malformed)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| malformed())?;
        let (value, rest) = rest.split_at_checked(length).ok_or_else(malformed)?;
        if found.is_none() && name.eq_ignore_ascii_case(wanted) {
            found = Some(value);
        }
        properties = rest;
    }
    Ok(found)
}

/// Bytes with their length before them.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}

/// Appends a READY command that says which socket we are.
pub(crate) fn ready(socket: SocketType, out: &mut Vec<u8>) {
    let mut body = named(b"READY");
    let mut add = |name: &[u8], value: &[u8]| {
        body.push(name.len() as u8);
        body.extend_from_slice(name);
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    };
    add(b"Socket-Type", socket.name());
    if socket.has_identity() {
        add(b"Identity", b"");
    }
    super::frame::put_command(&body, out);
}

/// Appends a SUBSCRIBE command, for peers from 3.1 on.
pub(crate) fn subscribe(topic: &[u8], out: &mut Vec<u8>) {
    let mut body = named(b"SUBSCRIBE");
    body.extend_from_slice(topic);
    super::frame::put_command(&body, out);
}

/// Appends a PING. `ttl` is in tenths of a second: without a word from us for so long, the peer may hang up.
pub(crate) fn ping(ttl: u16, context: &PingContext, out: &mut Vec<u8>) {
    let mut body = named(b"PING");
    body.extend_from_slice(&ttl.to_be_bytes());
    body.extend_from_slice(context.as_bytes());
    super::frame::put_command(&body, out);
}

/// Appends a PONG.
pub(crate) fn pong(context: &PingContext, out: &mut Vec<u8>) {
    let mut body = named(b"PONG");
    body.extend_from_slice(context.as_bytes());
    super::frame::put_command(&body, out);
}

fn named(name: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(48);
    body.push(name.len() as u8);
    body.extend_from_slice(name);
    body
}

/// Checks the properties of a READY command; the peer's identity, empty when it has none.
pub(crate) fn check_ready(ours: SocketType, properties: &[u8]) -> Result<&[u8], ProtocolError> {
    let theirs = property(properties, b"Socket-Type")?.unwrap_or_default();
    if !ours.accepts(theirs) {
        return Err(ProtocolError::SocketType { found: printable(theirs), expected: ours.expected() });
    }
    if !ours.has_identity() {
        return Ok(&[]);
    }
    let identity = property(properties, b"Identity")?.unwrap_or_default();
    // Identities that begin with 0 are those that a ROUTER makes up.
    if identity.len() > MAX_IDENTITY || identity.first() == Some(&0) {
        return Err(ProtocolError::Identity(identity.len()));
    }
    Ok(identity)
}
