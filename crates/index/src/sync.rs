//! What readers and writers share: the standard atomics and the usual lock, or loom's when it explores
//! interleavings.

#[cfg(not(loom))]
mod real {
    use parking_lot::MutexGuard;

    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

    /// Lets go of a lock, in favour of a waiter.
    pub(crate) fn hand_over<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }
}

#[cfg(loom)]
mod explored {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
    use loom::sync::{Mutex as Lock, MutexGuard};

    /// loom's lock, called as the usual one is.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(Lock<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Lock::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    pub(crate) fn hand_over<T>(guard: MutexGuard<'_, T>) {
        drop(guard);
    }
}

#[cfg(loom)]
pub(crate) use explored::*;
#[cfg(not(loom))]
pub(crate) use real::*;
