//! How many blocks were withheld, and why.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sink::Withheld;

/// Blocks by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tally([u64; Withheld::ALL.len()]);

impl Tally {
    pub(super) fn add(&mut self, reason: Withheld, blocks: usize) {
        self.0[reason as usize] += blocks as u64;
    }
}

/// Counts blocks that were stored, or found to be held, and withheld. Shared by all feeds of one purpose.
#[derive(Debug, Default)]
pub struct WithheldCounts([AtomicU64; Withheld::ALL.len()]);

impl WithheldCounts {
    /// How many for a reason.
    pub fn get(&self, reason: Withheld) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, tally: &Tally) {
        for (count, more) in self.0.iter().zip(tally.0).filter(|&(_, more)| more > 0) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}
