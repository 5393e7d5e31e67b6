//! When may memory be used again that a reader might still look at?
//!
//! A reader says in its own seat when it came; nobody else writes there. The writer tags what it unlinks with
//! the current epoch and then begins a new one. What has a tag below the oldest seated reader's epoch cannot
//! be seen by anybody.

use std::sync::Arc;

use crate::sync::{AtomicU64, Mutex, Ordering, fence};

/// Nobody sits here.
const EMPTY: u64 = u64::MAX;

/// A reader's seat: alone in its cache lines, so that readers do not disturb each other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Seat {
    since: AtomicU64,
}

/// The seats, and the time they are measured in.
#[derive(Debug)]
pub(crate) struct Epochs {
    now: AtomicU64,
    seats: Mutex<Vec<Arc<Seat>>>,
}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { now: AtomicU64::new(1), seats: Mutex::new(Vec::new()) }
    }

    /// A seat for a new reader.
    pub(crate) fn join(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat { since: AtomicU64::new(EMPTY) });
        self.seats.lock().push(seat.clone());
        seat
    }

    /// A reader goes for good.
    pub(crate) fn leave(&self, seat: &Arc<Seat>) {
        self.seats.lock().retain(|other| !Arc::ptr_eq(other, seat));
    }

    /// The reader sits down. From here on nothing it can reach is used again, until it stands up.
    pub(crate) fn enter(&self, seat: &Seat) {
        seat.since.store(self.now.load(Ordering::Acquire), Ordering::Release);
        // Either the writer, after unlinking, sees this seat taken, or this reader sees what was unlinked as
        // gone.
        fence(Ordering::SeqCst);
    }

    /// The writer has unlinked something: its tag.
    pub(crate) fn tag(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Begins a new epoch: who comes from now on cannot see what was unlinked before.
    pub(crate) fn advance(&self) {
        self.now.store(self.now.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Everything with a lower tag is out of every reader's sight.
    pub(crate) fn horizon(&self) -> u64 {
        fence(Ordering::SeqCst);
        let seats = self.seats.lock();
        let oldest = seats.iter().map(|seat| seat.since.load(Ordering::Acquire)).min();
        oldest.unwrap_or(EMPTY).min(self.now.load(Ordering::Relaxed))
    }
}

impl Seat {
    /// The reader stands up.
    pub(crate) fn exit(&self) {
        self.since.store(EMPTY, Ordering::Release);
    }
}
