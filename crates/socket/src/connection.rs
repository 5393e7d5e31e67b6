//! A byte stream and the protocol on it.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::stream::Stream;
use crate::zmtp::ProtocolError;
use crate::zmtp::command::PingContext;
use crate::zmtp::frame::Multipart;
use crate::zmtp::session::{Carrier, Event, Session};

/// Messages and commands taken from one connection before the others get their turn. The rest of one read is
/// taken too.
pub(crate) const MESSAGES_PER_TURN: usize = 512;

/// Bytes after which a turn ends, so that a connection with huge batches does not keep the thread.
pub(crate) const BYTES_PER_TURN: usize = 16 << 20;

/// What one read asks the kernel for. A buffer of this size is shared by all connections of a thread.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Closed {
    /// The peer closed it.
    End,
    /// It broke.
    Io(io::Error),
    /// The peer does not keep to the protocol.
    Protocol(ProtocolError),
    /// No handshake in time.
    HandshakeTimeout,
    /// Nothing arrived for too long, not even answers to our PINGs.
    Silent(Duration),
    /// Unfinished messages of all publishers of a listener take too much memory.
    Memory,
    /// Everything in the protocol, but not what a publishing socket serves.
    Refused(Refusal),
}

/// What a publishing socket does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("more or longer subscriptions than one peer may make")]
    Subscriptions,
    #[error("another peer has the same identity")]
    Identity,
    #[error("the socket has as many peers as it may have")]
    Connections,
    #[error("the socket has as many connections of one host as it may have")]
    ConnectionsOfHost,
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::End => f.write_str("closed by the peer"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Protocol(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::HandshakeTimeout => f.write_str("no ZMTP handshake in time"),
            Self::Memory => {
                f.write_str("unfinished messages of this listener's publishers take too much memory")
            }
            Self::Silent(silence) => write!(f, "nothing arrived for {} ms", silence.as_millis()),
        }
    }
}

