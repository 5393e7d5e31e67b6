//! Emptying the processor's caches.
//!
//! Between two requests of one conversation, a router's index sees everything else that goes on. Lookups that
//! find their memory in the processor's caches are the exception there.

use std::hint::black_box;

/// Memory to read so that everything else leaves the processor's caches.
pub(crate) struct Broom(Vec<u64>);

impl Default for Broom {
    /// Twice as much as the largest of those caches that are common.
    fn default() -> Self {
        Self(vec![1; (64 << 20) / size_of::<u64>()])
    }
}

impl Broom {
    /// Writes too: what was only read goes first from some caches.
    pub(crate) fn sweep(&mut self) {
        for number in &mut self.0 {
            *number = number.wrapping_mul(3);
        }
        black_box(&self.0);
    }
}
