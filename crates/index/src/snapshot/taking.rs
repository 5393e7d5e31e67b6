//! Taking a snapshot, a step at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::encode::encode;
use crate::sync::hand_over;
use crate::writer::{Gathering, Progress};
use crate::{Index, Slot};

/// How long a step waits for a mark.
const PATIENCE: Duration = Duration::from_millis(10);

/// Everything that the index knows of one stream, as of one sequence.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The sequence that it is of: what [`Index::mark`] said last before. 0 if the stream never was marked.
    pub sequence: u64,
    /// Blocks that the stream holds, by the engine's hash.
    pub entries: u64,
    /// The bytes, in chunks of at most about 1 MiB, for [`Index::load`].
    pub chunks: Vec<Vec<u8>>,
    /// The longest time that the writer's lock was held for it.
    pub longest_hold: Duration,
}

/// A snapshot that is being taken. Dropping it gives it up.
#[derive(Debug)]
pub struct Taking {
    index: Arc<Index>,
    gathering: Gathering,
    longest_hold: Duration,
}

/// What a step came to.
#[derive(Debug)]
pub enum Step {
    /// There is more to do.
    More,
    /// The snapshot is complete.
    Done(Snapshot),
    /// The stream was removed.
    Gone,
}

impl Index {
    /// Everything that was announced of a stream so far is what the caller knows as this sequence. A snapshot is of a sequence; it is never of a moment
    /// between two.
    pub fn mark(&self, slot: Slot, sequence: u64) {
        let awaited = self.writer.lock().mark(slot, sequence);
        if awaited {
            self.marked.give();
        }
    }

    /// Begins a snapshot of a stream, to be taken in steps; `None` if there is no such stream.
    ///
    /// The snapshot is of the stream's last mark, or of its next one if anything was announced since. If the stream is cleared meanwhile, the
    /// snapshot begins again.
    pub fn begin_snapshot(self: &Arc<Self>, slot: Slot) -> Option<Taking> {
        let gathering = self.writer.lock().gathering(slot)?;
        Some(Taking { index: self.clone(), gathering, longest_hold: Duration::ZERO })
    }

    /// Takes a snapshot of a stream; `None` if there is no such stream, or no more. Takes every step of [`Self::begin_snapshot`], so it waits for a
    /// mark where that does.
    pub fn snapshot(self: &Arc<Self>, slot: Slot) -> Option<Snapshot> {
        let mut taking = self.begin_snapshot(slot)?;
        loop {
            match taking.step() {
                Step::More => {}
                Step::Done(snapshot) => return Some(snapshot),
                Step::Gone => return None,
            }
        }
    }
}

impl Taking {
    /// The lock is let go after about so many blocks, instead of two thousand.
    #[must_use]
    pub fn with_steps_of(mut self, blocks: usize) -> Self {
        self.gathering.set_step(blocks);
        self
    }

    /// Goes on. The writer's lock is held for a small part of a millisecond, and then handed to whoever waits for it. The last step also writes the
    /// snapshot, without the lock; one that waits for a mark takes a few milliseconds at most.
    pub fn step(&mut self) -> Step {
        self.gathering.prepare();
        let mut writer = self.index.writer.lock();
        #[expect(
            clippy::disallowed_methods,
            reason = "a duration of its own; the index depends on no runtime"
        )]
        let since = Instant::now();
        let progress = writer.gather(&mut self.gathering);
        let held = since.elapsed();
        if matches!(progress, Progress::Waits) {
            self.index.marked.wait(writer, PATIENCE);
        } else {
            hand_over(writer);
        }
        self.longest_hold = self.longest_hold.max(held);
        match progress {
            Progress::Gone => return Step::Gone,
            Progress::Lost => self.gathering.restart(),
            Progress::Begun(pages) => self.gathering.make_room(pages),
            Progress::Waits | Progress::More => {}
            Progress::Finished(cut) => {
                let (sequence, entries) = (cut.sequence.unwrap_or(0), cut.entries as u64);
                drop(cut);
                let picture = std::mem::take(&mut self.gathering.picture);
                let chunks = encode(picture, sequence, entries);
                return Step::Done(Snapshot { sequence, entries, chunks, longest_hold: self.longest_hold });
            }
        }
        Step::More
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.index.writer.lock().give_up(&self.gathering);
    }
}
