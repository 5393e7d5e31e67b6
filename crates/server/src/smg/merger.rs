//! Several ranks as one stream: one gapless sequence for consumers that route to an engine.
//!
//! Started by the first subscriber. It follows every rank that the engine has until the engine is removed, or
//! until it has had no subscriber for a minute. Numbers begin at the moment it started, so that cursors of an
//! earlier process are never inside its window.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_core::{Continuity, EngineId, Epoch, Trust};
use kvplane_ingest::{Engine, Plane, RankReader, Stream, StreamStatus, follow_ranks};
use kvplane_stream::{Entry, RankMerge, Snapshot, Transition};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::encode::{self, Plan};
use crate::encoding::Planned;

/// Entries kept for those who come back; the same as a stream keeps by default.
const WINDOW_ENTRIES: usize = 10_000;
const WINDOW_BYTES: usize = 64 << 20;

/// How long a merger goes on without a subscriber, so that a gateway that reconnects can resume. Then its
/// copy of the state is freed.
const IDLE: Duration = Duration::from_mins(1);

/// How long subscribers that begin share a snapshot.
const SHARED_FOR: Duration = Duration::from_secs(2);

/// The mergers of a plane's engines.
#[derive(Debug)]
pub(crate) struct Mergers {
    running: Arc<Mutex<Running>>,
    idle: Duration,
}

#[derive(Debug, Default)]
struct Running {
    by_engine: HashMap<EngineId, Arc<Merger>>,
    /// The epoch and the last number of the merger that ended last. The next epoch is above both, whatever
    /// the clock says.
    last: Option<(Epoch, u64)>,
}

impl Default for Mergers {
    fn default() -> Self {
        Self { running: Arc::default(), idle: IDLE }
    }
}

impl Mergers {
    /// Subscribes to the engine's merger, and starts it if there is none.
    ///
    /// It runs on the plane's own runtime: the first subscriber may be a front, whose runtime ends with it.
    pub(super) fn of(
        &self,
        engine: &EngineId,
        plane: &Plane,
        credit: &[Trust],
        stop: &CancellationToken,
    ) -> Subscribed {
        let mut running = self.running.lock();
        if let Some(merger) = running.by_engine.get(engine) {
            return Subscribed::to(merger);
        }
        let merger = Arc::new(Merger::new(plane.steady_unix_ms(), running.last));
        running.by_engine.insert(engine.clone(), merger.clone());
        let subscribed = Subscribed::to(&merger);
        // A runtime that is shutting down drops the task at once, and `End` takes the lock.
        drop(running);
        // Made here and not in the task: it also runs if the task is dropped before it begins.
        let end = End { running: self.running.clone(), engine: engine.clone(), merger };
        let (idle, stop) = (self.idle, stop.clone());
        let (engines, credit) = (plane.watch(), credit.to_vec());
        kvplane_runtime::spawn_on(plane.runtime(), "merge ranks", async move {
            let begin = |stream: &Arc<Stream>| Rank {
                merger: end.merger.clone(),
                stream: stream.clone(),
                credit: credit.clone(),
            };
            let is_it = |known: &Engine| known.spec.id == end.engine;
            tokio::select! {
                () = stop.cancelled() => {}
                () = end.unused_for(idle) => {}
                () = follow_ranks(engines, is_it, begin) => {}
            }
        });
        subscribed
    }
}

/// Takes a merger out of the table when its task ends, also by a panic or with its runtime: its subscribers
/// start over, and the next one starts a new merger.
struct End {
    running: Arc<Mutex<Running>>,
    engine: EngineId,
    merger: Arc<Merger>,
}

impl End {
    /// Returns when there has been no subscriber for so long. Nobody can subscribe from then on.
    async fn unused_for(&self, idle: Duration) {
        let merger = &self.merger;
        loop {
            let left = merger.left.notified();
            if merger.subscribers.load(Ordering::Acquire) > 0 {
                left.await;
                continue;
            }
            // Somebody who comes and leaves again begins the wait anew.
            if tokio::time::timeout(idle, left).await.is_ok() {
                continue;
            }
            let mut running = self.running.lock();
            // Subscribers are added under this lock.
            if merger.subscribers.load(Ordering::Acquire) == 0 {
                self.remove_from(&mut running);
                return;
            }
        }
    }

    fn remove_from(&self, running: &mut Running) {
        let is_it = |known: &Arc<Merger>| Arc::ptr_eq(known, &self.merger);
        if running.by_engine.get(&self.engine).is_some_and(is_it) {
            running.by_engine.remove(&self.engine);
        }
        let highest = self.merger.merged.lock().next_sequence - 1;
        if running.last.is_none_or(|(epoch, _)| epoch < self.merger.epoch) {
            running.last = Some((self.merger.epoch, highest));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.remove_from(&mut self.running.lock());
        self.merger.ended.cancel();
    }
}

/// A merger, as one subscriber holds it.
#[derive(Debug)]
pub(super) struct Subscribed(Arc<Merger>);

impl Subscribed {
    fn to(merger: &Arc<Merger>) -> Self {
        merger.subscribers.fetch_add(1, Ordering::AcqRel);
        Self(merger.clone())
    }
}

impl Clone for Subscribed {
    fn clone(&self) -> Self {
        Self::to(&self.0)
    }
}

impl Deref for Subscribed {
    type Target = Merger;

