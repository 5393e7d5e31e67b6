//! The answering side of replay: what an engine's publisher does between two batches.

use std::time::Duration;

use kvplane_wire::replay::{END_SEQUENCE, parse_request};
use zmq::{DONTWAIT, POLLIN, Socket};

use crate::publish::{dial, last_endpoint};
use crate::{Endpoint, PublishContext, SocketError};

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

/// Answers replay requests.
pub struct RouterSocket {
    socket: Socket,
    last_endpoint: String,
}

impl RouterSocket {
    /// Binds to `address`; port 0 lets the system choose. `send_hwm` bounds what is held per asker, more is
    /// dropped as ROUTER sockets do; 0 is without limit.
    pub fn bind(context: &PublishContext, address: &str, send_hwm: i32) -> Result<Self, SocketError> {
        let socket = context.socket(zmq::ROUTER)?;
        let configure = || {
            socket.set_linger(0)?;
            socket.set_ipv6(address.contains('['))?;
            socket.set_sndhwm(send_hwm)
        };
        configure().map_err(SocketError::doing("configure a ROUTER socket"))?;
        dial(&socket, &Endpoint::Bind(address.to_owned()))?;
        let last_endpoint = last_endpoint(&socket, address);
        Ok(Self { socket, last_endpoint })
    }

    /// The address in use, with the port that the system chose.
    pub fn last_endpoint(&self) -> &str {
        &self.last_endpoint
    }

    /// The next request; `None` when `timeout` passed. As in the engines, a request that is not exactly
    /// `[identity, "", 8 bytes]` is passed over in silence.
    pub fn recv_request(&self, timeout: Duration) -> Result<Option<ReplayRequestIn>, SocketError> {
        let deadline = kvplane_runtime::now() + timeout;
        loop {
            while let Some(parts) = self.receive()? {
                if let [identity, request @ ..] = &parts[..]
                    && let Ok(start) = parse_request(request)
                {
                    return Ok(Some(ReplayRequestIn { identity: identity.clone(), start }));
                }
            }
            let left = deadline.saturating_duration_since(kvplane_runtime::now());
            if left.is_zero() {
                return Ok(None);
            }
            let millis = i64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i64::MAX);
            match self.socket.poll(POLLIN, millis) {
                Ok(_) | Err(zmq::Error::EINTR) => {}
                Err(cause) => return Err(SocketError::doing("poll")(cause)),
            }
        }
    }

    /// The next message; `None` when there is none now. Frames beyond those of a request are dropped.
    fn receive(&self) -> Result<Option<Vec<Vec<u8>>>, SocketError> {
        const ONE_TOO_MANY: usize = 4;
        let mut parts = Vec::new();
        loop {
            let frame = match self.socket.recv_msg(DONTWAIT) {
                Ok(frame) => frame,
                Err(zmq::Error::EAGAIN) if parts.is_empty() => return Ok(None),
                Err(zmq::Error::EINTR) => continue,
                Err(cause) => return Err(SocketError::doing("receive")(cause)),
            };
            if parts.len() < ONE_TOO_MANY {
                parts.push(frame.to_vec());
            }
            if !frame.get_more() {
                return Ok(Some(parts));
            }
        }
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
        let all = std::iter::once(identity).chain(frames.iter().copied());
        self.socket.send_multipart(all, DONTWAIT).map_err(SocketError::doing("send a reply"))
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
        f.debug_struct("RouterSocket").field("endpoint", &self.last_endpoint).finish_non_exhaustive()
    }
}
