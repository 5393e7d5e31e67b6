//! Publishers of libzmq: what the reading side is tested against. They have the methods of ours.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::time::{Duration, Instant};

use kvplane_socket::{Endpoint, ReplayRequestIn, ReplyFraming};
use kvplane_wire::replay::{END_SEQUENCE, parse_request};
use zmq::{Context, DONTWAIT, POLLIN, Socket};

/// A context of libzmq's.
#[derive(Clone, Default)]
pub struct PublishContext(Context);

impl PublishContext {
    pub fn new() -> Self {
        Self::default()
    }
}

#[derive(Debug, Clone)]
pub struct PubOptions {
    pub endpoint: Endpoint,
    pub send_hwm: i32,
}

impl PubOptions {
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, send_hwm: 100_000 }
    }
}

/// An XPUB.
pub struct PubSocket {
    socket: Socket,
    last_endpoint: String,
    subscriptions: u64,
}

impl PubSocket {
    pub fn open(context: &PublishContext, options: &PubOptions) -> Result<Self, zmq::Error> {
        let socket = context.0.socket(zmq::XPUB)?;
        socket.set_linger(0)?;
        let ipv6 =
            matches!(options.endpoint, Endpoint::Connect(_)) || options.endpoint.address().contains('[');
        socket.set_ipv6(ipv6)?;
        socket.set_sndhwm(options.send_hwm)?;
        socket.set_xpub_verbose(true)?;
        match &options.endpoint {
            Endpoint::Connect(address) => socket.connect(address)?,
            Endpoint::Bind(address) => socket.bind(address)?,
        }
        let last_endpoint = socket.get_last_endpoint()?.unwrap();
        Ok(Self { socket, last_endpoint, subscriptions: 0 })
    }

    pub fn last_endpoint(&self) -> &str {
        &self.last_endpoint
    }

    pub fn send(&mut self, topic: &[u8], sequence: u64, payload: &[u8]) -> Result<(), zmq::Error> {
        self.send_frames(&[topic, &sequence.to_be_bytes(), payload])
    }

    pub fn send_frames(&mut self, frames: &[&[u8]]) -> Result<(), zmq::Error> {
        self.hear_subscriptions();
        self.socket.send_multipart(frames, DONTWAIT)
    }

    pub fn wait_for_subscriptions(&mut self, count: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            self.hear_subscriptions();
            let left = deadline.saturating_duration_since(Instant::now());
            if self.subscriptions >= count || left.is_zero() {
                return self.subscriptions >= count;
            }
            let _ = self.socket.poll(POLLIN, left.as_millis() as i64 + 1);
        }
    }

    fn hear_subscriptions(&mut self) {
        while let Ok(message) = self.socket.recv_msg(DONTWAIT) {
            self.subscriptions += u64::from(message.first() == Some(&1));
        }
    }
}

/// A ROUTER.
pub struct RouterSocket {
    socket: Socket,
    last_endpoint: String,
}

impl RouterSocket {
    pub fn bind(context: &PublishContext, address: &str, send_hwm: i32) -> Result<Self, zmq::Error> {
        let socket = context.0.socket(zmq::ROUTER)?;
        socket.set_linger(0)?;
        socket.set_sndhwm(send_hwm)?;
        socket.bind(address)?;
        let last_endpoint = socket.get_last_endpoint()?.unwrap();
        Ok(Self { socket, last_endpoint })
    }

    pub fn last_endpoint(&self) -> &str {
        &self.last_endpoint
    }

    pub fn recv_request(&self, timeout: Duration) -> Result<Option<ReplayRequestIn>, zmq::Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.socket.poll(POLLIN, left.as_millis() as i64)? == 0 {
                return Ok(None);
            }
            let parts = self.socket.recv_multipart(0)?;
            if let [identity, request @ ..] = &parts[..]
                && let Ok(start) = parse_request(request)
            {
                return Ok(Some(ReplayRequestIn { identity: identity.clone(), start }));
            }
        }
    }

    pub fn reply_batch(
        &self,
        identity: &[u8],
        framing: ReplyFraming,
        topic: &[u8],
        sequence: u64,
        payload: &[u8],
    ) -> Result<(), zmq::Error> {
        let sequence = sequence.to_be_bytes();
        match framing {
            ReplyFraming::Plain => self.reply_frames(identity, &[b"", &sequence, payload]),
            ReplyFraming::WithTopic => self.reply_frames(identity, &[b"", topic, &sequence, payload]),
        }
    }

    pub fn reply_end(&self, identity: &[u8], framing: ReplyFraming) -> Result<(), zmq::Error> {
        self.reply_batch(identity, framing, b"", END_SEQUENCE, b"")
    }

    pub fn reply_frames(&self, identity: &[u8], frames: &[&[u8]]) -> Result<(), zmq::Error> {
        self.socket.send_multipart(std::iter::once(identity).chain(frames.iter().copied()), DONTWAIT)
    }
}
