//! What a request's account costs beside its decision: the ceiling, a receipt that is opened, and one that is settled.
//!
//! ```text
//! cargo run --release -p kvplane-receipts --example ledger_bench [REQUESTS]
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::time::Instant;

use kvplane_core::Trust;
use kvplane_receipts::{CandidateNote, Decided, Delivered, History, Ledger, Replay};

/// Blocks of a prompt, and prefixes that are remembered of it.
const BLOCKS: u64 = 512;
const PREFIXES: u64 = 48;
const ROUNDS: usize = 7;

fn main() {
    let requests: u64 = std::env::args().nth(1).map_or(100_000, |word| word.parse().expect("a number"));
    let mut took: Vec<f64> = (0..ROUNDS).map(|_| round(requests)).collect();
    took.sort_by(f64::total_cmp);
    let [least, middle, most] = [took[0], took[ROUNDS / 2], took[ROUNDS - 1]];
    println!(
        "us per request, prompts of {BLOCKS} blocks, {ROUNDS} rounds of {requests}: {middle:.2} ({least:.2}-{most:.2})"
    );
}

fn round(requests: u64) -> f64 {
    let (mut ledger, mut history) = (Ledger::new(32 << 20), History::new(1 << 20));
    // What is decided is there already: its list of blocks is the only part that is made for the ledger alone.
    let mut contents: Vec<Box<[u64]>> = (0..64).map(|at| (at..at + BLOCKS).collect()).collect();
    let mut seconds = 0.0;
    for request in 0..requests {
        let mut decided = decided();
        decided.contents = contents.pop().unwrap_or_else(|| (request..request + BLOCKS).collect());
        let delivered = Delivered { cached: decided.predicted, ..Delivered::default() };
        let start = Instant::now();
        decided.ceiling = history.meet((0..PREFIXES).map(|at| (at * 170, request % 4_096 * 1_000 + at)));
        let id = ledger.open(decided);
        ledger.settle(id, delivered, &Replay::Expired).unwrap();
        seconds += start.elapsed().as_secs_f64();
    }
    seconds * 1e6 / requests as f64
}

fn decided() -> Decided {
    let note = |at: u32| CandidateNote {
        engine: "engine-12".into(),
        rank: at,
        cached: 8_000,
        in_flight: 0,
        trust: Trust::Exact,
        cost: 0.1,
    };
    Decided {
        at_ms: 0,
        model: "m".into(),
        prompt: 8_192,
        ceiling: 0,
        fleet_main: 8_000,
        fleet: 8_000,
        eligible: 8_000,
        random: 1_000,
        predicted: 8_000,
        in_flight: 0,
        trust: Trust::Exact,
        candidates: (0..3).map(note).collect(),
        why: "cached",
        policy: "work",
        without_tokens: None,
        text: None,
        decide_us: 10,
        epoch: 1,
        sequence: 1,
        block_size: 16,
        contents: Box::default(),
        booking: None,
    }
}
