//! Snapshots of a stream, taken step by step while it goes on.

use std::sync::Arc;
use std::time::Duration;

use kvplane_stream::{Snapshot, SnapshotBuilder};
use parking_lot::MutexGuard;

use super::Stream;

/// Slots that a snapshot visits while it holds the stream's lock: some tens of microseconds.
const SNAPSHOT_STEP: usize = 512;

/// How long subscribers that begin share a snapshot.
const SHARED_FOR: Duration = Duration::from_secs(2);

impl Stream {
    /// The state at a moment after the call. Batches go on being applied while it is taken; several who ask at the same
    /// time share one.
    pub async fn snapshot(&self) -> Arc<Snapshot> {
        // Only one whose moment is after the question: whoever asks now must not be told how it was.
        self.snapshot_since(self.clock.now().mono).await
    }

    /// A state to begin with, for a subscriber who then follows from its cursor on. One that another subscriber still uses will
    /// do if it is recent and all that came after it is here: many who begin at once, and read slowly, share one.
    pub async fn snapshot_to_follow(&self) -> Arc<Snapshot> {
        self.snapshot_since(self.clock.now().mono.saturating_sub(SHARED_FOR)).await
    }

    /// The last snapshot if it was begun by then or later, else a new one.
    async fn snapshot_since(&self, since: Duration) -> Arc<Snapshot> {
        let mut shared = self.snapshot.lock().await;
        let (begun, last) = &*shared;
        if *begun >= since
            && let Some(snapshot) = last.upgrade()
            && self.window.read_after(snapshot.cursor, 0).is_ok()
        {
            return snapshot;
        }
        let begun = self.clock.now().mono;
        let snapshot = Arc::new(self.take_snapshot().await);
        *shared = (begun, Arc::downgrade(&snapshot));
        snapshot
    }

    async fn take_snapshot(&self) -> Snapshot {
        let mut taking = self.begin_snapshot();
        loop {
            if let Some(snapshot) = taking.step() {
                return snapshot;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn begin_snapshot(&self) -> Taking<'_> {
        let builder = self.inner.lock().recorder.journal_mut().begin_snapshot();
        Taking { stream: self, builder: Some(builder) }
    }
}

/// A snapshot being taken. Whoever asked may go away at any moment: then the journal must not go on saving for it.
pub(super) struct Taking<'s> {
    stream: &'s Stream,
    builder: Option<SnapshotBuilder>,
}

impl Taking<'_> {
    /// One step, with the lock given away fairly after it: the source must get its turn between two steps.
    pub(super) fn step(&mut self) -> Option<Snapshot> {
        let builder = self.builder.as_mut()?;
        let mut inner = self.stream.inner.lock();
        if inner.recorder.journal_mut().step_snapshot(builder, SNAPSHOT_STEP).is_err() {
            // The state was emptied meanwhile; the next picture is a small one.
            *builder = inner.recorder.journal_mut().begin_snapshot();
        }
        MutexGuard::unlock_fair(inner);
        if builder.gather() { self.builder.take().map(SnapshotBuilder::finish) } else { None }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if let Some(builder) = &self.builder {
            self.stream.inner.lock().recorder.journal_mut().abandon_snapshot(builder);
        }
    }
}
