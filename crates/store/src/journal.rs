//! What streams append to.
//!
//! Appending puts steps into a queue and wakes a thread: it never waits for a disk. The thread hands them to
//! the operating system, together with all that came meanwhile, and then says so ([`Written`]): from there on
//! they outlive the process, and subscribers may be sent what they say. Another thread syncs.
//!
//! Whatever fails ends the journal ([`Off`]), and not hearing: the files are removed, since streams go on
//! without them, and a process that starts with old ones would give out numbers twice.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_stream::Record;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::log::Name;

/// When what was handed to the operating system is made to outlive the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Before anybody hears of it.
    Always,
    /// So often.
    Every(Duration),
    /// When the operating system thinks fit.
    Off,
}

/// The rules of a journal.
#[derive(Debug, Clone)]
pub struct Options {
    /// When it is synced.
    pub sync: Sync,
    /// The most bytes of all files.
    pub max_disk: u64,
    /// Old segments are made into saved memories from this many bytes on, or twice what is saved if that is more.
    pub compact_from: u64,
    /// A segment that is larger is followed by another.
    pub segment: u64,
    /// The most bytes that wait to be written.
    pub max_queue: usize,
    /// A disk that takes longer for a single write is given up.
    pub max_stall: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Every(Duration::from_millis(100)),
            max_disk: 20 << 30,
            // Replaying this many steps takes about a second.
            compact_from: 256 << 20,
            segment: 64 << 20,
            // Twice the largest batch that is heard.
            max_queue: 128 << 20,
            // Longer than a busy disk takes, and shorter than subscribers wait.
            max_stall: Duration::from_secs(5),
        }
    }
}

/// Why a journal is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Off {
    /// The disk is full.
    Full,
    /// The files would take more than they may.
    Limit,
    /// The disk failed.
    Failed,
    /// The disk is too slow for what is heard.
    Slow,
    /// What was read back did not lead where it led before.
    Damaged,
}

impl Off {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Full, Self::Limit, Self::Failed, Self::Slow, Self::Damaged];

    /// The name in status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Limit => "limit",
            Self::Failed => "failed",
            Self::Slow => "slow",
            Self::Damaged => "damaged",
        }
    }

    /// What an error of the disk means.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Failed,
        }
    }
}

/// Waiters for steps to be written.
pub trait Written: Debug + Send + std::marker::Sync {
    /// All steps up to this entry are with the operating system.
    fn written(&self, sequence: u64);
    /// The journal is off: nothing is to be waited for any more.
    fn off(&self);
}

/// What a journal counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Steps written.
    pub steps: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Bytes of all files.
    pub bytes: AtomicU64,
    /// Files.
    pub segments: AtomicU64,
    /// Bytes that wait to be written.
    pub queued_bytes: AtomicU64,
    /// Old segments made into saved memories, times.
    pub compactions: AtomicU64,
}

/// What a journal looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Why it is off, if it is.
    pub off: Option<Off>,
    /// Steps written.
    pub steps: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files.
    pub segments: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Old segments made into saved memories, times.
    pub compactions: u64,
}

/// What waits to be written.
#[derive(Debug)]
pub(crate) enum Item {
    Declare {
        id: u32,
        name: Name,
        next: u64,
    },
    Steps {
        id: u32,
        first: u64,
        records: Vec<Record>,
        sequence: u64,
        to: Arc<dyn Written>,
    },
    Saved {
        id: u32,
        number: u64,
        bytes: Vec<u8>,
    },
    /// All that was saved before replaces the segments before this one.
    Drop {
        before: u64,
    },
    Gone {
        id: u32,
        number: u64,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) items: Vec<Item>,
    pub(crate) bytes: usize,
    pub(crate) closing: bool,
    /// The writer is done.
    pub(crate) closed: bool,
    /// Streams that wait for their writes, to be notified when the journal is switched off.
    pub(crate) streams: Vec<std::sync::Weak<dyn Written>>,
    next_id: u32,
}

/// The journal of a plane.
#[derive(Debug)]
pub struct Journal {
    pub(crate) options: Options,
    pub(crate) queue: Mutex<Queue>,
    /// The writer has something to do.
    pub(crate) wake: Condvar,
    /// The writer is done, or has nothing to do any more.
    pub(crate) ended: Condvar,
    off: Mutex<Option<Off>>,
    /// Since when the disk has had what it was given last.
    writing: Mutex<Option<Instant>>,
    pub(crate) counters: Counters,
}

impl Journal {
    pub(crate) fn new(options: Options, next_id: u32) -> Self {
        let queue = Queue { next_id, ..Queue::default() };
        Self {
            options,
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            ended: Condvar::new(),
            off: Mutex::new(None),
            writing: Mutex::new(None),
            counters: Counters::default(),
        }
    }

