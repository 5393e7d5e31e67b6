//! The index against the naive model, under any order of announcements.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod history;

use proptest::prelude::*;

use history::{Both, Step, cases, step};

fn run(streams: usize, steps: &[Step]) {
    let mut both = Both::new(streams);
    for (number, step) in steps.iter().enumerate() {
        both.apply(step);
        both.check();
        both.check_sides(number);
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
    fn a_few_streams(steps in proptest::collection::vec(step(3), 1..60)) {
        run(3, &steps);
    }

    /// Each batch is one stream's, under one lock.
    #[test]
    fn in_batches(batches in proptest::collection::vec((0..3_usize, proptest::collection::vec(step(3), 1..12)), 1..12)) {
        let mut both = Both::new(3);
        for (number, (stream, steps)) in batches.iter().enumerate() {
            both.apply_batch(*stream, steps);
            both.check();
            both.check_sides(number);
        }
        finish(both);
    }

    /// More streams than an extent has entries: crowds and splits.
    #[test]
    fn many_streams(steps in proptest::collection::vec(step(40), 100..250)) {
        run(40, &steps);
    }
}
