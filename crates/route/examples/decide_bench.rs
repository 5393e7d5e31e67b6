//! What a decision costs by itself: outline, bookings, guards, costs and order, without the look-up and
//! without a server.
//!
//! ```text
//! cargo run --release -p kvplane-route --example decide_bench [PICKS]
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::time::Instant;

use kvplane_core::{Namespace, Trust};
use kvplane_route::{Ask, Candidate, Load, Options, Outline, Policy, Role, Router, Slot, Standing};

/// Different prompts of 512 blocks of 16 tokens.
const PROMPTS: u32 = 64;
const TOKENS: u32 = 8_192;
/// Bookings that are there at any time.
const IN_FLIGHT: usize = 2_048;
const ROUNDS: usize = 7;

fn main() {
    let picks: usize = std::env::args().nth(1).map_or(20_000, |word| word.parse().expect("a number"));
    println!(
        "us per decision for prompts of {TOKENS} tokens, {IN_FLIGHT} bookings, median (least-most) of {ROUNDS} rounds of {picks}"
    );
    println!("{:>8} {:>10} {:>20} {:>20}", "ranks", "holders", "decision", "with its booking");
    for (ranks, holders) in [(8, 8), (64, 8), (64, 64), (512, 8), (512, 512)] {
        let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| round(ranks, holders, picks)).collect();
        let dry = spread(rounds.iter().map(|round| round.0).collect());
        let booked = spread(rounds.iter().map(|round| round.1).collect());
        println!("{ranks:>8} {holders:>10} {dry:>20} {booked:>20}");
    }
}

fn round(ranks: u32, holders: u32, picks: usize) -> (f64, f64) {
    let mut router = Router::new(Options::default());
    for at in 0..ranks {
        let slot = router.worker(&format!("engine-{at}/0")).unwrap();
        router.report_load(slot, Load { running: at % 7, waiting: at % 3, ..Load::default() }, 0.0, 1e9);
    }
    let outlines: Vec<Outline> = (0..PROMPTS)
        .map(|prompt| {
            let ids: Vec<u32> = (0..TOKENS).map(|at| at.wrapping_mul(31) ^ prompt << 20).collect();
            Outline::of_tokens(&ids, Namespace::PLAIN)
        })
        .collect();
    let fleets: Vec<Vec<Candidate>> = (0..PROMPTS)
        .map(|prompt| {
            let held =
                |at: u32| if (at + prompt) % ranks < holders { u64::from(TOKENS / (at % 8 + 1)) } else { 0 };
            (0..ranks).map(|at| candidate(at, held(at))).collect()
        })
        .collect();
    let mut booked = std::collections::VecDeque::new();
    let mut pick = |at: usize, book: bool| {
        let outline = &outlines[at % outlines.len()];
        let ask = Ask {
            about: 0,
            prompt: outline.tokens(),
            outline,
            session: None,
            role: Role::Both,
            output: 100,
            limit: 3,
            book,
            policy: Some(Policy::Work),
            exclude: &[],
        };
        let decision = router.pick(&ask, &fleets[at % fleets.len()], at as f64 * 1e-4);
        if let Some(id) = decision.booking {
            booked.push_back(id);
            if booked.len() > IN_FLIGHT {
                router.finish(booked.pop_front().unwrap());
            }
        }
        assert_eq!(decision.order.len(), 3);
    };
    (0..2 * IN_FLIGHT).for_each(|at| pick(at, true));
    let mut timed = |book| {
        let start = Instant::now();
        (0..picks).for_each(|at| pick(at, book));
        start.elapsed().as_secs_f64() * 1e6 / picks as f64
    };
    (timed(false), timed(true))
}

fn candidate(worker: u32, cached: u64) -> Candidate {
    Candidate {
        worker: Slot(worker),
        cached,
        tiers: [cached; 3],
        main: cached,
        trust: Trust::Exact,
        standing: Standing::Credited,
        age: Some(0.0),
        ready: true,
        role: Role::Both,
    }
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1}-{:.1})", values[values.len() / 2], values[0], values[values.len() - 1])
}
