//! How a connection is doing, and when it has taken too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Closed;

/// What an HTTP/2 client sends first.
const PREFACE_BYTES: u64 = 24;
const NEVER: u64 = u64::MAX;

/// How long each step may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A TLS handshake.
    pub handshake: Duration,
    /// A request's head, or HTTP/2's preface.
    pub head: Duration,
    /// A connection on which nothing is asked.
    pub idle: Duration,
    /// Bytes to be written that the peer does not take.
    pub write: Duration,
    /// A response over HTTP/2 that waits for the peer, of which it takes no data.
    pub unread: Duration,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// TLS has to be agreed on first.
    Handshake,
    /// HTTP/1: one request at a time.
    Http1,
    /// HTTP/2: pings find peers that are gone.
    Http2,
}

/// One connection's state, shared by its socket and by its requests. Times are milliseconds since it began.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    limits: Limits,
    speaks: AtomicU8,
    /// When the protocol began.
    began: AtomicU64,
    /// Bytes read since.
    read: AtomicU64,
    in_flight: AtomicUsize,
    /// A request was answered.
    served: AtomicBool,
    /// Since when no request is under way.
    calm_since: AtomicU64,
    /// When the first byte came since then.
    head_since: AtomicU64,
    /// Since when the peer takes nothing of what is written.
    stalled_since: AtomicU64,
    /// The peer was listened to, and had nothing to say.
    silent: AtomicBool,
    /// Responses whose last piece was handed over, and whose next one was not asked for yet.
    waiting: AtomicUsize,
    /// When the peer last took data, or the first of these began to wait.
    taken_at: AtomicU64,
    close: CancellationToken,
}

/// A request under way, for as long as its response is.
#[derive(Debug)]
pub struct InFlight {
    pulse: Arc<Pulse>,
    waits: bool,
}

impl Pulse {
    pub(super) fn new(limits: Limits, speaks: Speaks) -> Self {
        Self {
            start: Instant::now(),
            limits,
            speaks: AtomicU8::new(speaks as u8),
            began: AtomicU64::new(0),
            read: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            served: AtomicBool::new(false),
            calm_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NEVER),
            stalled_since: AtomicU64::new(NEVER),
            silent: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            taken_at: AtomicU64::new(0),
            close: CancellationToken::new(),
        }
    }

    /// The handshake is done, and this is spoken from now on.
    pub fn begin(&self, speaks: Speaks) {
        let now = self.now();
        self.read.store(0, Ordering::Relaxed);
        self.began.store(now, Ordering::Relaxed);
        self.calm_since.store(now, Ordering::Relaxed);
        self.head_since.store(NEVER, Ordering::Relaxed);
        self.speaks.store(speaks as u8, Ordering::Release);
    }

    /// A request whose head was read.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.head_since.store(NEVER, Ordering::Relaxed);
        InFlight { pulse: self.clone(), waits: false }
    }

    /// Cancelled when the connection has to give its place to another.
    pub fn closing(&self) -> &CancellationToken {
        &self.close
    }

    /// Whether nothing is asked on it.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Whether it was found silent since it was opened.
    pub(super) fn was_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.close.cancel();
    }

    pub(super) fn note_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.is_idle() && self.head_since.load(Ordering::Relaxed) == NEVER {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
    }

    pub(super) fn note_waiting(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_data_taken(&self) {
        self.taken_at.store(self.now(), Ordering::Relaxed);
    }

    pub(super) fn note_written(&self) {
        self.stalled_since.store(NEVER, Ordering::Relaxed);
    }

    pub(super) fn note_stalled(&self) {
        // The first time counts.
        let now = self.now();
        let _ = self.stalled_since.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// When to look again, or what has taken too long.
    pub(super) fn check(&self) -> Result<Instant, Closed> {
        let now = self.now();
        let limits = &self.limits;
        let (mut next, mut late) = (now + millis(limits.idle), None);
        let mut due = |since: u64, limit: Duration, reason: Closed| {
            let at = since.saturating_add(millis(limit));
            next = next.min(at);
            if at <= now {
                late = late.or(Some(reason));
            }
        };
        let stalled = self.stalled_since.load(Ordering::Relaxed);
        if stalled != NEVER {
            due(stalled, limits.write, Closed::WriteTimeout);
        }
        let (speaks, began) = (self.speaks.load(Ordering::Acquire), self.began.load(Ordering::Relaxed));
        let calm = self.calm_since.load(Ordering::Relaxed);
        if speaks == Speaks::Http2 as u8 && !self.is_idle() {
            let waits = self.waiting.load(Ordering::Acquire) > 0;
            // A response that does not wait now may in a moment, and nothing need wake this up then.
            let since = if waits { self.taken_at.load(Ordering::Relaxed) } else { now };
            due(since, limits.unread, Closed::UnreadTimeout);
        }
        if speaks == Speaks::Handshake as u8 {
            due(began, limits.handshake, Closed::HandshakeTimeout);
        } else if speaks == Speaks::Http2 as u8 && self.read.load(Ordering::Relaxed) < PREFACE_BYTES {
            due(began, limits.head, Closed::PrefaceTimeout);
        } else if self.is_idle() {
            let head = self.head_since.load(Ordering::Relaxed);
            if speaks == Speaks::Http1 as u8 && head != NEVER {
                due(head, limits.head, Closed::HeadTimeout);
            } else if speaks == Speaks::Http1 as u8 && !self.served.load(Ordering::Relaxed) {
                due(calm, limits.head, Closed::HeadTimeout);
            } else {
                due(calm, limits.idle, Closed::IdleTimeout);
            }
        }
        match late {
            Some(reason) => Err(reason),
            None => Ok(self.start + Duration::from_millis(next.max(now + 1))),
        }
    }

    fn now(&self) -> u64 {
        millis(self.start.elapsed())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER - 1)
}

impl InFlight {
    /// A piece of the response was handed over.
    pub fn given(&mut self) {
        if !std::mem::replace(&mut self.waits, true) && self.pulse.waiting.fetch_add(1, Ordering::AcqRel) == 0
        {
            self.pulse.note_data_taken();
        }
    }

    /// The next piece is asked for: the peer has room.
    pub fn taken(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.pulse.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.taken();
        let pulse = &self.pulse;
        pulse.served.store(true, Ordering::Relaxed);
        pulse.calm_since.store(pulse.now(), Ordering::Relaxed);
        pulse.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
