//! What a subscription's owner hears, and what it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;

use crate::poller::PollerQueue;

/// What a subscription's owner hears, all on one poller thread. A handler must not block: the other
/// subscriptions of its thread wait for it.
///
/// Everything about one connection is reported in the order in which it happened on the wire: `connected`,
/// then messages and proofs, then `disconnected`; what was read before the end of a connection is reported
/// before `disconnected`. Connections of a bound socket take turns; [`connection`](Self::connection) says
/// whose turn it is.
pub trait SubscriberHandler: Send {
    /// The calls that follow are about this connection, until the next call of this. Ids are never used
    /// again. With an address that is connected to, there is one connection at a time.
    fn connection(&mut self, _id: u64) {}

    /// A publisher is connected (its handshake succeeded). In bind mode there may be several.
    fn connected(&mut self);

    /// A connected publisher went away.
    fn disconnected(&mut self);

    /// A batch came.
    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes);

    /// A message that is no batch came and was dropped. `reason` is a stable word: `frame_count` or
    /// `sequence_length`.
    fn malformed(&mut self, reason: &'static str);

    /// The publisher of this connection was there at `at`, and everything that it sent before has been
    /// delivered. `at` is when the PING was sent that it answered, or our greeting; for publishers that have
    /// not answered a PING yet, a moment before the last frames arrived. It is never later than the truth,
    /// and not always later than at the call before.
    fn proven(&mut self, _connection: u64, _at: Instant) {}

    /// A connection was closed because the peer broke the protocol or a limit. `reason` is a stable word.
    fn protocol_error(&mut self, _reason: &'static str) {}

    /// Everything that could be read for now has been delivered: the moment to wake others, once for a whole
    /// burst.
    fn drained(&mut self) {}

    /// Its thread has begun to serve the subscription. Whatever makes [`Self::next_tick`] earlier outside of
    /// these calls has to ring `alarm`.
    fn begun(&mut self, _alarm: Alarm) {}

    /// Time passes: called when [`Self::next_tick`] has come, to within 100 ms.
    fn tick(&mut self, now: Instant);

    /// When a tick is due; `None` for not at all as things are. Asked after every other call, so it should
    /// cost next to nothing: thousands of idle streams must not be looked at one by one. What is due at `now`
    /// is ticked once more within 100 ms.
    fn next_tick(&self, now: Instant) -> Option<Instant> {
        Some(now)
    }
}

/// Asks the thread of a subscription to look again when a tick is due. Cheap to clone; may be rung from any
/// thread.
#[derive(Clone)]
pub struct Alarm {
    pub(crate) id: u64,
    pub(crate) queue: Arc<PollerQueue>,
}

impl Alarm {
    /// [`SubscriberHandler::next_tick`] may be earlier than it was.
    pub fn ring(&self) {
        self.queue.ring(self.id);
    }
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").field("subscription", &self.id).finish_non_exhaustive()
    }
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

/// The handler, silent once the subscription was cancelled.
pub(crate) struct Ear {
    handler: Box<dyn SubscriberHandler>,
    cancelled: Arc<AtomicBool>,
    /// The connection that was named last.
    named: Option<u64>,
}

impl Ear {
    pub(crate) fn new(handler: Box<dyn SubscriberHandler>, cancelled: Arc<AtomicBool>) -> Self {
        Self { handler, cancelled, named: None }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The handler, for a call about all of it; `None` when it is not to hear more.
    pub(crate) fn open(&mut self) -> Option<&mut dyn SubscriberHandler> {
        if self.is_cancelled() { None } else { Some(&mut *self.handler) }
    }

    /// When it needs a tick.
    pub(crate) fn next_tick(&self, now: Instant) -> Option<Instant> {
        if self.is_cancelled() { None } else { self.handler.next_tick(now) }
    }

    /// The handler, for a call about one connection.
    pub(crate) fn about(&mut self, connection: u64) -> Option<&mut dyn SubscriberHandler> {
        if self.is_cancelled() {
            return None;
        }
        if self.named.replace(connection) != Some(connection) {
            self.handler.connection(connection);
        }
        Some(&mut *self.handler)
    }
}
