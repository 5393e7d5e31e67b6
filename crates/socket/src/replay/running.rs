//! One replay on the wire.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvplane_core::Backoff;
use kvplane_wire::replay::{Reply, parse_reply};
use mio::Registry;

use super::{Job, ReplayEnd};
use crate::SocketError;
use crate::address::Address;
use crate::connection::{Closed, Connection, Heard, Turn};
use crate::dial::{Dialer, Todo};
use crate::options::MAX_MESSAGE_BYTES;
use crate::reason;
use crate::subscriber::HANDSHAKE_TIMEOUT;
use crate::zmtp::ProtocolError;
use crate::zmtp::frame::Multipart;
use crate::zmtp::session::Session;

/// An engine that is just coming back should be asked within the request's few seconds.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// A request on the wire.
pub(super) struct Running {
    job: Job,
    dialer: Dialer,
    connection: Option<Connection>,
    /// The connection ended after part of the answer: it cannot be completed.
    cut: bool,
    deadline: Instant,
    idle_at: Instant,
    received: Received,
}

/// What came so far.
#[derive(Default)]
struct Received {
    established: Option<Instant>,
    batches: u64,
    bytes: usize,
}

impl Running {
    /// Begins to dial an address that was read by [`Self::address`].
    pub(super) fn open(job: Job, address: Address, token: usize) -> Self {
        let now = kvplane_runtime::now();
        Self {
            dialer: Dialer::new(address, token, Backoff::new(RECONNECT_MIN, RECONNECT_MAX), now),
            connection: None,
            cut: false,
            deadline: now + job.request.deadline,
            idle_at: now + job.request.idle_timeout,
            received: Received::default(),
            job,
        }
    }

    /// Where a request goes.
    pub(super) fn address(job: &Job) -> Result<Address, SocketError> {
        let endpoint = &job.request.endpoint;
        Address::to_connect(endpoint).map_err(SocketError::endpoint("connect", endpoint))
    }

    /// Its connection is closed; its handler remains.
    pub(super) fn into_job(self) -> Job {
        self.job
    }

    /// When [`Self::look`] is due.
    pub(super) fn due(&self) -> Instant {
        let own = self.deadline.min(self.idle_at);
        match &self.connection {
            None if !self.cut => self.dialer.due().map_or(own, |due| own.min(due)),
            _ => own,
        }
    }

