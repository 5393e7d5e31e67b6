//! mimalloc, with a count of the bytes that are in use: what was asked for, without the allocator's own overhead.

#![allow(unsafe_code)] // An allocator cannot be written without it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

/// Counters. Each thread has its own, so that counting costs an addition in memory that nobody else writes: subjects
/// that allocate much must not look slower than they are. Later threads share the last one.
const COUNTERS: usize = 256;

/// On a line of its own, and on its neighbour that is fetched with it.
#[repr(align(128))]
struct Counter(AtomicIsize);

static BYTES: [Counter; COUNTERS] = [const { Counter(AtomicIsize::new(0)) }; COUNTERS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNTER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Bytes that are in use now.
pub(crate) fn bytes_in_use() -> isize {
    BYTES.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
}

fn count(bytes: isize) {
    let number = COUNTER.with(|counter| {
        if counter.get() == usize::MAX {
            counter.set(THREADS.fetch_add(1, Ordering::Relaxed).min(COUNTERS - 1));
        }
        counter.get()
    });
    let counter = &BYTES[number].0;
    if number == COUNTERS - 1 {
        counter.fetch_add(bytes, Ordering::Relaxed);
    } else {
        counter.store(counter.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on as it is to mimalloc, which keeps the contract. Counting neither allocates
// nor panics: the thread's counter is a plain number without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's contract is the same.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's contract is the same.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's contract is the same.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's contract is the same.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_may_free_what_one_allocated() {
        let before = bytes_in_use();
        let large = vec![0u8; 64 << 20];
        assert!(bytes_in_use() - before >= 64 << 20);
        std::thread::spawn(move || drop(large)).join().unwrap();
        assert!(bytes_in_use() - before < 32 << 20);
    }
}
