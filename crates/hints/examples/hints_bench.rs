//! What the book of hints costs: a lookup, an entry, an eviction, a clear, and memory.
//!
//! `cargo run --release -p kvplane-hints --example hints_bench [memory|lookup|removal|beside]`

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvplane_hints::{
    Asked, Book, CacheTier, Entry, Eviction, Limits, Policies, Policy, PrefixHash, Question, ReasonCode,
    Stats, Whose,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: i64 = 1_700_000_000_000_000;
const REPLICAS: usize = 64;
const ENTRIES: usize = 1_000_000;
const CHAIN: usize = 512;
/// As many as one message of a subscriber has at most.
const REPORT: usize = 4096;

/// Chains over replicas: every chain is held by `holders` of them.
struct Load {
    chains: Vec<Vec<PrefixHash>>,
    holders: usize,
    names: Vec<String>,
}

impl Load {
    fn new(entries: usize, holders: usize) -> Self {
        let chains = (entries / holders / CHAIN).max(1) as u64;
        let hash = |number: u64| PrefixHash::Fingerprint(scramble(number));
        Self {
            chains: (0..chains)
                .map(|at| (0..CHAIN as u64).map(|block| hash(at * 4096 + block)).collect())
                .collect(),
            holders,
            names: (0..REPLICAS).map(|replica| format!("replica-{replica}")).collect(),
        }
    }

    fn entries(&self) -> usize {
        self.chains.len() * self.holders * CHAIN
    }

    /// What a replica holds, in the order in which it would tell it.
    fn of(&self, replica: usize) -> Vec<Entry> {
        let holds = |at: &usize| {
            (0..self.holders).any(|nth| (at * 7 + nth * REPLICAS / self.holders) % REPLICAS == replica)
        };
        let chains = (0..self.chains.len()).filter(holds);
        chains
            .flat_map(|at| {
                self.chains[at].iter().zip(1..).map(|(hash, block)| Entry {
                    hash: hash.clone(),
                    tokens: block * 16,
                    tier: CacheTier::T1,
                    adapter: "".into(),
                })
            })
            .collect()
    }

    /// Everybody in turn, over some minutes of their clocks.
    fn fill(&self, book: &Book) -> (usize, Duration) {
        let reports: Vec<(usize, Vec<Entry>)> =
            (0..REPLICAS).map(|replica| (replica, self.of(replica))).collect();
        let (mut taken, start) = (0, cpu_time());
        for (replica, entries) in &reports {
            for (nth, entries) in entries.chunks(REPORT).enumerate() {
                let at_us = NOW - 300_000_000 + nth as i64 * 20_000_000 + *replica as i64 * 1_000;
                taken += book.report(self.whose(*replica), "vllm", at_us, entries).unwrap().taken;
            }
        }
        (taken, cpu_time().saturating_sub(start))
    }

    fn whose(&self, replica: usize) -> Whose<'_> {
        Whose { tenant: "default", model: "llama", replica: &self.names[replica] }
    }
}

