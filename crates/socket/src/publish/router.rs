//! The answering side of replay: what an engine's publisher does between two batches.

use std::time::Duration;

use kvplane_wire::replay::END_SEQUENCE;

use super::context::Handle;
use super::outgoing::Limits;
use crate::zmtp::SocketType;
use crate::{Endpoint, PublishContext, PublishCounts, SocketError};

/// What may wait for one asker, in bytes: as much as a kvplane takes of one answer.
const ASKER_BYTES: usize = 256 << 20;

/// How an answer's frames lie; see [`kvplane_wire::replay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyFraming {
    /// Delimiter, sequence, payload: vLLM up to 0.25.
    Plain,
    /// Delimiter, topic, sequence, payload: vLLM from 0.26.
    WithTopic,
}

/// A replay request that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRequestIn {
    /// Whom to answer.
    pub identity: Vec<u8>,
    /// First sequence wanted, inclusive.
    pub start: u64,
}

/// Answers replay requests. Never waits for an asker.
///
/// It is a ROUTER: askers are known by the identity that they gave, or else by one that is made up; a second
/// connection with the same identity is refused. Dropping it closes its connections and frees its address
/// before the drop returns.
pub struct RouterSocket(Handle);

impl RouterSocket {
    /// Binds to `address`; port 0 lets the system choose. `send_hwm` bounds how many messages are held per
    /// asker, more are dropped as ROUTER sockets do; 0 is without limit. In any case at most 256 MiB are held
    /// per asker.
    pub fn bind(context: &PublishContext, address: &str, send_hwm: i32) -> Result<Self, SocketError> {
        let limits = Limits::new(send_hwm, ASKER_BYTES);
        context.open(SocketType::Router, &Endpoint::Bind(address.to_owned()), limits, false).map(Self)
    }

    /// The address in use, with the port that the system chose.
    pub fn last_endpoint(&self) -> &str {
        &self.0.last_endpoint
    }

    /// The next request, each asker in turn; `None` when `timeout` passed. As in the engines, a request that
    /// is not exactly `[identity, "", 8 bytes]` is passed over in silence.
    pub fn recv_request(&self, timeout: Duration) -> Result<Option<ReplayRequestIn>, SocketError> {
        self.0.hub.next_request(timeout)
    }

    /// Sends one batch of an answer.
    pub fn reply_batch(
        &self,
        identity: &[u8],
        framing: ReplyFraming,
        topic: &[u8],
        sequence: u64,
        payload: &[u8],
    ) -> Result<(), SocketError> {
        self.reply(identity, framing, topic, &sequence.to_be_bytes(), payload)
    }

    /// Ends an answer.
    pub fn reply_end(&self, identity: &[u8], framing: ReplyFraming) -> Result<(), SocketError> {
        self.reply(identity, framing, b"", &END_SEQUENCE.to_be_bytes(), b"")
    }

    /// Sends frames as they are after the identity: for faults and foreign framings.
    pub fn reply_frames(&self, identity: &[u8], frames: &[&[u8]]) -> Result<(), SocketError> {
        self.0.hub.reply(identity, frames)
    }

    /// What happened so far.
    pub fn counts(&self) -> PublishCounts {
        self.0.hub.counts()
    }

    fn reply(
        &self,
        identity: &[u8],
        framing: ReplyFraming,
        topic: &[u8],
        sequence: &[u8],
        payload: &[u8],
    ) -> Result<(), SocketError> {
        match framing {
            ReplyFraming::Plain => self.reply_frames(identity, &[b"", sequence, payload]),
            ReplyFraming::WithTopic => self.reply_frames(identity, &[b"", topic, sequence, payload]),
        }
    }
}

impl std::fmt::Debug for RouterSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouterSocket").field("endpoint", &self.0.last_endpoint).finish_non_exhaustive()
    }
}
