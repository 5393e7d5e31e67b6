//! One subscription: a SUB socket, its monitor and the handler that hears both in the right order.
//!
//! **Order.** A message is handed over only after every connection event that happened before it. The two
//! come through different queues, so a turn first reads messages, then the monitor, and then tells the
//! events before the messages: whatever caused a message to be readable was in the monitor's queue by then.
//! A message of the old connection may thus be told after the reconnect; never the other way round.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zmq::{Context, Socket};

use crate::SocketError;
use crate::frames::Multipart;
use crate::monitor::{Change, Monitor};
use crate::options::{Endpoint, Subscription, millis};
use crate::poller::PollerQueue;
use crate::service::ContextLease;
use crate::wake::unique_inproc;

/// Messages taken from one socket before the others get their turn.
const MESSAGES_PER_TURN: usize = 512;

/// Payload bytes after which a turn ends early, so that a turn of huge batches is not held in memory.
const BYTES_PER_TURN: usize = 16 << 20;

/// How long libzmq may take to announce that it dials again. It does so at once, or never.
const REDIAL_AFTER: Duration = Duration::from_secs(1);

/// What a subscription's owner hears, all on one poller thread. A handler must not block: the other
/// subscriptions of its thread wait for it.
pub trait SubscriberHandler: Send {
    /// A publisher is connected (its handshake succeeded). In bind mode there may be several.
    fn connected(&mut self);

    /// A connected publisher went away.
    fn disconnected(&mut self);

    /// A batch came.
    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes);

    /// The peer was there at `at`, and everything that it sent before that has been handed over.
    fn proven(&mut self, _at: Instant) {}

    /// A message that is no batch came and was dropped. `reason` is a stable word: `frame_count` or
    /// `sequence_length`.
    fn malformed(&mut self, reason: &'static str);

    /// Everything that could be read for now has been told: the moment to wake others, once for a whole burst.
    fn drained(&mut self) {}

    /// Time passes: called about every 100 ms.
    fn tick(&mut self, now: Instant);
}

/// Keeps a subscription alive. After its drop no new call to the handler begins; one that is under way on
/// the poller thread still ends.
#[must_use = "dropping the handle ends the subscription"]
pub struct SubscriptionHandle {
    pub(crate) id: u64,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) queue: Arc<PollerQueue>,
    pub(crate) last_endpoint: String,
}

impl SubscriptionHandle {
    /// The address in use; in bind mode with the port that the system chose.
    pub fn last_endpoint(&self) -> &str {
        &self.last_endpoint
    }
}

impl std::fmt::Debug for SubscriptionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscriptionHandle").field("endpoint", &self.last_endpoint).finish_non_exhaustive()
    }
}

impl Drop for SubscriptionHandle {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
        self.queue.remove(self.id);
    }
}

/// A SUB socket and its monitor.
struct Link {
    monitor: Monitor,
    socket: Socket,
    /// Readable when something happened on the socket or on its monitor.
    descriptors: [RawFd; 2],
}

/// What one turn read and has not told yet.
pub(crate) struct Received {
    parts: Multipart,
    /// Its sequence, or why it is no batch.
    sequence: Result<u64, &'static str>,
}

/// A subscription as its poller thread holds it.
pub(crate) struct Subscriber {
    pub(crate) id: u64,
    subscription: Subscription,
    link: Link,
    handler: Box<dyn SubscriberHandler>,
    cancelled: Arc<AtomicBool>,
    lease: ContextLease,
    /// More may be readable than the last turn took.
    pub(crate) hot: bool,
}

impl Subscriber {
    /// Opens the sockets; errors of a bind are known when it returns.
    pub(crate) fn open(
        id: u64,
        subscription: Subscription,
        handler: Box<dyn SubscriberHandler>,
        cancelled: Arc<AtomicBool>,
        lease: ContextLease,
    ) -> Result<Self, SocketError> {
        let link = Link::open(lease.context(), &subscription)?;
        // Events before the poller's first look leave no edge on the descriptor: look without being asked.
        Ok(Self { id, subscription, link, handler, cancelled, lease, hot: true })
    }

    /// The address in use.
    pub(crate) fn last_endpoint(&self) -> String {
        let configured = self.subscription.endpoint.address();
        match self.link.socket.get_last_endpoint() {
            Ok(Ok(endpoint)) if !endpoint.is_empty() => endpoint,
            _ => configured.to_owned(),
        }
    }

    /// The descriptors that become readable when something happens on the socket or its monitor.
    pub(crate) fn descriptors(&self) -> [RawFd; 2] {
        self.link.descriptors
    }

