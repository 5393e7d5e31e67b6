//! Epochs, sequence numbers and cursors.
//!
//! A stream numbers its batches and its residency transitions itself, from `epoch << 20`. An epoch is
//! unix milliseconds, so the numbers of one epoch would reach those of a later one only by publishing
//! more than 2^20 batches per millisecond of its life; minting takes care of the rest. A cursor of
//! another epoch is therefore never inside a window by accident.
//!
//! ```text
//!   63   61                                   20                0
//!   | 0  |  epoch: unix ms, strictly rising    |  n, may carry   |
//! ```

use std::fmt;

/// How far an epoch is shifted to become the base of its numbers.
const EPOCH_SHIFT: u32 = 20;

/// One lifetime of a stream's publisher, minted by kvplane: unix milliseconds, strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// Of a stream of which no life is known yet. Nothing that is minted equals it.
    pub const UNKNOWN: Epoch = Epoch(0);

    /// Takes a number that was minted before (from a client's cursor).
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The first epoch of a stream, or the next one after `previous`, whose numbers reached `highest`.
    pub fn mint(unix_ms: u64, previous: Option<Epoch>, highest: u64) -> Self {
        let after_previous = previous.map_or(0, |epoch| epoch.0 + 1);
        let after_numbers = if previous.is_some() { (highest >> EPOCH_SHIFT) + 1 } else { 0 };
        Self(unix_ms.max(after_previous).max(after_numbers))
    }

    /// The epoch as a plain number.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Where this epoch's numbers begin.
    pub fn base(self) -> NumberBase {
        NumberBase(self.0 << EPOCH_SHIFT)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number before the first batch (or transition) of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberBase(u64);

impl NumberBase {
    /// The base itself: the cursor of someone who has seen nothing of the epoch.
    pub fn start(self) -> u64 {
        self.0
    }

    /// The number of the `n`th item, counted from 1.
    pub fn nth(self, n: u64) -> u64 {
        self.0 + n
    }
}

/// Where a subscriber stands: the last batch it has applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The epoch in which it was applied.
    pub epoch: Epoch,
    /// The batch's number.
    pub sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_epoch_is_above_every_number_of_the_old_one() {
        let first = Epoch::mint(1_000, None, 0);
        assert_eq!(first.as_u64(), 1_000);
        // The clock stood still, and the old epoch carried past its own 20 bits.
        let highest = first.base().nth(5 << EPOCH_SHIFT);
        let second = Epoch::mint(1_000, Some(first), highest);
        assert!(second.base().start() > highest);
        // The clock went back.
        let third = Epoch::mint(1, Some(second), second.base().nth(3));
        assert!(third > second);
    }
}