/// What a turn hears, in the order in which it came.
pub(crate) enum Heard<'a> {
    /// The handshake is complete. The identity is empty when the peer gave none.
    Established { identity: &'a [u8] },
    /// A message.
    Message(&'a mut Multipart),
    /// The peer answered a PING.
    Pong(PingContext),
    /// The peer of a publishing socket sent a PING.
    Ping { ttl: Duration, context: PingContext },
    /// The peer of an XPUB wants topics with this prefix.
    Subscribe(&'a [u8]),
    /// The peer of an XPUB does not want them any more.
    Cancel(&'a [u8]),
}

/// How a turn ended.
pub(crate) enum Turn {
    /// All was read; the next bytes are announced.
    Drained,
    /// There may be more.
    More,
    /// The connection is over.
    Closed(Closed),
    /// The listener asked to stop.
    Stopped,
}

/// One connection.
pub(crate) struct Connection {
    stream: Stream,
    session: Session,
    /// Where it comes from: see [`Stream::host`].
    pub(crate) host: Option<IpAddr>,
    /// When our greeting was sent.
    pub(crate) greeted_at: Instant,
    /// When bytes last came.
    pub(crate) heard_at: Instant,
    /// The peer hung up, maybe after bytes that are still to be read: a short read is not the end.
    hung_up: bool,
    /// Writing failed. What the peer sent before is read first.
    broken: Option<io::Error>,
    /// Waits for its turn.
    pub(crate) queued: bool,
}

impl Connection {
    /// Takes over a stream that is connected and registered.
    pub(crate) fn new(stream: Stream, session: Session, now: Instant) -> Self {
        stream.configure();
        let host = stream.host();
        Self {
            stream,
            session,
            host,
            greeted_at: now,
            heard_at: now,
            hung_up: false,
            broken: None,
            queued: false,
        }
    }

    /// The peer has closed its side, or the connection broke: read to its end.
    pub(crate) fn note_hung_up(&mut self) {
        self.hung_up = true;
    }

    /// The protocol's side.
    pub(crate) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.session.memory()
    }

    /// Sends what is there to send, as far as the kernel takes it. False when that fails: a turn is due,
    /// which reads what the peer sent before and then ends the connection.
    pub(crate) fn flush(&mut self) -> bool {
        while self.broken.is_none() && !self.session.out().is_empty() {
            match self.stream.write(self.session.out()) {
                Ok(0) => self.broken = Some(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.session.sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.broken = Some(error),
            }
        }
        self.broken.is_none()
    }

    /// Sends bytes for which the caller has a queue, behind what [`Self::flush`] sends: how many the kernel
    /// took, `None` when it takes nothing for now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            return match self.stream.write(bytes) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Reads a turn's share and tells `hear`. What the protocol has to answer is sent.
    pub(crate) fn turn(
        &mut self,
        scratch: &mut [u8],
        hear: &mut dyn FnMut(Heard<'_>) -> ControlFlow<()>,
    ) -> Turn {
        let mut share = Share::default();
        let turn = loop {
            match self.read(scratch, &mut share, hear) {
                Ok(true) => {}
                Ok(false) => break Turn::Drained,
                Err(None) => break Turn::Stopped,
                Err(Some(closed)) => break Turn::Closed(closed),
            }
            if share.messages >= MESSAGES_PER_TURN || share.bytes >= BYTES_PER_TURN {
                break Turn::More;
            }
        };
        match turn {
            Turn::Drained if !self.flush() => Turn::More,
            Turn::More => {
                self.flush();
                Turn::More
            }
            turn => turn,
        }
    }

    /// One read; false when there is no more for now.
    fn read(
        &mut self,
        scratch: &mut [u8],
        share: &mut Share,
        hear: &mut dyn FnMut(Heard<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Option<Closed>> {
        let direct = self.session.space();
        let is_direct = direct.is_some();
        let buffer = direct.unwrap_or(scratch);
        let room = buffer.len();
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(Some(Closed::End)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return self.broken.take().map_or(Ok(false), |error| Err(Some(Closed::Io(error))));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(Some(Closed::Io(error))),
        };
        self.heard_at = kvplane_runtime::now();
        share.bytes += count;
        if is_direct {
            let event = self.session.filled(count).map_err(|error| Some(Closed::Protocol(error)))?;
            share.messages += usize::from(event.is_some());
            self.tell(event, hear)?;
        } else {
            let mut rest = &scratch[..count];
            while !rest.is_empty() {
                let (taken, event) =
                    self.session.feed(rest).map_err(|error| Some(Closed::Protocol(error)))?;
                rest = &rest[taken..];
                share.messages += 1;
                self.tell(event, hear)?;
            }
        }
        // A short read has emptied the kernel's buffer: what comes later is announced by an edge of its own.
        // The end of the stream is not, if it was there before this read.
        Ok(count == room || self.hung_up || self.broken.is_some())
    }

    fn tell(
        &mut self,
        event: Option<Event>,
        hear: &mut dyn FnMut(Heard<'_>) -> ControlFlow<()>,
    ) -> Result<(), Option<Closed>> {
        let Some(event) = event else { return Ok(()) };
        let is_message = matches!(
            event,
            Event::Message | Event::Subscribe(Carrier::Message) | Event::Cancel(Carrier::Message)
        );
        let heard = match event {
            Event::Established => Heard::Established { identity: self.session.identity() },
            Event::Pong(context) => Heard::Pong(context),
            Event::Ping { ttl, context } => {
                Heard::Ping { ttl: Duration::from_millis(100) * u32::from(ttl), context }
            }
            Event::Message => Heard::Message(self.session.message()),
            Event::Subscribe(carrier) => Heard::Subscribe(self.session.topic(carrier)),
            Event::Cancel(carrier) => Heard::Cancel(self.session.topic(carrier)),
        };
        let flow = hear(heard);
        if is_message {
            self.session.message().clear();
        }
        if flow.is_break() { Err(None) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Share {
    /// Commands too.
    messages: usize,
    bytes: usize,
}
