//! A flush of a thousand engines of which some are dead: how long it takes, how many are asked at a time, and what it costs.
//!
//! ```text
//! fleet_flush_bench KVPLANE_BINARY [ENGINES]
//! ```
//!
//! `kvplane serve` is a process of its own, the engines are in this one. Every engine that lives must be proven, every dead
//! one must not, and nobody may be asked twice.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, reason = "a benchmark")]

mod engines;
mod plane;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engines::{Fleet, Role};
use plane::Served;

/// How long one engine may take.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long a stream may take to show the flush. An engine that never answers may have done it all the same: its stream is
/// watched for as long, after the deadline.
const PROOF: Duration = Duration::from_secs(1);
/// What a flush may take beside the deadlines of dead engines.
const ROOM: Duration = Duration::from_secs(2);
/// At most so many are asked at a time.
const IN_FLIGHT: usize = 32;
/// What flushes may leave behind in memory, in MiB.
const LEFT: f64 = 8.0;

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
    for (name, hanging, refusing, flushes) in [
        ("none", 0, 0, 10),
        ("10 % hang", dead, 0, 3),
        ("5 % hang, 5 % refuse", dead / 2, dead - dead / 2, 3),
    ] {
        measure(&binary, name, roles(count, hanging, refusing), flushes).await;
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

async fn measure(binary: &str, name: &str, roles: Vec<Role>, flushes: usize) {
    let fleet = Fleet::start(roles).await;
    let served = Served::start(binary, &fleet).await;
    let of = |role| fleet.roles.iter().filter(|&&other| other == role).count();
    let dead = of(Role::Hangs) + of(Role::Refuses);
    let bound = DEADLINE * dead.div_ceil(IN_FLIGHT) as u32 + ROOM;
    let mut first = None;
    for flush in 1..=flushes {
        fleet.store();
        served.until_held(engines::BLOCKS, fleet.roles.len()).await;
        let (asked, before, cpu) = (fleet.requests.counts().came, served.rss(), served.cpu_seconds());
        let began = Instant::now();
        let (verdicts, most) = served.flush(DEADLINE, PROOF).await;
        let took = began.elapsed();
        let (after, cpu) = (served.rss(), served.cpu_seconds() - cpu);
        let counts = fleet.requests.counts();
        println!(
            "| {name} | {flush} | {:.2} | {} | {} | {cpu:.2} | {before:.0}, {most:.0}, {after:.0} |",
            took.as_secs_f64(),
            bound.as_secs(),
            counts.most_open
        );
        let expected =
            [("proven", of(Role::Lives)), ("timeout", of(Role::Hangs)), ("failed", of(Role::Refuses))];
        let expected = expected.into_iter().filter(|&(_, count)| count > 0);
        assert_eq!(
            verdicts,
            expected.map(|(name, count)| (name.to_owned(), count as u32)).collect::<BTreeMap<_, _>>()
        );
        assert_eq!(counts.came - asked, of(Role::Lives) + of(Role::Hangs));
        assert!(counts.most_open <= IN_FLIGHT && took <= bound);
        // The first flush makes what later ones use again.
        let first = *first.get_or_insert(after);
        assert!(after <= first + LEFT, "{after} MiB after a flush, {first} MiB after the first");
    }
}
