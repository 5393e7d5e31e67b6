//! The publishing side of a stream: what an engine's publisher does.
//!
//! ```text
//! hub.rs        what the owner of a socket and the thread share: peers' queues, topics, counts
//! askers.rs     the part of it that only a ROUTER has: identities and requests
//! newcomers.rs  the part that only an XPUB has: subscribers that are sent something before the others
//! outgoing.rs   the queue of one peer
//! topics.rs     the topics of one subscriber
//! thread.rs     kvp-pub, the thread that serves all sockets of a context
//! outlet.rs     a socket as the thread holds it: listener or dialer, and connections
//! peer.rs       one connection
//! ```
//!
//! `send` encodes a message once, appends it to the queue of every subscriber that wants it, and calls the
//! thread, which writes. It never waits for a subscriber.

mod askers;
mod context;
mod hub;
mod newcomers;
mod outgoing;
mod outlet;
mod peer;
mod router;
#[cfg(test)]
mod tests;
mod thread;
mod topics;

use std::time::Duration;

use self::context::Handle;
use self::outgoing::Limits;
use crate::zmtp::SocketType;
use crate::{Endpoint, SocketError};

pub use context::PublishContext;
pub use hub::PublishCounts;
pub use newcomers::{Delivery, SubscriberId};
pub use router::{ReplayRequestIn, ReplyFraming, RouterSocket};

/// What may wait for one subscriber, in bytes. A subscriber that is that far behind has lost the stream: it
/// is better off with a gap, and a replay.
const SUBSCRIBER_BYTES: usize = 64 << 20;

/// How a [`PubSocket`] is opened.
#[derive(Debug, Clone)]
pub struct PubOptions {
    /// Where to listen, or whom to connect to.
    pub endpoint: Endpoint,
    /// Messages held per subscriber; more are dropped for that subscriber. 0 is without limit. In any case at
    /// most 64 MiB are held per subscriber, or one message that is larger.
    pub send_hwm: i32,
    /// A subscriber gets what is published only after it was [admitted](PubSocket::admit), so that it can be
    /// sent something else before. One for which a message was dropped is held back again.
    pub hold_back: bool,
}

impl PubOptions {
    /// An endpoint with vLLM's usual limit.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, send_hwm: 100_000, hold_back: false }
    }
}

/// Publishes batches. Never waits for a subscriber.
///
/// It is an XPUB, which on the wire is a PUB that also hears of subscriptions: so a test can wait for its
/// subscriber instead of hoping. Dropping it closes its connections and frees its address before the drop
/// returns; what the kernel has not taken by then is discarded.
pub struct PubSocket(Handle);

impl PubSocket {
    /// Binds or connects. A bind that fails is an error here; a subscriber that cannot be reached is not: it
    /// is dialled until it is there.
    pub fn open(context: &PublishContext, options: &PubOptions) -> Result<Self, SocketError> {
        let limits = Limits::new(options.send_hwm, SUBSCRIBER_BYTES);
        context.open(SocketType::XPub, &options.endpoint, limits, options.hold_back).map(Self)
    }

    /// The address in use; when bound to port 0, with the port that the system chose.
    pub fn last_endpoint(&self) -> &str {
        &self.0.last_endpoint
    }

    /// Publishes one batch.
    pub fn send(&mut self, topic: &[u8], sequence: u64, payload: &[u8]) -> Result<(), SocketError> {
        self.send_frames(&[topic, &sequence.to_be_bytes(), payload])
    }

    /// Publishes frames as they are: for faults and foreign framings.
    pub fn send_frames(&mut self, frames: &[&[u8]]) -> Result<(), SocketError> {
        self.0.hub.publish(frames)
    }

    /// How many subscriptions were ever made on this socket: one per topic filter and connection.
    pub fn subscriptions(&mut self) -> u64 {
        self.0.hub.subscriptions()
    }

    /// The subscribers that want a topic and have subscribed since the last call, or are held back again.
    pub fn newcomers(&mut self, topic: &[u8]) -> Vec<SubscriberId> {
        self.0.hub.newcomers(topic)
    }

    /// Sends one batch to one subscriber.
    pub fn send_to(
        &mut self,
        subscriber: SubscriberId,
        topic: &[u8],
        sequence: u64,
        payload: &[u8],
    ) -> Result<Delivery, SocketError> {
        self.0.hub.send_to(subscriber, &[topic, &sequence.to_be_bytes(), payload])
    }

    /// From now on a subscriber gets what is published.
    pub fn admit(&mut self, subscriber: SubscriberId) {
        self.0.hub.admit(subscriber);
    }

    /// Holds every subscriber back: each is a newcomer again.
    pub fn hold_back(&mut self) {
        self.0.hub.hold_back();
    }

    /// Waits until at least `count` subscriptions were made; false when `timeout` passed before. What is sent
    /// afterwards reaches those subscribers.
    pub fn wait_for_subscriptions(&mut self, count: u64, timeout: Duration) -> bool {
        self.0.hub.wait_for_subscriptions(count, timeout)
    }

    /// What happened so far.
    pub fn counts(&self) -> PublishCounts {
        self.0.hub.counts()
    }
}

impl std::fmt::Debug for PubSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PubSocket").field("endpoint", &self.0.last_endpoint).finish_non_exhaustive()
    }
}
