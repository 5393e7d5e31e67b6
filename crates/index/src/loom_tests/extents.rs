//! Extents: contents that are cut off and replaced, and lanes that change how they say what they hold.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::{explore, extent};
use crate::arena::Arena;
use crate::crowd::Crowd;
use crate::epoch::Epochs;
use crate::extent::{Extent, Holder};

const LANE: u32 = 3;

/// Cells beside the slots of an extent: touched when the slots are, so that loom sees it.
struct Slots([UnsafeCell<()>; 3]);

// SAFETY: that the accesses are in order is what is tested; the cells panic if they are not.
unsafe impl Sync for Slots {}

impl Slots {
    fn new() -> Arc<Self> {
        Arc::new(Self(std::array::from_fn(|_| UnsafeCell::new(()))))
    }

    fn look(&self, upto: usize) {
        self.0[..upto].iter().for_each(|cell| cell.with(|_| ()));
    }

    fn write(&self, from: usize, to: usize) {
        self.0[from..to].iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}

/// The end is cut off, and other contents take its place when nobody can have seen it: a reader compares with
/// the one or the other, whole.
#[test]
fn contents_are_never_mixed() {
    explore(4, || {
        let mut arena = Arena::new();
        let extent = extent(&mut arena, 1, &[1, 2, 3], 3, std::ptr::null_mut());
        let epochs = Arc::new(Epochs::new());
        let slots = Slots::new();
        let seat = epochs.join();
        let reader = {
            let (epochs, slots) = (epochs.clone(), slots.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    epochs.enter(&seat);
                    let contents = extent.contents();
                    slots.look(contents.len());
                    assert!([[1, 2, 3].as_slice(), &[1], &[1, 7, 8]].contains(&contents), "{contents:?}");
                    seat.exit();
                }
            })
        };
        extent.set_len(1);
        let cut = epochs.tag();
        epochs.advance();
        if cut < epochs.horizon() {
            slots.write(1, 3);
            // SAFETY: nobody sits who could have seen the slots, if the seats are right.
            unsafe { extent.write(1, &[7, 8]) };
            extent.set_len(3);
        }
        reader.join().unwrap();
        drop(arena);
    });
}

/// New contents behind the end are seen whole or not at all, without anybody waiting.
#[test]
fn what_is_appended_is_there_when_it_is_seen() {
    explore(4, || {
        let mut arena = Arena::new();
        let extent = extent(&mut arena, 1, &[1], 3, std::ptr::null_mut());
        let slots = Slots::new();
        let reader = {
            let slots = slots.clone();
            thread::spawn(move || {
                let contents = extent.contents();
                slots.look(contents.len());
                assert_eq!(contents, &[1, 2, 3][..contents.len()]);
            })
        };
        for at in 1..3 {
            slots.write(at, at + 1);
            // SAFETY: never in use before.
            unsafe { extent.write(at as u32, &[at as u64 + 1]) };
            extent.set_len(at as u32 + 1);
        }
        reader.join().unwrap();
        drop(arena);
    });
}

/// A lane moves from its entry to the crowd, to an entry again, and goes. The orders are those of
/// `trie::holders`.
fn entry_crowd_entry_gone(extent: &Extent, crowd: &Crowd) {
    // 5 -> 9, which is what the crowd holds.
    extent.set_entry(1, Holder { lane: LANE, cutoff: 9 });
    crowd.add(LANE);
    extent.clear_entry(1);
    // 9 -> 7, in another slot than before.
    extent.set_entry(0, Holder { lane: LANE, cutoff: 7 });
    // 7 -> 0.
    extent.set_entry(0, Holder { lane: LANE, cutoff: 0 });
    crowd.remove(LANE);
    extent.clear_entry(0);
}

#[test]
fn a_lane_says_only_what_was_true_and_in_that_order() {
    explore(3, || {
        let mut arena = Arena::new();
        let crowd = Box::into_raw(Box::new(Crowd::new(9, 1)));
        let extent = extent(&mut arena, 1, &[1; 10], 10, crowd);
        extent.set_entry(0, Holder { lane: 8, cutoff: 1 });
        extent.set_entry(1, Holder { lane: LANE, cutoff: 5 });
        extent.clear_entry(0);
        let reader = thread::spawn(move || {
            let when = |cutoff| [5, 9, 7, 0].iter().position(|true_once| *true_once == cutoff);
            let first = when(extent.cutoff(LANE));
            let second = when(extent.cutoff(LANE));
            assert!(first.is_some() && second >= first, "{first:?} {second:?}");
        });
        // SAFETY: freed below.
        entry_crowd_entry_gone(extent, unsafe { &*crowd });
        reader.join().unwrap();
        // SAFETY: from a box, and every thread has ended.
        drop(unsafe { Box::from_raw(crowd) });
        drop(arena);
    });
}
