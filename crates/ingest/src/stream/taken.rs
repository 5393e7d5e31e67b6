//! Snapshots of a stream, taken step by step while it goes on.

use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use kvplane_stream::{Snapshot, SnapshotBuilder};
use parking_lot::MutexGuard;

use super::Stream;

/// Slots that a snapshot visits while it holds the stream's lock: some tens of microseconds.
const SNAPSHOT_STEP: usize = 512;

/// How long subscribers that begin share a snapshot.
const SHARED_FOR: Duration = Duration::from_secs(2);

impl Stream {
    /// The state at a moment after the call. Batches go on being applied while it is taken; several who ask
    /// at the same time share one.
    pub async fn snapshot(&self) -> Arc<Snapshot> {
        // Only one whose moment is after the question: a caller that asks now must not get an older state.
        self.snapshot_since(self.clock.now().mono).await
    }

    /// A state to begin with, for a subscriber who then follows from its cursor on. One that another
    /// subscriber still uses will do if it is recent and all that came after it is here: many who begin at
    /// once, and read slowly, share one.
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
        let snapshot = loop {
            if let Some(snapshot) = taking.step() {
                break snapshot;
            }
            tokio::task::yield_now().await;
        };
        self.reported(snapshot.cursor).await;
        snapshot
    }

    /// The state at a moment after the call, taken by the calling thread: not for a task of a runtime, since
    /// it waits for one that is being taken already. Batches go on being applied meanwhile.
    pub fn snapshot_here(&self) -> Snapshot {
        let _turn = wait_for(self.snapshot.lock());
        let mut taking = self.begin_snapshot();
        let snapshot = loop {
            if let Some(snapshot) = taking.step() {
                break snapshot;
            }
        };
        wait_for(self.reported(snapshot.cursor));
        snapshot
    }

    fn begin_snapshot(&self) -> Taking<'_> {
        let builder = self.inner.lock().recorder.ledger_mut().begin_snapshot();
        Taking { stream: self, builder: Some(builder) }
    }
}

/// A snapshot being taken. The caller may go away at any moment: then the journal must not go on saving for
/// it.
struct Taking<'s> {
    stream: &'s Stream,
    builder: Option<SnapshotBuilder>,
}

impl Taking<'_> {
    /// One step, with the lock given away fairly after it: the source must get its turn between two steps.
    fn step(&mut self) -> Option<Snapshot> {
        let builder = self.builder.as_mut()?;
        let mut inner = self.stream.inner.lock();
        if inner.recorder.ledger_mut().step_snapshot(builder, SNAPSHOT_STEP).is_err() {
            // The state was emptied meanwhile; the next picture is a small one.
            *builder = inner.recorder.ledger_mut().begin_snapshot();
        }
        MutexGuard::unlock_fair(inner);
        if builder.gather() { self.builder.take().map(SnapshotBuilder::finish) } else { None }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if let Some(builder) = &self.builder {
            self.stream.inner.lock().recorder.ledger_mut().abandon_snapshot(builder);
        }
    }
}

/// Lets the calling thread sleep until a future is ready. Unlike a runtime's, it may be called anywhere.
fn wait_for<F: Future>(future: F) -> F::Output {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Sleeper(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use kvplane_core::StreamId;
    use kvplane_stream::{HandedOptions, JournalOptions};
    use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

    use super::*;

    /// More blocks than one step visits.
    fn stream() -> Stream {
        let blocks = 4 * SNAPSHOT_STEP as u32;
        let stream = Stream::handed_over(
            StreamId { engine: kvplane_core::EngineId::new("e"), rank: 0 },
            HandedOptions::default(),
            JournalOptions::default(),
        );
        let stored = OwnedStored {
            block_hashes: (1..=blocks).map(|hash| OwnedHash::Unsigned(hash.into())).collect(),
            token_ids: (0..blocks).collect(),
            block_size: 1,
            ..OwnedStored::default()
        };
        stream.hand_events(None, &[OwnedEvent::Stored(stored)]).unwrap();
        stream
    }

    #[test]
    fn a_thread_that_takes_one_does_not_end_that_of_a_task() {
        let stream = Arc::new(stream());
        let mut task = std::pin::pin!(stream.snapshot());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending(), "one step is not enough");
        let (taken, here) = mpsc::sync_channel(1);
        let thread = std::thread::spawn({
            let stream = stream.clone();
            move || taken.send(stream.snapshot_here().image.blocks.len())
        });
        // The thread waits for the task, which is half done, for as long as that takes.
        assert!(
            here.recv_timeout(Duration::from_millis(300)).is_err(),
            "the thread ended the task's snapshot"
        );
        let mut steps = 1;
        let snapshot = loop {
            steps += 1;
            if let Poll::Ready(snapshot) = task.as_mut().poll(&mut context) {
                break snapshot;
            }
        };
        assert!(steps <= 8, "the task began again: {steps}");
        let blocks = 4 * SNAPSHOT_STEP;
        assert_eq!(snapshot.image.blocks.len(), blocks);
        assert_eq!(here.recv_timeout(Duration::from_mins(1)), Ok(blocks));
        thread.join().unwrap().unwrap();
    }
}
