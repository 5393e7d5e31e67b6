//! What is known of a report while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::calls::Identity;
use super::link::Link;
use crate::outbox::{Outbox, OutboxCounts, Outcome, Pending, Saying};

/// The kinds of calls, as metrics name them.
pub const SAYINGS: [&str; 4] = ["adds", "eviction", "clear", "stats"];
/// How calls end, as metrics name it.
pub const CALL_OUTCOMES: [&str; 3] = ["taken", "refused", "failed"];

/// One replica that is reported to one server.
#[derive(Debug)]
pub struct ReplicaReport {
    /// Which engine it is.
    pub engine: String,
    /// How it is named there.
    pub identity: Arc<Identity>,
    /// The way to the server.
    pub link: Arc<Link>,
    pub(super) outbox: Mutex<Outbox>,
    pub(super) wake: Notify,
    pub(super) began: Instant,
    calls: [[AtomicU64; CALL_OUTCOMES.len()]; SAYINGS.len()],
    /// Milliseconds since it began.
    last_taken: AtomicU64,
    failing: AtomicBool,
    stats_stale: AtomicBool,
    duplicate: AtomicBool,
}

impl ReplicaReport {
    pub(super) fn new(engine: String, identity: Identity, link: Arc<Link>, outbox: Outbox) -> Self {
        Self {
            engine,
            identity: Arc::new(identity),
            link,
            outbox: Mutex::new(outbox),
            wake: Notify::new(),
            began: kvplane_runtime::now(),
            calls: Default::default(),
            last_taken: AtomicU64::new(u64::MAX),
            failing: AtomicBool::new(false),
            stats_stale: AtomicBool::new(false),
            duplicate: AtomicBool::new(false),
        }
    }

    /// Time since it began, by which the outbox counts.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What happened to its blocks.
    pub fn counts(&self) -> OutboxCounts {
        self.outbox.lock().counts()
    }

    /// What waits to be reported.
    pub fn pending(&self) -> Pending {
        self.outbox.lock().pending()
    }

    /// Calls of a kind that ended so, by their places in [`SAYINGS`] and [`CALL_OUTCOMES`].
    pub fn calls(&self, saying: usize, outcome: usize) -> u64 {
        self.calls[saying][outcome].load(Ordering::Relaxed)
    }

    /// Time since the server last took something; since the start, if it never did.
    pub fn since_last_taken(&self) -> Duration {
        let last = self.last_taken.load(Ordering::Relaxed);
        self.now().saturating_sub(Duration::from_millis(if last == u64::MAX { 0 } else { last }))
    }

    /// The last call failed.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// The engine's load was not to be had several times in a row.
    pub fn are_stats_stale(&self) -> bool {
        self.stats_stale.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stats_stale(&self, stale: bool) {
        self.stats_stale.store(stale, Ordering::Relaxed);
    }

    /// Nothing of it is reported, because another report covers the same replica.
    pub fn is_duplicate(&self) -> bool {
        self.duplicate.load(Ordering::Relaxed)
    }

    pub(crate) fn set_duplicate(&self, duplicate: bool) {
        self.duplicate.store(duplicate, Ordering::Relaxed);
    }

    /// In one word: what an operator has to know.
    pub fn state(&self) -> &'static str {
        if self.is_duplicate() {
            "duplicate"
        } else if !self.link.is_up() {
            "unreachable"
        } else if self.is_failing() {
            "failing"
        } else if self.outbox.lock().is_settled() {
            "told"
        } else {
            "telling"
        }
    }

    /// Counts the end of a call. Returns whether it differs from how the last one ended.
    pub(super) fn ended(&self, saying: usize, outcome: Outcome) -> bool {
        let at = match outcome {
            Outcome::Taken => 0,
            Outcome::Refused => 1,
            Outcome::Failed | Outcome::Unanswered => 2,
        };
        self.calls[saying][at].fetch_add(1, Ordering::Relaxed);
        let taken = outcome == Outcome::Taken;
        if taken {
            let now = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX - 1);
            self.last_taken.store(now, Ordering::Relaxed);
        }
        self.failing.swap(!taken, Ordering::Relaxed) == taken
    }
}

pub(super) fn place_of(saying: &Saying) -> usize {
    match saying {
        Saying::Adds(_) => 0,
        Saying::Eviction { .. } => 1,
        Saying::Clear => 2,
        Saying::Stats(_) => 3,
    }
}
