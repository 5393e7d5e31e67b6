//! Which streams of a model changed their view lately.
//!
//! A question must not look at streams that hold nothing of its prompt, and must not miss that one of them
//! moved on while the indexes were read. So every change of a view leaves its seat here. A question reads
//! what it has not seen yet, before the look-up and after it: the cost is that of the changes, whatever the
//! number of streams.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

/// Changes that are kept. A reader that is further behind reads every view again.
const KEPT: usize = 4_096;

/// The latest changes of views.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// How many there have been.
    count: AtomicU64,
    /// Change `n` is at `n % KEPT`.
    seats: Mutex<Vec<u32>>,
}

impl Changes {
    pub(crate) fn push(&self, seat: u32) {
        let mut seats = self.seats.lock();
        let count = self.count.load(Ordering::Relaxed);
        if seats.len() < KEPT {
            seats.push(seat);
        } else {
            seats[count as usize % KEPT] = seat;
        }
        self.count.store(count + 1, Ordering::Release);
    }

    /// How many changes there have been. Whatever was read of an index before this was written before a
    /// change that is counted here, or under views that have not changed.
    pub(crate) fn count(&self) -> u64 {
        fence(Ordering::Acquire);
        self.count.load(Ordering::Acquire)
    }

    /// The seats that changed after the first `from` changes, added to `seats`. Gives the number of changes
    /// up to there; `None` if they are not all kept.
    pub(crate) fn since(&self, from: u64, seats: &mut Vec<u32>) -> Option<u64> {
        let kept = self.seats.lock();
        let count = self.count.load(Ordering::Relaxed);
        if count - from > KEPT as u64 {
            return None;
        }
        seats.extend((from..count).map(|change| kept[change as usize % KEPT]));
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_since_is_reported_until_it_is_overwritten() {
        let changes = Changes::default();
        let since = |from| {
            let mut seats = Vec::new();
            changes.since(from, &mut seats).map(|count| (count, seats))
        };
        assert_eq!(since(0), Some((0, Vec::new())));
        changes.push(7);
        changes.push(3);
        assert_eq!(since(0), Some((2, vec![7, 3])));
        assert_eq!(since(1), Some((2, vec![3])));
        for seat in 0..KEPT as u32 {
            changes.push(seat);
        }
        assert_eq!(since(1), None);
        let (count, seats) = since(2).unwrap();
        assert_eq!((count, seats), (KEPT as u64 + 2, (0..KEPT as u32).collect()));
        assert_eq!(changes.count(), KEPT as u64 + 2);
    }
}