    /// Begins with a stream, or goes on with one that was recovered: `id` and the number of its next step.
    pub fn stream(
        self: &Arc<Self>,
        name: Name,
        recovered: Option<(u32, u64)>,
        to: Arc<dyn Written>,
    ) -> StreamJournal {
        let mut queue = self.queue.lock();
        let (id, next) = recovered.unwrap_or_else(|| {
            queue.next_id += 1;
            (queue.next_id, 1)
        });
        queue.items.push(Item::Declare { id, name, next });
        queue.streams.retain(|stream| stream.strong_count() > 0);
        queue.streams.push(Arc::downgrade(&to));
        drop(queue);
        self.wake.notify_one();
        if self.off().is_some() {
            to.off();
        }
        StreamJournal { journal: self.clone(), id, next, to }
    }

    /// Why it is off, if it is.
    pub fn off(&self) -> Option<Off> {
        *self.off.lock()
    }

    /// Ends the journal: what waits is forgotten, and nobody waits any more.
    pub(crate) fn turn_off(&self, off: Off) {
        {
            let mut is_off = self.off.lock();
            if is_off.is_some() {
                return;
            }
            *is_off = Some(off);
        }
        let streams = {
            let mut queue = self.queue.lock();
            queue.items.clear();
            queue.bytes = 0;
            std::mem::take(&mut queue.streams)
        };
        self.counters.queued_bytes.store(0, Ordering::Relaxed);
        self.wake.notify_one();
        self.ended.notify_all();
        streams.iter().filter_map(std::sync::Weak::upgrade).for_each(|stream| stream.off());
    }

    pub(crate) fn push(&self, item: Item, bytes: usize) {
        let mut queue = self.queue.lock();
        let was_idle = queue.items.is_empty();
        queue.items.push(item);
        queue.bytes += bytes;
        let bytes = queue.bytes;
        drop(queue);
        self.counters.queued_bytes.store(bytes as u64, Ordering::Relaxed);
        if was_idle {
            self.wake.notify_one();
        }
        if bytes > self.options.max_queue {
            self.turn_off(Off::Slow);
        }
    }

    /// A stream that was recovered is not gone on with.
    pub fn forget(&self, (id, next): (u32, u64)) {
        if self.off().is_none() {
            self.push(Item::Gone { id, number: next - 1 }, 0);
        }
    }

    /// Gives up a disk that hangs: nobody is kept waiting for what it has. To be called now and then.
    pub fn check_stall(&self) {
        let writing = *self.writing.lock();
        if writing.is_some_and(|since| kvplane_runtime::now() >= since + self.options.max_stall) {
            self.turn_off(Off::Slow);
        }
    }

    /// Something is given to the disk, which may keep it for long.
    pub(crate) fn give<T>(&self, to_disk: impl FnOnce() -> T) -> T {
        *self.writing.lock() = Some(kvplane_runtime::now());
        let result = to_disk();
        *self.writing.lock() = None;
        result
    }

    /// Writes and syncs what waits, and ends. A disk that hangs is not waited for: what it was not given is lost, as
    /// with a process that is killed.
    pub fn close(&self) {
        let until = kvplane_runtime::now() + 2 * self.options.max_stall;
        let mut queue = self.queue.lock();
        queue.closing = true;
        self.wake.notify_one();
        while !queue.closed {
            if self.ended.wait_until(&mut queue, until).timed_out() {
                let waited = 2 * self.options.max_stall;
                warn!(waited = ?waited, bytes = queue.bytes, "the disk hangs; journal not closed cleanly");
                return;
            }
        }
    }

    /// What it looks like.
    pub fn status(&self) -> Status {
        let Counters { steps, written_bytes, bytes, segments, queued_bytes, compactions } = &self.counters;
        Status {
            off: self.off(),
            steps: steps.load(Ordering::Relaxed),
            written_bytes: written_bytes.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
            segments: segments.load(Ordering::Relaxed),
            queued_bytes: queued_bytes.load(Ordering::Relaxed),
            compactions: compactions.load(Ordering::Relaxed),
        }
    }
}

/// What one stream appends to. Calls come in the order of its steps.
#[derive(Debug)]
pub struct StreamJournal {
    journal: Arc<Journal>,
    id: u32,
    next: u64,
    to: Arc<dyn Written>,
}

impl StreamJournal {
    /// Appends steps, the last of which led to this entry. False once the journal is off.
    pub fn append(&mut self, records: Vec<Record>, sequence: u64) -> bool {
        if self.journal.off().is_some() {
            return false;
        }
        if !records.is_empty() {
            let bytes = records.iter().map(Record::size).sum();
            let first = self.next;
            self.next += records.len() as u64;
            let item = Item::Steps { id: self.id, first, records, sequence, to: self.to.clone() };
            self.journal.push(item, bytes);
        }
        true
    }

    /// The stream was removed.
    pub fn remove(self) {
        if self.journal.off().is_none() {
            self.journal.push(Item::Gone { id: self.id, number: self.next - 1 }, 0);
        }
    }
}
