//! What libzmq tells about a socket's connections.
//!
//! Two things make its raw events unfit to be passed on. A handshake that fails is also followed by a
//! DISCONNECTED, although nothing was connected. And after a protocol error (an oversize message, a peer
//! that does not speak ZMTP) libzmq gives a connecting socket up for good: no `CONNECT_RETRIED` follows, and
//! the stream would stay silent for ever. [`Monitor::stuck_since`] tells when that happened.

use std::time::Instant;

use zmq::{Context, DONTWAIT, Socket, SocketEvent};

use crate::{SocketError, wake::unique_inproc};

/// A change that a handler hears about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Connected,
    Disconnected,
}

/// The reading end of a socket's monitor.
pub(crate) struct Monitor {
    socket: Socket,
    /// Connections whose handshake succeeded and that are still there.
    live: usize,
    /// The next DISCONNECTED belongs to a handshake that failed.
    failed_handshake: bool,
    /// Set from a disconnect until libzmq announces that it dials again.
    lost_at: Option<Instant>,
}

const FAILED: [SocketEvent; 3] = [
    SocketEvent::HANDSHAKE_FAILED_NO_DETAIL,
    SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
    SocketEvent::HANDSHAKE_FAILED_AUTH,
];

impl Monitor {
    /// Watches `watched`; call it before the socket is bound or connected, so that nothing is missed.
    pub(crate) fn attach(context: &Context, watched: &Socket) -> Result<Self, SocketError> {
        let wanted = [
            SocketEvent::HANDSHAKE_SUCCEEDED,
            SocketEvent::DISCONNECTED,
            SocketEvent::CONNECT_RETRIED,
            SocketEvent::CONNECT_DELAYED,
        ];
        let mask = wanted.iter().chain(&FAILED).fold(0, |mask, event| mask | i32::from(event.to_raw()));
        let address = unique_inproc("monitor");
        watched.monitor(&address, mask).map_err(SocketError::doing("monitor a socket"))?;
        let socket = context.socket(zmq::PAIR).map_err(SocketError::doing("open a monitor socket"))?;
        socket.set_linger(0).map_err(SocketError::doing("set linger"))?;
        // libzmq's IO thread would block on a full monitor queue, and with it every socket of the context.
        socket.set_rcvhwm(0).map_err(SocketError::doing("set a queue limit"))?;
        socket.connect(&address).map_err(SocketError::doing("connect a monitor socket"))?;
        Ok(Self { socket, live: 0, failed_handshake: false, lost_at: None })
    }

    /// The socket to poll on.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether any peer is connected.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Since when a lost connection is not being dialled again.
    pub(crate) fn stuck_since(&self) -> Option<Instant> {
        self.lost_at
    }

    /// The next change; `None` when all that happened so far was told.
    pub(crate) fn next(&mut self) -> Option<Change> {
        loop {
            let header = self.socket.recv_msg(DONTWAIT).ok()?;
            if header.get_more() {
                // The second frame is the address, which does not name the peer on a bound socket.
                self.socket.recv_msg(DONTWAIT).ok()?;
            }
            let Some(raw) = header.get(..2).and_then(|bytes| bytes.try_into().ok()) else { continue };
            if let Some(change) = self.interpret(u16::from_ne_bytes(raw)) {
                return Some(change);
            }
        }
    }

    fn interpret(&mut self, raw: u16) -> Option<Change> {
        let is = |event: SocketEvent| raw == event.to_raw();
        if is(SocketEvent::HANDSHAKE_SUCCEEDED) {
            self.live += 1;
            self.lost_at = None;
            return Some(Change::Connected);
        }
        if is(SocketEvent::CONNECT_RETRIED) || is(SocketEvent::CONNECT_DELAYED) {
            self.lost_at = None;
        } else if FAILED.into_iter().any(is) {
            self.failed_handshake = true;
        } else if is(SocketEvent::DISCONNECTED) {
            self.lost_at = Some(Instant::now());
            let failed = std::mem::take(&mut self.failed_handshake);
            if !failed && self.live > 0 {
                self.live -= 1;
                return Some(Change::Disconnected);
            }
        }
        None
    }
}
