//! The publishing side of a stream: what an engine's publisher does.

use std::time::Duration;

use zmq::{Context, DONTWAIT, POLLIN, SNDMORE, Socket};

use crate::{Endpoint, SocketError};

/// The libzmq context that publishing sockets share. Cheap to clone; costs two threads, so make one per
/// process rather than one per socket.
#[derive(Clone, Default)]
pub struct PublishContext(Context);

impl PublishContext {
    /// A new context.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn socket(&self, kind: zmq::SocketType) -> Result<Socket, SocketError> {
        self.0.socket(kind).map_err(SocketError::doing("open a socket"))
    }
}

impl std::fmt::Debug for PublishContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublishContext")
    }
}

/// How a [`PubSocket`] is opened.
#[derive(Debug, Clone)]
pub struct PubOptions {
    /// Where to listen, or whom to connect to.
    pub endpoint: Endpoint,
    /// Messages held per subscriber; more are dropped for that subscriber. 0 is without limit.
    pub send_hwm: i32,
}

impl PubOptions {
    /// An endpoint with vLLM's usual limit.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, send_hwm: 100_000 }
    }
}

/// Publishes batches. Never waits for a subscriber.
///
/// It is an XPUB, which on the wire is a PUB that also hears of subscriptions: so a test can wait for its
/// subscriber instead of hoping.
pub struct PubSocket {
    socket: Socket,
    last_endpoint: String,
    subscriptions: u64,
}

impl PubSocket {
    /// Binds or connects.
    pub fn open(context: &PublishContext, options: &PubOptions) -> Result<Self, SocketError> {
        let socket = context.socket(zmq::XPUB)?;
        let configure = || {
            socket.set_linger(0)?;
            socket.set_ipv6(options.endpoint.wants_ipv6())?;
            socket.set_sndhwm(options.send_hwm)?;
            socket.set_xpub_verbose(true)
        };
        configure().map_err(SocketError::doing("configure a PUB socket"))?;
        dial(&socket, &options.endpoint)?;
        let last_endpoint = last_endpoint(&socket, options.endpoint.address());
        Ok(Self { socket, last_endpoint, subscriptions: 0 })
    }

    /// The address in use; when bound to port 0, with the port that the system chose.
    pub fn last_endpoint(&self) -> &str {
        &self.last_endpoint
    }

    /// Publishes one batch.
    pub fn send(&mut self, topic: &[u8], sequence: u64, payload: &[u8]) -> Result<(), SocketError> {
        self.send_frames(&[topic, &sequence.to_be_bytes(), payload])
    }

    /// Publishes frames as they are: for faults and foreign framings.
    pub fn send_frames(&mut self, frames: &[&[u8]]) -> Result<(), SocketError> {
        self.hear_subscriptions();
        let last = frames.len().saturating_sub(1);
        for (index, frame) in frames.iter().enumerate() {
            let more = if index < last { SNDMORE } else { 0 };
            self.socket.send(*frame, DONTWAIT | more).map_err(SocketError::doing("publish"))?;
        }
        Ok(())
    }

    /// How many subscriptions were ever made on this socket: one per topic filter and connection.
    pub fn subscriptions(&mut self) -> u64 {
        self.hear_subscriptions();
        self.subscriptions
    }

    /// Waits until at least `count` subscriptions were made; false when `timeout` passed before.
    pub fn wait_for_subscriptions(&mut self, count: u64, timeout: Duration) -> bool {
        let deadline = kvplane_runtime::now() + timeout;
        while self.subscriptions() < count {
            let left = deadline.saturating_duration_since(kvplane_runtime::now());
            if left.is_zero() {
                return false;
            }
            // An interrupted wait is just a shorter one.
            let _ = self.socket.poll(POLLIN, i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1));
        }
        true
    }

    fn hear_subscriptions(&mut self) {
        const SUBSCRIBE: u8 = 1;
        while let Ok(message) = self.socket.recv_msg(DONTWAIT) {
            if message.first() == Some(&SUBSCRIBE) {
                self.subscriptions += 1;
            }
        }
    }
}

impl std::fmt::Debug for PubSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PubSocket").field("endpoint", &self.last_endpoint).finish_non_exhaustive()
    }
}

/// The address that a socket really uses.
pub(crate) fn last_endpoint(socket: &Socket, configured: &str) -> String {
    match socket.get_last_endpoint() {
        Ok(Ok(endpoint)) if !endpoint.is_empty() => endpoint,
        _ => configured.to_owned(),
    }
}

/// Binds or connects.
pub(crate) fn dial(socket: &Socket, endpoint: &Endpoint) -> Result<(), SocketError> {
    let (action, result) = match endpoint {
        Endpoint::Connect(address) => ("connect", socket.connect(address)),
        Endpoint::Bind(address) => ("bind", socket.bind(address)),
    };
    result.map_err(SocketError::endpoint(action, endpoint.address()))
}
