//! A flush of a thousand engines of which some are dead: how long it takes, how many are asked at a time, and
//! what it costs.
//!
//! ```text
//! fleet_flush_bench KVPLANE_BINARY [ENGINES]
//! ```
//!
//! `kvplane serve` is a process of its own, the engines are in this one. Every engine that lives must be
//! proven, every dead one must not, and nobody may be asked twice.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

mod engines;
mod plane;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engines::{Fleet, Role};
use plane::Served;

/// How long one engine may take.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long a stream may take to show the flush. An engine that never answers may have done it all the same:
/// its stream is watched for as long, after the deadline.
const PROOF: Duration = Duration::from_secs(1);
/// What a flush may take beside the deadlines of dead engines.
const ROOM: Duration = Duration::from_secs(2);
/// Most engines that are asked at a time.
const IN_FLIGHT: usize = 32;
/// Flushes after each other, for what they leave behind.
const REPEATED: usize = 100;
/// Batches of a stream after which nothing grows with their number any more: that is how many digests are remembered.
const FULL: usize = 1100;
/// How much more memory may be in use after the last of them than after the tenth, in MiB: as good as none.
const LEFT: f64 = 10.0;

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let binary = words.next().expect("the path of a kvplane binary");
    let count: usize = words.next().map_or(1000, |word| word.parse().expect("a number"));
    println!(
        "## A flush of {count} engines: deadline {} s, proof timeout {} s\n",
        DEADLINE.as_secs(),
        PROOF.as_secs()
    );
    println!(
        "| dead engines | flush | s | at most s | most in flight | kvplane CPU s | RSS MiB before, most, after |"
    );
    println!("|---|---|---|---|---|---|---|");
    let dead = count / 10;
    for (name, hanging, refusing) in
        [("none", 0, 0), ("10 % hang", dead, 0), ("5 % hang, 5 % refuse", dead / 2, dead - dead / 2)]
    {
        let mut bench = Bench::start(&binary, name, roles(count, hanging, refusing)).await;
        for _ in 0..3 {
            bench.store().await;
            let line = bench.flush().await;
            println!("{line}");
        }
        if dead_of(&bench.fleet) == 0 {
            bench.repeat().await;
        }
    }
    println!("\nevery live engine was proven by its stream, and none was asked twice");
}

/// Dead engines are spread over the fleet.
fn roles(count: usize, hanging: usize, refusing: usize) -> Vec<Role> {
    let mut roles = vec![Role::Lives; count];
    let dead = hanging + refusing;
    for number in 0..dead {
        roles[number * count / dead] = if number < hanging { Role::Hangs } else { Role::Refuses };
    }
    roles
}

fn dead_of(fleet: &Fleet) -> usize {
    fleet.roles.iter().filter(|&&role| role != Role::Lives).count()
}

/// A fleet, and the plane that flushes it.
struct Bench {
    name: &'static str,
    fleet: Fleet,
    served: Served,
    flushes: usize,
}

/// What a flush took.
struct Line {
    name: &'static str,
    flush: usize,
    took: Duration,
    bound: Duration,
    most_open: usize,
    cpu: f64,
    /// Memory before, at the most, and after.
    rss: [f64; 3],
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, flush, took, bound, most_open, cpu, rss: [before, most, after] } = self;
        let (took, bound) = (took.as_secs_f64(), bound.as_secs());
        write!(
            f,
            "| {name} | {flush} | {took:.2} | {bound} | {most_open} | {cpu:.2} | {before:.0}, {most:.0}, {after:.0} |"
        )
    }
}

impl Bench {
    async fn start(binary: &str, name: &'static str, roles: Vec<Role>) -> Self {
        let fleet = Fleet::start(roles).await;
        let served = Served::start(binary, &fleet).await;
        Self { name, fleet, served, flushes: 0 }
    }

    /// Every engine has something to flush.
    async fn store(&self) {
        self.fleet.store();
        self.served.until_held(engines::BLOCKS, self.fleet.roles.len()).await;
    }

    /// Flushes everything, and checks what came of it.
    async fn flush(&mut self) -> Line {
        let Self { name, fleet, served, flushes } = self;
        *flushes += 1;
        let (asked, before, cpu) = (fleet.requests.counts().came, served.rss(), served.cpu_seconds());
        let began = Instant::now();
        let (verdicts, most) = served.flush(DEADLINE, PROOF).await;
        let took = began.elapsed();
        let (after, cpu) = (served.rss(), served.cpu_seconds() - cpu);
        let (counts, dead) = (fleet.requests.counts(), dead_of(fleet));
        let bound = DEADLINE * dead.div_ceil(IN_FLIGHT) as u32 + ROOM;

        let of = |role| fleet.roles.iter().filter(|&&other| other == role).count();
        let expected =
            [("proven", of(Role::Lives)), ("timeout", of(Role::Hangs)), ("failed", of(Role::Refuses))];
        let expected = expected.into_iter().filter(|&(_, count)| count > 0);
        let expected: BTreeMap<_, _> =
            expected.map(|(name, count)| (name.to_owned(), count as u32)).collect();
        assert_eq!(verdicts, expected);
        assert_eq!(counts.came - asked, of(Role::Lives) + of(Role::Hangs));
        assert!(counts.most_open <= IN_FLIGHT, "{} at a time", counts.most_open);
        assert!(took <= bound, "{took:?} are more than {bound:?}");
        Line {
            name,
            flush: *flushes,
            took,
            bound,
            most_open: counts.most_open,
            cpu,
            rss: [before, most.max(before), after],
        }
    }

    /// One flush after the other, with nothing in between but the clears: memory must not grow.
    async fn repeat(&mut self) {
        self.name = "none, flushed again and again";
        self.fleet.clear(FULL);
        self.store().await;
        let mut tenth = f64::INFINITY;
        for repeated in 1..=REPEATED {
            let line = self.flush().await;
            let [_, _, after] = line.rss;
            if repeated == 10 {
                tenth = after;
            }
            if [1, 10, REPEATED].contains(&repeated) {
                println!("{line}");
            }
            assert!(after <= tenth + LEFT, "{after} MiB after {repeated} flushes, {tenth} MiB after ten");
        }
    }
}