    /// Something happened on its socket; true when it needs a turn that it does not wait for already.
    pub(super) fn note(&mut self, hung_up: bool) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        if hung_up {
            connection.note_hung_up();
        }
        !std::mem::replace(&mut connection.queued, true)
    }

    /// The answer to a name that was looked up.
    pub(super) fn resolved(&mut self, answer: io::Result<Vec<SocketAddr>>, registry: &Registry) -> Todo {
        let todo = self.dialer.resolved(answer, registry, kvplane_runtime::now());
        self.follow(todo)
    }

    /// Time passes.
    pub(super) fn look(&mut self, registry: &Registry) -> Result<Todo, ReplayEnd> {
        let now = kvplane_runtime::now();
        if self.job.cancelled.load(Ordering::Acquire) {
            return Err(ReplayEnd::Cancelled);
        }
        let unread = self.connection.as_ref().is_some_and(|connection| connection.queued);
        if now >= self.deadline {
            return Err(ReplayEnd::Deadline);
        }
        if now >= self.idle_at && !unread {
            return Err(ReplayEnd::Idle);
        }
        match &self.connection {
            None if !self.cut && self.dialer.due().is_some_and(|due| due <= now) => {
                Ok(self.dial(registry, now))
            }
            Some(connection)
                if self.received.established.is_none()
                    && !unread
                    && now.saturating_duration_since(connection.greeted_at) >= HANDSHAKE_TIMEOUT =>
            {
                self.lost(&Closed::HandshakeTimeout).map_or(Ok(Todo::Nothing), Err)
            }
            _ => Ok(Todo::Nothing),
        }
    }

    /// Reads what is there, within bounds; the end if this was it.
    pub(super) fn turn(&mut self, registry: &Registry, scratch: &mut [u8]) -> Result<Todo, ReplayEnd> {
        if self.job.cancelled.load(Ordering::Acquire) {
            return Err(ReplayEnd::Cancelled);
        }
        let Some(connection) = &mut self.connection else {
            return Ok(self.dial(registry, kvplane_runtime::now()));
        };
        let (job, received) = (&mut self.job, &mut self.received);
        let from = job.request.from.to_be_bytes();
        let was_established = received.established.is_some();
        let (before, batches) = (connection.heard_at, received.batches);
        let mut end = None;
        let turn = connection.turn(scratch, &mut |heard| match heard {
            Heard::Established { .. } => {
                received.established = Some(kvplane_runtime::now());
                ControlFlow::Continue(())
            }
            Heard::Pong(_) | Heard::Ping { .. } | Heard::Subscribe(_) | Heard::Cancel(_) => {
                ControlFlow::Continue(())
            }
            Heard::Message(message) => {
                end = received.reply(job, message);
                if end.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        });
        if let Some(end) = end {
            return Err(end);
        }
        if !was_established && received.established.is_some() {
            connection.session().send(&[b"", &from]);
            connection.flush();
        }
        // PINGs are no answer.
        let progress =
            !was_established || received.batches > batches || connection.session().is_mid_message();
        if connection.heard_at > before && received.established.is_some() && progress {
            self.idle_at = connection.heard_at + self.job.request.idle_timeout;
        }
        match turn {
            Turn::Closed(closed) => self.lost(&closed).map_or(Ok(Todo::Nothing), Err),
            Turn::More => Ok(Todo::Connected),
            Turn::Drained | Turn::Stopped => {
                connection.queued = false;
                Ok(Todo::Nothing)
            }
        }
    }

    fn dial(&mut self, registry: &Registry, now: Instant) -> Todo {
        if self.cut {
            return Todo::Nothing;
        }
        let todo = self.dialer.advance(registry, now);
        self.follow(todo)
    }

    fn follow(&mut self, todo: Todo) -> Todo {
        if todo == Todo::Connected
            && let Some(stream) = self.dialer.take()
        {
            let session = Session::dealer(MAX_MESSAGE_BYTES as usize);
            let mut connection = Connection::new(stream, session, kvplane_runtime::now());
            connection.flush();
            connection.queued = true;
            self.connection = Some(connection);
        }
        todo
    }

    /// The connection is over. Before the first batch the engine is dialled and asked again; after it, the
    /// rest is missing and only the limits are left to wait for: a failed answer is not to be had faster than
    /// a slow one.
    fn lost(&mut self, closed: &Closed) -> Option<ReplayEnd> {
        self.connection = None;
        let established = self.received.established.take();
        if let Closed::Protocol(ProtocolError::MessageTooLarge { .. }) = closed {
            return Some(ReplayEnd::TooLarge);
        }
        tracing::debug!(endpoint = self.job.request.endpoint, %closed, "replay connection lost");
        self.cut = self.received.batches > 0;
        let at_fault = reason::word_of(closed).is_some();
        self.dialer.lost(kvplane_runtime::now(), established, at_fault, &closed.to_string());
        None
    }
}

impl Received {
    /// Takes one message of the answer; the end if this was it.
    fn reply(&mut self, job: &mut Job, message: &mut Multipart) -> Option<ReplayEnd> {
        let Some(frames) = message.frames() else { return Some(ReplayEnd::Malformed("frame_count")) };
        let (sequence, length) = match parse_reply(frames) {
            Ok(Reply::Batch { sequence, payload }) => (sequence, payload.len()),
            Ok(Reply::End) => return Some(ReplayEnd::Complete),
            Err(error) => return Some(ReplayEnd::Malformed(reason::of_frames(error))),
        };
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > job.request.max_bytes {
            return Some(ReplayEnd::TooLarge);
        }
        if job.cancelled.load(Ordering::Acquire) {
            return Some(ReplayEnd::Cancelled);
        }
        self.batches += 1;
        let payload = message.take(message.count() - 1);
        job.handler.batch(sequence, payload);
        None
    }
}
