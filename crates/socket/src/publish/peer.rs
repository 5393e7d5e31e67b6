//! One connection of a publishing socket, as the thread holds it.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvplane_wire::replay::parse_request;

use super::hub::Hub;
use super::outgoing::{Amount, Writing};
use crate::connection::{Closed, Connection, Heard, Refusal, Turn};
use crate::stream::Stream;
use crate::zmtp::SocketType;
use crate::zmtp::session::Session;

/// Bytes written to one peer before the others get their turn.
const WRITTEN_PER_TURN: usize = 1 << 20;

/// A connection.
pub(super) struct Peer {
    pub(super) connection: Connection,
    /// Its line, once the handshake is complete, and since when that is.
    pub(super) line: Option<(usize, Instant)>,
    /// There may be something to read.
    pub(super) readable: bool,
    /// The kernel takes nothing for now; an edge tells when it does.
    pub(super) blocked: bool,
    writing: Writing,
    /// What was written and not reported yet.
    written: Amount,
    /// The peer's last word was a PING that said how long it may be silent afterwards.
    pub(super) ttl: Option<Duration>,
}

impl Peer {
    pub(super) fn new(stream: Stream, socket: SocketType, now: Instant) -> Self {
        let session = if socket == SocketType::Router { Session::router() } else { Session::publisher() };
        Self {
            connection: Connection::new(stream, session, now),
            line: None,
            readable: true,
            blocked: false,
            writing: Writing::default(),
            written: Amount::default(),
            ttl: None,
        }
    }

    /// Why the connection is to end at this time, if it is. What is not read yet may be a sign of life.
    pub(super) fn overdue(&self, now: Instant, handshake: Duration) -> Option<Closed> {
        if self.readable || self.connection.queued {
            return None;
        }
        if self.line.is_none() {
            let waited = now.saturating_duration_since(self.connection.greeted_at);
            return (waited >= handshake).then_some(Closed::HandshakeTimeout);
        }
        let silence = now.saturating_duration_since(self.connection.heard_at);
        self.ttl.filter(|ttl| silence > *ttl).map(|_| Closed::Silent(silence))
    }

    /// Reads and writes a turn's share; whether there is more to do.
    pub(super) fn turn(&mut self, hub: &Hub, token: usize, scratch: &mut [u8]) -> Result<bool, Closed> {
        let more_to_read = self.read(hub, token, scratch)?;
        let more_to_write = self.write(hub, scratch).map_err(Closed::Io)?;
        Ok(more_to_read || more_to_write)
    }

    fn read(&mut self, hub: &Hub, token: usize, scratch: &mut [u8]) -> Result<bool, Closed> {
        let is_asker = hub.socket == SocketType::Router;
        if !self.readable || (is_asker && self.line.is_some_and(|(line, _)| hub.hold(line))) {
            return Ok(false);
        }
        let Self { connection, line, ttl, .. } = self;
        let mut refused = None;
        let turn = connection.turn(scratch, &mut |heard| match hear(hub, token, line, ttl, heard) {
            Ok(()) => ControlFlow::Continue(()),
            Err(refusal) => {
                refused = Some(refusal);
                ControlFlow::Break(())
            }
        });
        if let Some(refusal) = refused {
            return Err(Closed::Refused(refusal));
        }
        match turn {
            Turn::Closed(closed) => Err(closed),
            Turn::More => Ok(true),
            Turn::Drained | Turn::Stopped => {
                self.readable = false;
                Ok(false)
            }
        }
    }

    /// Sends what waits, as far as the kernel takes it; true when a turn's share is spent.
    pub(super) fn write(&mut self, hub: &Hub, scratch: &mut [u8]) -> io::Result<bool> {
        if self.blocked {
            return Ok(false);
        }
        if !self.connection.flush() {
            // The next read says why.
            self.readable = true;
            return Ok(true);
        }
        if !self.connection.session().out().is_empty() {
            self.blocked = true;
            return Ok(false);
        }
        let Some((line, _)) = self.line else { return Ok(false) };
        let mut share = 0;
        while share < WRITTEN_PER_TURN {
            if self.writing.is_empty()
                && !hub.exchange(line, std::mem::take(&mut self.written), &mut self.writing)
            {
                return Ok(false);
            }
            let Some(count) = self.connection.write(self.writing.gather(scratch))? else {
                self.blocked = true;
                hub.written(line, std::mem::take(&mut self.written));
                return Ok(false);
            };
            self.written += self.writing.advance(count);
            share += count;
        }
        Ok(true)
    }
}

/// What the peer said.
fn hear(
    hub: &Hub,
    token: usize,
    line: &mut Option<(usize, Instant)>,
    ttl: &mut Option<Duration>,
    heard: Heard<'_>,
) -> Result<(), Refusal> {
    if let Heard::Established { identity } = heard {
        *line = Some((hub.add(token, identity)?, kvplane_runtime::now()));
        return Ok(());
    }
    let Some((line, _)) = *line else { return Ok(()) };
    *ttl = None;
    match heard {
        Heard::Subscribe(prefix) => hub.subscribe(line, prefix)?,
        Heard::Cancel(prefix) => hub.cancel(line, prefix),
        Heard::Ping { ttl: wanted, context } => {
            *ttl = Some(wanted).filter(|wanted| !wanted.is_zero());
            hub.pong(line, &context);
        }
        Heard::Message(message) => {
            // As in the engines, what is no request is passed over in silence.
            if let Some(start) = message.frames().and_then(|frames| parse_request(frames).ok()) {
                hub.request(line, start);
            }
        }
        Heard::Pong(_) | Heard::Established { .. } => {}
    }
    Ok(())
}