fn scramble(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn book(eviction: Eviction) -> Book {
    let limits = Limits { max_entries: 4 * ENTRIES, ..Limits::default() };
    let default = Policy { eviction, ..Policy::default() };
    Book::new(limits, Policies { default, ..Policies::default() }, None)
}

fn ask(book: &Book, hashes: &[PrefixHash], counts: &[u32]) -> ReasonCode {
    let question = Question {
        tenant: "default",
        model: "llama",
        scheme: "vllm",
        adapter: "",
        asked: Asked::Chain { hashes, counts },
        chain_on_wire: true,
        ttft_ms: 0,
        expired: false,
    };
    book.lookup(&question, NOW).reason
}

/// Microseconds of lookups, sorted: every chain once a round, so that none is in the processor's caches.
fn lookups(book: &Book, load: &Load, count: usize) -> Vec<f64> {
    let counts = [16; CHAIN];
    let mut times: Vec<f64> = (0..count)
        .map(|nth| {
            // 37 shares no factor with any number of chains here.
            let chain = &load.chains[nth * 37 % load.chains.len()];
            let start = Instant::now();
            let reason = ask(book, chain, &counts);
            let took = start.elapsed().as_secs_f64() * 1e6;
            let expected =
                if load.holders == REPLICAS { ReasonCode::AffinityHint } else { ReasonCode::PrefixMatch };
            assert_eq!(reason, expected);
            took
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

fn at(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// Of this thread: whatever else runs on the machine.
fn cpu_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split_whitespace().next().unwrap().parse().unwrap())
}

fn rss() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// In small reports, so that nothing but the book is in memory.
fn memory_part() {
    println!("## Memory: {ENTRIES} entries over {REPLICAS} replicas");
    println!();
    println!("| holders of each prefix | entries a report | bytes() an entry | RSS an entry |");
    println!("|---|---|---|---|");
    for (holders, report) in [(1, CHAIN), (1, 16), (4, CHAIN)] {
        let load = Load::new(ENTRIES, holders);
        let before = rss();
        let book = book(Eviction::Lru);
        let chains = load.entries() / REPLICAS / CHAIN;
        for replica in 0..REPLICAS {
            let (entries, mut at_us) = (load.of(replica), NOW - 1_500_000_000);
            for entries in entries.chunks(report) {
                at_us += 1_500_000_000 / (chains * CHAIN / report + 1) as i64;
                book.report(load.whose(replica), "vllm", at_us, entries).unwrap();
            }
        }
        let used = rss().saturating_sub(before) as f64 / load.entries() as f64;
        println!("| {holders} | {report} | {:.1} | {used:.1} |", book.bytes() as f64 / load.entries() as f64);
        // The next one starts from fresh pages.
        std::mem::forget(book);
    }
    println!();
}

fn lookup_part() {
    println!("## A lookup of {CHAIN} blocks, {ENTRIES} entries over {REPLICAS} replicas");
    println!();
    println!(
        "| holders of each prefix | order | ingest, M entries a second of CPU | min us | p50 us | p99 us |"
    );
    println!("|---|---|---|---|---|---|");
    for (holders, eviction) in [
        (1, Eviction::Lru),
        (4, Eviction::Lru),
        (16, Eviction::Lru),
        (32, Eviction::Lru),
        (64, Eviction::Lru),
        (4, Eviction::Lfu),
    ] {
        let load = Load::new(ENTRIES, holders);
        let book = book(eviction);
        let (taken, took) = load.fill(&book);
        assert_eq!(taken, load.entries());
        let times = lookups(&book, &load, 20_000);
        println!(
            "| {holders} | {} | {:.2} | {:.1} | {:.1} | {:.1} |",
            eviction.as_str(),
            taken as f64 / took.as_secs_f64() / 1e6,
            times[0],
            at(&times, 0.5),
            at(&times, 0.99),
        );
    }
    println!();
}

fn removal_part() {
    println!("## Removals: cost of what goes, in books of two sizes");
    println!();
    println!(
        "| entries in the book | PREFIX_EVICTED, us each | ALL_CLEARED of 1,024 entries, us | ns a removed entry |"
    );
    println!("|---|---|---|---|");
    for entries in [10_000, ENTRIES] {
        let load = Load::new(entries, 1);
        let book = book(Eviction::Lru);
        load.fill(&book);
        let guest = Whose { tenant: "default", model: "llama", replica: "guest" };
        let two_chains: Vec<Entry> = (0..1024)
            .map(|block| Entry {
                hash: PrefixHash::Fingerprint(scramble(1 << 40 | block)),
                tokens: 16,
                tier: CacheTier::T1,
                adapter: "".into(),
            })
            .collect();
        let (mut evictions, mut clears) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            book.report(guest, "vllm", NOW, &two_chains).unwrap();
            let start = Instant::now();
            for entry in &two_chains {
                assert_eq!(book.evict(guest, &entry.hash, ""), 1);
            }
            evictions.push(start.elapsed().as_secs_f64() * 1e6 / 1024.0);
            book.report(guest, "vllm", NOW, &two_chains).unwrap();
            book.set_stats(guest, Stats::default(), NOW).unwrap();
            let start = Instant::now();
            assert_eq!(book.clear(guest), 1024);
            clears.push(start.elapsed().as_secs_f64() * 1e6);
        }
        evictions.sort_by(f64::total_cmp);
        clears.sort_by(f64::total_cmp);
        let clear = at(&clears, 0.5);
        println!(
            "| {} | {:.2} | {clear:.0} | {:.0} |",
            load.entries(),
            at(&evictions, 0.5),
            clear * 1e3 / 1024.0
        );
    }
    println!();
}

/// Does something for the so manieth time.
type Write<'a> = &'a (dyn Fn(usize) + Sync);

/// How long lookups take while reports and clears come in.
fn beside_part() {
    println!("## Lookups beside writers, {ENTRIES} entries");
    println!();
    println!("| beside | p50 us | p99 us | p99.9 us | max us |");
    println!("|---|---|---|---|---|");
    let load = Load::new(ENTRIES, 4);
    let book = book(Eviction::Lru);
    load.fill(&book);
    let reports: Vec<Vec<Entry>> = (0..4).map(|replica| load.of(replica)).collect();
    let done = AtomicBool::new(false);
    let again: Write<'_> = &|nth| {
        let at_us = NOW + nth as i64 * 1_000_000;
        book.report(load.whose(nth % 4), "vllm", at_us, &reports[nth % 4][..REPORT]).unwrap();
    };
    let clear: Write<'_> = &|nth| {
        book.report(load.whose(nth % 4), "vllm", NOW, &reports[nth % 4]).unwrap();
        book.clear(load.whose(nth % 4));
    };
    for (what, write) in [
        ("nobody", None),
        ("reports of 4,096 entries, without a pause", Some(again)),
        ("15,600 entries, told and cleared", Some(clear)),
    ] {
        done.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            if let Some(write) = write {
                let done = &done;
                scope.spawn(move || {
                    let mut nth = 0;
                    while !done.load(Ordering::Relaxed) {
                        write(nth);
                        nth += 1;
                    }
                });
            }
            let times = lookups(&book, &load, 20_000);
            done.store(true, Ordering::Relaxed);
            let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|part| at(&times, part));
            println!("| {what} | {p50:.1} | {p99:.1} | {p999:.0} | {max:.0} |");
        });
    }
    println!();
}

fn main() {
    let parts: [(&str, fn()); 4] = [
        ("memory", memory_part),
        ("lookup", lookup_part),
        ("removal", removal_part),
        ("beside", beside_part),
    ];
    let asked: Vec<String> = std::env::args().skip(1).collect();
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            part();
        }
    }
}
