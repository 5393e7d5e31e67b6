//! The index against the naive model, under any order of announcements.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod history;

use std::ops::Range;

use proptest::prelude::*;

use history::{Both, Step, cases, step};

/// More streams than an extent has entries.
const MANY: usize = if cfg!(miri) { 12 } else { 40 };
/// Histories are shorter under miri, and compared with the model less often: asking is what takes long.
const FEW_STEPS: Range<usize> = if cfg!(miri) { 10..20 } else { 1..60 };
const MANY_STEPS: Range<usize> = if cfg!(miri) { 30..40 } else { 100..250 };
const BATCHES: Range<usize> = if cfg!(miri) { 2..4 } else { 1..12 };
const CHECK_EVERY: usize = if cfg!(miri) { 10 } else { 1 };

fn run(streams: usize, steps: &[Step]) {
    let mut both = Both::new(streams);
    for (number, step) in steps.iter().enumerate() {
        both.apply(step);
        if (number + 1).is_multiple_of(CHECK_EVERY) {
            both.check();
            both.check_sides(number);
        }
    }
    finish(both);
}

/// Everybody goes, and nothing is left.
fn finish(mut both: Both) {
    for (slot, _) in std::mem::take(&mut both.slots) {
        both.index.remove_stream(slot);
    }
    while both.index.reclaim(1000) {}
    let stats = both.index.stats();
    assert_eq!((stats.blocks, stats.unreclaimed, stats.mark_bytes), (0, 0, 0));
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_few_streams(steps in proptest::collection::vec(step(3), FEW_STEPS)) {
        run(3, &steps);
    }

    /// Each batch is one stream's, under one lock.
    #[test]
    fn in_batches(batches in proptest::collection::vec((0..3_usize, proptest::collection::vec(step(3), 1..12)), BATCHES)) {
        let mut both = Both::new(3);
        for (number, (stream, steps)) in batches.iter().enumerate() {
            both.apply_batch(*stream, steps);
            both.check();
            both.check_sides(number);
        }
        finish(both);
    }

    /// With crowds and splits.
    #[test]
    fn many_streams(steps in proptest::collection::vec(step(MANY), MANY_STEPS)) {
        run(MANY, &steps);
    }
}