    fn deref(&self) -> &Merger {
        &self.0
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.0.subscribers.fetch_sub(1, Ordering::AcqRel);
        // One permit is kept if nobody waits: the task looks at the count again.
        self.0.left.notify_one();
    }
}

/// A position within the merged stream is outside of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outside;

#[derive(Debug)]
struct Merged {
    state: RankMerge,
    entries: VecDeque<Bytes>,
    bytes: usize,
    next_sequence: u64,
    next_event_id: u64,
}

/// One engine's ranks, merged.
#[derive(Debug)]
pub(super) struct Merger {
    epoch: Epoch,
    merged: Mutex<Merged>,
    /// The last snapshot, and when it was taken.
    plan: Mutex<Option<(Instant, Weak<Planned<Plan>>)>>,
    changed: Notify,
    subscribers: AtomicUsize,
    /// A subscriber left.
    left: Notify,
    ended: CancellationToken,
}

impl Merger {
    /// `unix_ms` is the plane's clock, which mints the epochs of its streams too.
    fn new(unix_ms: u64, last: Option<(Epoch, u64)>) -> Self {
        let (previous, highest) = last.unzip();
        let epoch = Epoch::mint(unix_ms, previous, highest.unwrap_or(0));
        Self {
            epoch,
            merged: Mutex::new(Merged {
                state: RankMerge::default(),
                entries: VecDeque::new(),
                bytes: 0,
                next_sequence: epoch.base().nth(1),
                next_event_id: epoch.base().nth(1),
            }),
            plan: Mutex::default(),
            changed: Notify::new(),
            subscribers: AtomicUsize::new(0),
            left: Notify::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Cancelled when the merger has ended: what it holds is not kept up to date any more.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Everything at one moment, as messages. Takes its time. Subscribers that begin together share one, as
    /// long as all that came after it is here.
    pub(super) fn plan(&self) -> Arc<Planned<Plan>> {
        let mut last = self.plan.lock();
        if let Some((begun, plan)) = &*last
            && begun.elapsed() <= SHARED_FOR
            && let Some(plan) = plan.upgrade()
            && self.read_after(plan.plan().cut(), 0).is_ok()
        {
            return plan;
        }
        let begun = kvplane_runtime::now();
        let (transitions, cut) = self.snapshot();
        let plan = Arc::new(Planned::new(Plan::new(transitions, cut, 0)));
        *last = Some((begun, Arc::downgrade(&plan)));
        plan
    }

    /// Everything at one moment, and that moment.
    fn snapshot(&self) -> (Vec<Transition>, u64) {
        let merged = self.merged.lock();
        (merged.state.as_transitions(), merged.next_sequence - 1)
    }

    /// What follows a number; waits until there is something.
    pub(super) async fn next_after(&self, sequence: u64, max: usize) -> Result<(Vec<Bytes>, u64), Outside> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let (entries, last) = self.read_after(sequence, max)?;
            if !entries.is_empty() {
                return Ok((entries, last));
            }
            changed.await;
        }
    }

    /// What follows a number, and the number of its last.
    pub(super) fn read_after(&self, sequence: u64, max: usize) -> Result<(Vec<Bytes>, u64), Outside> {
        let merged = self.merged.lock();
        // The number is the client's, so any is possible.
        if sequence >= merged.next_sequence {
            return Err(Outside);
        }
        let first = merged.next_sequence - merged.entries.len() as u64;
        let skip = (sequence + 1).checked_sub(first).ok_or(Outside)?;
        let entries: Vec<Bytes> = merged.entries.range(skip as usize..).take(max).cloned().collect();
        let last = sequence + entries.len() as u64;
        Ok((entries, last))
    }

    fn apply(&self, rank: u32, timestamp: f64, transitions: &[Transition], forget_first: bool) {
        let mut out = Vec::new();
        let mut merged = self.merged.lock();
        if forget_first {
            merged.state.forget(rank, &mut out);
        }
        for transition in transitions {
            merged.state.apply(rank, transition, &mut out);
        }
        if out.is_empty() {
            return;
        }
        let bytes = encode::batch(merged.next_sequence, timestamp, merged.next_event_id, &out);
        merged.next_sequence += 1;
        merged.next_event_id += out.len() as u64;
        merged.bytes += bytes.len();
        merged.entries.push_back(bytes);
        while merged.entries.len() > 1
            && (merged.entries.len() > WINDOW_ENTRIES || merged.bytes > WINDOW_BYTES)
        {
            if let Some(old) = merged.entries.pop_front() {
                merged.bytes -= old.len();
            }
        }
        drop(merged);
        self.changed.notify_waiters();
    }
}

/// Brings one rank into the merged stream.
struct Rank {
    merger: Arc<Merger>,
    stream: Arc<Stream>,
    credit: Vec<Trust>,
}

impl RankReader for Rank {
    fn wants(&self, status: &StreamStatus) -> bool {
        status.trust.is_credited_at(status.continuity, &self.credit)
    }

    fn load(&mut self, snapshot: &Snapshot) {
        // Holes are sent as stored and removed at once: nothing of them is left.
        self.merger.apply(self.stream.id().rank, 0.0, &snapshot.as_transitions(), true);
    }

    fn follow(&mut self, entry: &Entry) -> bool {
        self.merger.apply(self.stream.id().rank, entry.timestamp, &entry.transitions, false);
        let ends_credit = entry.continuity == Some(Continuity::Down)
            || entry.trust.as_ref().is_some_and(|trust| !trust.is_credited(&self.credit));
        !ends_credit || self.wants(&self.stream.status())
    }

    fn forget(&mut self) {
        self.merger.apply(self.stream.id().rank, 0.0, &[], true);
    }
}

#[cfg(test)]
mod tests;
