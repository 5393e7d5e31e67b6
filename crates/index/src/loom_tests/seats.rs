//! Seats: what a reader can reach is not used again while it sits.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::explore;
use crate::epoch::{Epochs, Seat};
use crate::sync::{AtomicU64, Ordering};

/// Two things, of which a word names one. The cells know who looked and who wrote, and whether that was in
/// order.
struct Things {
    current: AtomicU64,
    things: [UnsafeCell<u64>; 2],
}

// SAFETY: the word and the seats say who may touch what; that is what is tested, and the cells panic if it is
// wrong.
unsafe impl Sync for Things {}

impl Things {
    fn new() -> Arc<Self> {
        Arc::new(Self { current: AtomicU64::new(0), things: [UnsafeCell::new(10), UnsafeCell::new(11)] })
    }

    /// What a question does.
    fn look(&self, epochs: &Epochs, seat: &Seat) {
        epochs.enter(seat);
        let at = self.current.load(Ordering::Acquire);
        // SAFETY: this reader sits.
        self.things[at as usize].with(|thing| assert_eq!(unsafe { *thing }, 10 + at));
        seat.exit();
    }

    /// The second thing takes the first one's place. Says the tag under which the first was unlinked.
    fn unlink_first(&self, epochs: &Epochs) -> u64 {
        self.current.store(1, Ordering::Release);
        epochs.tag()
    }

    fn destroy_first(&self) {
        // SAFETY: nobody can see it, if the seats are right.
        self.things[0].with_mut(|thing| unsafe { *thing = 0 });
    }
}

#[test]
fn nobody_looks_at_what_was_freed() {
    explore(4, || {
        let epochs = Arc::new(Epochs::new());
        let things = Things::new();
        let seat = epochs.join();
        let reader = {
            let (epochs, things) = (epochs.clone(), things.clone());
            thread::spawn(move || {
                // The second question comes without that the writer need have seen the first one end.
                things.look(&epochs, &seat);
                things.look(&epochs, &seat);
                epochs.leave(&seat);
            })
        };
        let tag = things.unlink_first(&epochs);
        epochs.advance();
        if tag < epochs.horizon() {
            things.destroy_first();
        }
        reader.join().unwrap();
        assert!(tag < epochs.horizon(), "nobody sits any more");
    });
}

#[test]
fn a_reader_that_comes_while_the_writer_looks_around() {
    explore(4, || {
        let epochs = Arc::new(Epochs::new());
        let things = Things::new();
        let reader = {
            let (epochs, things) = (epochs.clone(), things.clone());
            thread::spawn(move || {
                let seat = epochs.join();
                things.look(&epochs, &seat);
                epochs.leave(&seat);
            })
        };
        let tag = things.unlink_first(&epochs);
        epochs.advance();
        if tag < epochs.horizon() {
            things.destroy_first();
        }
        reader.join().unwrap();
    });
}

#[test]
fn two_readers_come_and_go_at_different_times() {
    explore(2, || {
        let epochs = Arc::new(Epochs::new());
        let things = Things::new();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (epochs, things, seat) = (epochs.clone(), things.clone(), epochs.join());
                thread::spawn(move || things.look(&epochs, &seat))
            })
            .collect();
        let tag = things.unlink_first(&epochs);
        for _ in 0..2 {
            epochs.advance();
            if tag < epochs.horizon() {
                things.destroy_first();
                break;
            }
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