    /// Reads what is there, within bounds, and tells the handler. `batch` is scratch space.
    pub(crate) fn turn(&mut self, batch: &mut Vec<Received>) {
        self.hot = self.read(batch);
        while let Some(change) = self.link.monitor.next() {
            self.tell(change);
        }
        for Received { mut parts, sequence } in batch.drain(..) {
            if self.is_cancelled() {
                self.hot = false;
                continue;
            }
            match sequence {
                Ok(sequence) => {
                    let payload = parts.take(2);
                    self.handler.message(parts.frame(0), sequence, payload);
                }
                Err(reason) => self.handler.malformed(reason),
            }
        }
        if !self.is_cancelled() {
            self.handler.drained();
        }
    }

    /// Time passes. Also dials again where libzmq gave up (see [`Monitor::stuck_since`]); true when the
    /// socket is another one now.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        if self.is_cancelled() {
            return false;
        }
        self.handler.tick(now);
        let stuck =
            self.link.monitor.stuck_since().is_some_and(|since| now.duration_since(since) >= REDIAL_AFTER);
        stuck && matches!(self.subscription.endpoint, Endpoint::Connect(_)) && self.redial()
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    fn tell(&mut self, change: Change) {
        if self.is_cancelled() {
            return;
        }
        match change {
            Change::Connected => self.handler.connected(),
            Change::Disconnected => self.handler.disconnected(),
        }
    }

    /// Reads up to a turn's share; true when there may be more.
    fn read(&mut self, batch: &mut Vec<Received>) -> bool {
        let mut bytes = 0;
        while batch.len() < MESSAGES_PER_TURN && bytes < BYTES_PER_TURN {
            match Multipart::receive(&self.link.socket) {
                Ok(Some(parts)) => {
                    bytes += parts.frame(2).len();
                    let sequence = sequence_of(&parts);
                    batch.push(Received { parts, sequence });
                }
                Ok(None) => return false,
                Err(cause) => {
                    tracing::warn!(endpoint = self.subscription.endpoint.address(), %cause, "receive failed");
                    return false;
                }
            }
        }
        true
    }

    fn redial(&mut self) -> bool {
        // A new socket, not a second connect on the old one: that one's dead session stays in its tables.
        match Link::open(self.lease.context(), &self.subscription) {
            Ok(link) => {
                for _ in 0..self.link.monitor.live() {
                    self.handler.disconnected();
                }
                self.link = link;
                self.hot = true;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot dial again");
                false
            }
        }
    }
}

impl Link {
    fn open(context: &Context, subscription: &Subscription) -> Result<Self, SocketError> {
        let socket = context.socket(zmq::SUB).map_err(SocketError::doing("open a SUB socket"))?;
        configure(&socket, subscription).map_err(SocketError::doing("configure a SUB socket"))?;
        let monitor = Monitor::attach(context, &socket)?;
        dial(&socket, &subscription.endpoint)?;
        let descriptors = || Ok([socket.get_fd()?, monitor.socket().get_fd()?]);
        let descriptors = descriptors().map_err(SocketError::doing("read a descriptor"))?;
        Ok(Self { monitor, socket, descriptors })
    }
}

impl Drop for Link {
    /// The monitor is ended before its reader goes: libzmq's IO thread waits for a reader when it has something to tell, and
    /// with it every socket of the context. A monitor of nothing takes the place of the one that there was.
    fn drop(&mut self) {
        if let Err(cause) = self.socket.monitor(&unique_inproc("unmonitored"), 0) {
            tracing::debug!(%cause, "cannot end a monitor");
        }
    }
}

/// Binds or connects.
pub(crate) fn dial(socket: &Socket, endpoint: &Endpoint) -> Result<(), SocketError> {
    let (action, result) = match endpoint {
        Endpoint::Connect(address) => ("connect", socket.connect(address)),
        Endpoint::Bind(address) => ("bind", socket.bind(address)),
    };
    result.map_err(|cause| SocketError::Endpoint { action, endpoint: endpoint.address().to_owned(), cause })
}

fn configure(socket: &Socket, subscription: &Subscription) -> Result<(), zmq::Error> {
    socket.set_linger(0)?;
    socket.set_ipv6(subscription.endpoint.wants_ipv6())?;
    socket.set_rcvhwm(subscription.receive_hwm)?;
    socket.set_maxmsgsize(subscription.max_message_bytes)?;
    socket.set_reconnect_ivl(millis(subscription.reconnect_min))?;
    socket.set_reconnect_ivl_max(millis(subscription.reconnect_max))?;
    socket.set_heartbeat_ivl(millis(subscription.heartbeat_interval))?;
    socket.set_heartbeat_timeout(millis(subscription.heartbeat_timeout))?;
    socket.set_heartbeat_ttl(millis(subscription.heartbeat_timeout))?;
    socket.set_tcp_keepalive(1)?;
    for topic in &subscription.topics {
        socket.set_subscribe(topic)?;
    }
    Ok(())
}

fn sequence_of(parts: &Multipart) -> Result<u64, &'static str> {
    const FRAMES: usize = 3;
    if parts.count() != FRAMES {
        return Err("frame_count");
    }
    parts.sequence(1).ok_or("sequence_length")
}
