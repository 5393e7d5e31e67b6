//! Several ranks as one stream: one gapless sequence for consumers that route to an engine.
//!
//! Started by the first who asks; from then on it follows every rank that the engine has, until the engine is removed. Numbers begin at the moment it started, so that
//! cursors of an earlier process are never inside its window.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kvplane_core::{Continuity, EngineId, Epoch, Trust};
use kvplane_ingest::{Engine, Engines, News, Plane, Stream};
use kvplane_stream::{Entry, RankMerge, Transition};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::encode;

/// Entries kept for those who come back; the same as a stream keeps by default.
const WINDOW_ENTRIES: usize = 10_000;
const WINDOW_BYTES: usize = 64 << 20;
/// Entries read from a rank at a time.
const READ: usize = 256;
/// How soon a rank that is not credited is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
        let merger = Arc::new(Merger::new(running.last));
        running.by_engine.insert(engine.clone(), merger.clone());
        let supervisor = Supervisor {
            merger: merger.clone(),
            engine: engine.clone(),
            engines: plane.watch(),
            credit: credit.to_vec(),
            ranks: HashMap::new(),
        };
        let (mergers, stop) = (self.0.clone(), stop.clone());
        tokio::spawn(async move {
            let (merger, engine) = (supervisor.merger.clone(), supervisor.engine.clone());
            stop.run_until_cancelled(supervisor.run()).await;
            let mut running = mergers.lock();
            running.by_engine.remove(&engine);
            let highest = merger.merged.lock().next_sequence - 1;
            if running.last.is_none_or(|(epoch, _)| epoch < merger.epoch) {
                running.last = Some((merger.epoch, highest));
            }
            merger.ended.cancel();
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
    fn new(last: Option<(Epoch, u64)>) -> Self {
        let unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
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

/// Keeps a follower for every rank that the engine has, until it is removed.
struct Supervisor {
    merger: Arc<Merger>,
    engine: EngineId,
    engines: watch::Receiver<Engines>,
    credit: Vec<Trust>,
    ranks: HashMap<u32, (Arc<Stream>, AbortOnDropHandle<()>)>,
}

impl Supervisor {
    async fn run(mut self) {
        loop {
            let engines = self.engines.borrow_and_update().clone();
            let Some(engine) = engines.iter().find(|engine| engine.spec.id == self.engine) else { return };
            self.reconcile(engine).await;
            if self.engines.changed().await.is_err() {
                return;
            }
        }
    }

    async fn reconcile(&mut self, engine: &Engine) {
        let stays = |rank: &u32, stream: &Arc<Stream>| {
            engine.stream(*rank).is_some_and(|now| Arc::ptr_eq(now, stream))
        };
        let gone = self.ranks.extract_if(|rank, (stream, _)| !stays(rank, stream));
        for (rank, (_, follower)) in gone.collect::<Vec<_>>() {
            follower.abort();
            // Only when it has ended, nothing of the rank can come behind this.
            let _ = follower.await;
            self.merger.apply(rank, 0.0, &[], true);
        }
        for stream in &engine.streams {
            self.ranks.entry(stream.id().rank).or_insert_with(|| {
                let (merger, credit) = (self.merger.clone(), self.credit.clone());
                let follower = RankFollower { merger, stream: stream.clone(), credit };
                (stream.clone(), AbortOnDropHandle::new(tokio::spawn(follower.run())))
            });
        }
    }
}

/// Brings one rank into the merged stream.
struct RankFollower {
    merger: Arc<Merger>,
    stream: Arc<Stream>,
    credit: Vec<Trust>,
}

impl RankFollower {
    async fn run(self) {
        let rank = self.stream.id().rank;
        loop {
            // From here on what the rank holds is what its next snapshot says; until then it holds nothing.
            if !self.is_credited() {
                self.merger.apply(rank, 0.0, &[], true);
                while !self.is_credited() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
            let snapshot = self.stream.snapshot().await;
            // Holes are told as stored and removed at once: nothing of them is left.
            self.merger.apply(rank, 0.0, &snapshot.as_transitions(), true);
            let (mut cursor, mut standing) = (snapshot.cursor, snapshot.standing);
            drop(snapshot);
            // A loss or another life: begin again.
            while let Ok(news) = self.stream.news_after(cursor, standing, READ).await {
                let entries = match news {
                    News::Entries(entries) => entries,
                    News::Standing(Continuity::Down) => break,
                    News::Standing(now) => {
                        standing = now;
                        continue;
                    }
                };
                for entry in &entries {
                    self.merger.apply(rank, entry.timestamp, &entry.transitions, false);
                    cursor.sequence = entry.sequence;
                    standing = entry.standing.unwrap_or(standing);
                }
                if entries.iter().any(|entry| self.ends_credit(entry)) && !self.is_credited() {
                    break;
                }
            }
        }
    }

    fn is_credited(&self) -> bool {
        let status = self.stream.status();
        status.continuity == Continuity::Live && self.credit.contains(&status.trust.level())
    }

    fn ends_credit(&self, entry: &Entry) -> bool {
        entry.standing == Some(Continuity::Down)
            || entry.trust.as_ref().is_some_and(|trust| !self.credit.contains(&trust.level()))
    }
}
