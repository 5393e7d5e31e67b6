//! Several ranks as one stream: one gapless sequence for consumers that route to an engine.
//!
//! Started by the first who asks; from then on it follows every rank that the engine has, until the engine is removed. Numbers begin at the moment it started, so that
//! cursors of an earlier process are never inside its window.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use kvplane_core::{Continuity, EngineId, Epoch, Trust};
use kvplane_ingest::{Engine, Plane, RankReader, Stream, StreamStatus, follow_ranks};
use kvplane_stream::{Entry, RankMerge, Snapshot, Transition};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::encode;

/// Entries kept for those who come back; the same as a stream keeps by default.
const WINDOW_ENTRIES: usize = 10_000;
const WINDOW_BYTES: usize = 64 << 20;

/// The mergers of a plane's engines.
#[derive(Debug, Default)]
pub(crate) struct Mergers(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    by_engine: HashMap<EngineId, Arc<Merger>>,
    /// The life and the last number of the merger that ended last: the next one's are above, whatever the clock says.
    last: Option<(Epoch, u64)>,
}

impl Mergers {
    /// The engine's merger, started if need be.
    pub(super) fn of(
        &self,
        engine: &EngineId,
        plane: &Plane,
        credit: &[Trust],
        stop: &CancellationToken,
    ) -> Arc<Merger> {
        let mut running = self.0.lock();
        if let Some(merger) = running.by_engine.get(engine) {
            return merger.clone();
        }
        let merger = Arc::new(Merger::new(plane.steady_unix_ms(), running.last));
        running.by_engine.insert(engine.clone(), merger.clone());
        let (mergers, stop) = (self.0.clone(), stop.clone());
        let (engine, engines, credit, of) = (engine.clone(), plane.watch(), credit.to_vec(), merger.clone());
        tokio::spawn(async move {
            let begin = |stream: &Arc<Stream>| Rank {
                merger: of.clone(),
                stream: stream.clone(),
                credit: credit.clone(),
            };
            let is_it = |known: &Engine| known.spec.id == engine;
            stop.run_until_cancelled(follow_ranks(engines, is_it, begin)).await;
            let mut running = mergers.lock();
            running.by_engine.remove(&engine);
            let highest = of.merged.lock().next_sequence - 1;
            if running.last.is_none_or(|(epoch, _)| epoch < of.epoch) {
                running.last = Some((of.epoch, highest));
            }
            of.ended.cancel();
        });
        merger
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
    changed: Notify,
    ended: CancellationToken,
}

impl Merger {
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
            changed: Notify::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Cancelled when the engine is gone.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Everything at one moment, and that moment.
    pub(super) fn snapshot(&self) -> (Vec<Transition>, u64) {
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
        let first = merged.next_sequence - merged.entries.len() as u64;
        let skip = (sequence + 1).checked_sub(first).ok_or(Outside)?;
        if sequence >= merged.next_sequence {
            return Err(Outside);
        }
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
        // Holes are told as stored and removed at once: nothing of them is left.
        self.merger.apply(self.stream.id().rank, 0.0, &snapshot.as_transitions(), true);
    }

    fn follow(&mut self, entry: &Entry) -> bool {
        self.merger.apply(self.stream.id().rank, entry.timestamp, &entry.transitions, false);
        let ends_credit = entry.standing == Some(Continuity::Down)
            || entry.trust.as_ref().is_some_and(|trust| !trust.is_credited(&self.credit));
        !ends_credit || self.wants(&self.stream.status())
    }

    fn forget(&mut self) {
        self.merger.apply(self.stream.id().rank, 0.0, &[], true);
    }
}
