//! What recording costs: append and fan-out, the index beside it, memory over a long run, and what a snapshot
//! does to live batches.
//!
//! `cargo run --release -p kvplane-ingest --example recorder_bench [fanout|index|memory|snapshot]`

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_catalog::{Catalog, Identity};
use kvplane_core::{EngineId, StreamId};
use kvplane_ingest::Stream;
use kvplane_stream::{JournalOptions, Options};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BLOCK: u32 = 16;
const BLOCKS_PER_BATCH: u64 = 8;
const SUBSCRIBERS: usize = 8;
/// A socket thread wakes subscribers once for what it could read in one turn; at these rates that is a burst.
const BURST: u64 = 32;

/// An engine at constant residency: each batch stores new chains of blocks and evicts as many of the oldest.
struct Load {
    next: u64,
    resident: VecDeque<u64>,
    capacity: usize,
    /// New chains a batch, one event each.
    chains: u64,
    /// Blocks of a chain.
    blocks: u64,
}

impl Load {
    fn new(capacity_blocks: usize) -> Self {
        Self::of_chains(capacity_blocks, 1, BLOCKS_PER_BATCH)
    }

    fn of_chains(capacity_blocks: usize, chains: u64, blocks: u64) -> Self {
        let capacity = capacity_blocks / blocks as usize;
        Self { next: 0, resident: VecDeque::new(), capacity, chains, blocks }
    }

    fn hashes(&self, chain: u64) -> Vec<OwnedHash> {
        let scramble = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..self.blocks).map(|i| OwnedHash::Unsigned(scramble(chain * self.blocks + i))).collect()
    }

    fn batch(&mut self) -> Bytes {
        let mut events = Vec::new();
        for _ in 0..self.chains {
            self.add_events(&mut events);
        }
        Bytes::from(encode_batch(Profile::Vllm0_32, self.next as f64, Some(0), &events))
    }

    fn add_events(&mut self, events: &mut Vec<OwnedEvent>) {
        let chain = self.next;
        self.next += 1;
        if self.resident.len() == self.capacity {
            let old = self.resident.pop_front().unwrap();
            let mut block_hashes = self.hashes(old);
            block_hashes.reverse();
            events.push(OwnedEvent::Removed(OwnedRemoved {
                block_hashes,
                medium: Some("GPU".into()),
                group: Some(0),
                ..OwnedRemoved::default()
            }));
        }
        self.resident.push_back(chain);
        events.push(OwnedEvent::Stored(OwnedStored {
            block_hashes: self.hashes(chain),
            token_ids: (0..BLOCK * self.blocks as u32)
                .map(|t| (t.wrapping_mul(31).wrapping_add(chain as u32)) % 32_000)
                .collect(),
            block_size: BLOCK,
            medium: Some("GPU".into()),
            group: Some(0),
            spec_kind: Some("full_attention".into()),
            ..OwnedStored::default()
        }));
    }
}

fn stream() -> Arc<Stream> {
    let follow = Options { replay: false, ..Options::default() };
    let stream =
        Stream::in_process(StreamId::new(EngineId::new("bench"), 0), follow, JournalOptions::default());
    stream.feed(kvplane_stream::Recorder::connected);
    Arc::new(stream)
}

fn feed(stream: &Stream, sequence: u64, payload: Bytes) {
    stream.feed(|recorder, now| recorder.live(now, sequence, payload));
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Append, with subscribers that follow in process.
async fn fanout(subscribers: usize) -> (f64, f64) {
    const BATCHES: u64 = 400_000;
    const CHUNK: u64 = 20_000;
    let stream = stream();
    let start = stream.cursor();
    let tasks: Vec<_> = (0..subscribers)
        .map(|_| {
            let stream = stream.clone();
            tokio::spawn(async move {
                let mut cursor = start;
                let mut batches = 0;
                while batches < BATCHES {
                    let entries = stream.next_after(cursor, 256).await.unwrap();
                    batches += entries.iter().filter(|entry| entry.engine_sequence.is_some()).count() as u64;
                    cursor.sequence = entries.last().unwrap().sequence;
                }
            })
        })
        .collect();
    let mut load = Load::new(65_536);
    let (mut seconds, mut cpu) = (0.0, 0.0);
    let mut sequence = 0;
    while sequence < BATCHES {
        // Making the frames is the engine's work, not ours.
        let frames: Vec<Bytes> = (0..CHUNK).map(|_| load.batch()).collect();
        let (begun, cpu_begun) = (Instant::now(), cpu_seconds());
        tokio::task::block_in_place(|| {
            for frame in frames {
                feed(&stream, sequence, frame);
                sequence += 1;
                if sequence.is_multiple_of(BURST) {
                    stream.announce();
                }
            }
        });
        seconds += begun.elapsed().as_secs_f64();
        cpu += cpu_seconds() - cpu_begun;
    }
    let begun = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    seconds += begun.elapsed().as_secs_f64();
    (BATCHES as f64 / seconds, cpu * 1e6 / BATCHES as f64)
}

/// Batches a second, and CPU microseconds a batch: several streams of one model, each fed by its own thread,
/// and all in one index if there is a catalog.
fn beside_index(streams: usize, chains: u64, blocks: u64, catalog: Option<&Arc<Catalog>>) -> (f64, f64) {
    const EVENTS: u64 = 1_600_000;
    const CHUNK: u64 = 40_000;
    let batches = EVENTS / (2 * chains * streams as u64);
    let chunk = CHUNK / (2 * chains);
    let all: Vec<Arc<Stream>> = (0..streams).map(|number| indexed_stream(number, catalog)).collect();
    let (mut seconds, mut cpu, mut counted) = (0.0, 0.0, 0);
    let mut loads: Vec<Load> = (0..streams).map(|_| Load::of_chains(65_536, chains, blocks)).collect();
    let mut sequence = 0;
    while sequence < batches {
        let frames: Vec<Vec<Bytes>> =
            loads.iter_mut().map(|load| (0..chunk).map(|_| load.batch()).collect()).collect();
        let (begun, cpu_begun) = (Instant::now(), cpu_seconds());
        std::thread::scope(|scope| {
            for (stream, frames) in all.iter().zip(frames) {
                scope.spawn(move || {
                    for (frame, at) in frames.into_iter().zip(sequence..) {
                        feed(stream, at, frame);
                    }
                });
            }
        });
        sequence += chunk;
        // Until caches are full, nothing is evicted.
        if sequence * chains * blocks > 2 * 65_536 {
            seconds += begun.elapsed().as_secs_f64();
            cpu += cpu_seconds() - cpu_begun;
            counted += chunk * streams as u64;
        }
    }
    (counted as f64 / seconds, cpu * 1e6 / counted as f64)
}

fn indexed_stream(number: usize, catalog: Option<&Arc<Catalog>>) -> Arc<Stream> {
    let follow = Options { replay: false, ..Options::default() };
    let id = StreamId::new(EngineId::new(&format!("bench-{number}")), 0);
    let stream = Stream::in_process(id, follow, JournalOptions::default());
    if let Some(catalog) = catalog {
        let identity =
            Identity { model: "bench".into(), worker_id: number as u64, routing_group: "bench".into() };
        stream.join(catalog, identity);
    }
    stream.feed(kvplane_stream::Recorder::connected);
    Arc::new(stream)
}

fn memory() {
    const BATCHES: u64 = 3_600_000;
    let options = JournalOptions::default();
    let before = resident_mib();
    let stream = stream();
    let mut load = Load::new(65_536);
    println!("| batches | RSS MiB | window MiB (est.) | state MiB (est.) |\n|---|---|---|---|");
    for sequence in 0..BATCHES {
        feed(&stream, sequence, load.batch());
        if (sequence + 1) % 600_000 == 0 {
            let status = stream.status();
            println!(
                "| {} | {:.0} | {:.1} | {:.1} |",
                sequence + 1,
                resident_mib() - before,
                status.window_bytes as f64 / 1_048_576.0,
                status.state_bytes as f64 / 1_048_576.0
            );
        }
    }
    println!("budgets: window {} MiB, state {} MiB", options.max_bytes >> 20, options.state.max_bytes >> 20);
}

/// How long a live batch waits while snapshots of a million blocks are taken.
async fn snapshot() {
    const BLOCKS: usize = 1_000_000;
    let stream = stream();
    let mut load = Load::new(BLOCKS);
    let mut sequence = 0;
    while stream.status().blocks[0] < BLOCKS as u64 {
        for _ in 0..1000 {
            feed(&stream, sequence, load.batch());
            sequence += 1;
        }
    }
    println!("| | snapshot s | live batches | p50 us | p99 us | max ms |\n|---|---|---|---|---|---|");
    for with_snapshot in [false, true, true, true] {
        let stop = Arc::new(AtomicBool::new(false));
        let taker = with_snapshot.then(|| {
            let (stream, stop) = (stream.clone(), stop.clone());
            tokio::spawn(async move {
                let begun = Instant::now();
                let snapshot = stream.snapshot().await;
                let seconds = begun.elapsed().as_secs_f64();
                assert_eq!(snapshot.image.blocks.len(), BLOCKS);
                stop.store(true, Ordering::Relaxed);
                seconds
            })
        });
        let (latencies, (next, used)) = {
            let (stream, stop) = (stream.clone(), stop.clone());
            let mut load = std::mem::replace(&mut load, Load::new(BLOCKS));
            let returned = tokio::task::spawn_blocking(move || {
                let mut latencies = Vec::new();
                let deadline = Instant::now() + Duration::from_millis(500);
                let mut sequence = sequence;
                while !stop.load(Ordering::Relaxed) && (with_snapshot || Instant::now() < deadline) {
                    let frame = load.batch();
                    let begun = Instant::now();
                    feed(&stream, sequence, frame);
                    latencies.push(begun.elapsed());
                    sequence += 1;
                    std::thread::sleep(Duration::from_micros(100));
                }
                (latencies, sequence, load)
            })
            .await
            .unwrap();
            (returned.0, (returned.1, returned.2))
        };
        sequence = next;
        load = used;
        let taken = match taker {
            Some(task) => format!("{:.2}", task.await.unwrap()),
            None => "-".to_owned(),
        };
        let mut sorted = latencies.clone();
        sorted.sort();
        println!(
            "| {} | {taken} | {} | {:.1} | {:.1} | {:.2} |",
            if with_snapshot { "with snapshot" } else { "without" },
            sorted.len(),
            sorted[sorted.len() / 2].as_secs_f64() * 1e6,
            sorted[sorted.len() * 99 / 100].as_secs_f64() * 1e6,
            sorted[sorted.len() - 1].as_secs_f64() * 1e3,
        );
    }
}

#[tokio::main]
async fn main() {
    let wanted = std::env::args().nth(1);
    let runs = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    if runs("fanout") {
        println!("## Append and fan-out in process, 8 blocks of 16 tokens stored and 8 evicted a batch\n");
        println!("| subscribers | batches/s (3 runs) | CPU us a batch |\n|---|---|---|");
        for subscribers in [0, 1, SUBSCRIBERS] {
            let mut results = Vec::new();
            for _ in 0..3 {
                results.push(fanout(subscribers).await);
            }
            let rates: Vec<String> = results.iter().map(|(rate, _)| format!("{rate:.0}")).collect();
            let cpu = results.iter().map(|(_, cpu)| *cpu).sum::<f64>() / results.len() as f64;
            println!("| {subscribers} | {} | {cpu:.2} |", rates.join(" / "));
        }
    }
    if runs("index") {
        println!("\n## Streams of one model and their index, 65,536 blocks resident each\n");
        println!(
            "| streams | events a batch | blocks an event | index | batches/s (3 runs) | CPU us a batch (3 runs) |"
        );
        println!("|---|---|---|---|---|---|");
        for (streams, chains, blocks) in [(1, 1, 8), (1, 16, 2), (2, 16, 2)] {
            for indexed in [false, true] {
                let results: Vec<(f64, f64)> = (0..3)
                    .map(|_| {
                        let catalog = indexed.then(|| Catalog::new(kvplane_index::Options::default()));
                        beside_index(streams, chains, blocks, catalog.as_ref())
                    })
                    .collect();
                let rates: Vec<String> = results.iter().map(|(rate, _)| format!("{rate:.0}")).collect();
                let cpu: Vec<String> = results.iter().map(|(_, cpu)| format!("{cpu:.2}")).collect();
                let index = if indexed { "yes" } else { "no" };
                let events = 2 * chains;
                println!(
                    "| {streams} | {events} | {blocks} | {index} | {} | {} |",
                    rates.join(" / "),
                    cpu.join(" / ")
                );
            }
        }
    }
    if runs("memory") {
        println!("\n## Memory over 3.6 million batches, 65,536 blocks resident\n");
        memory();
    }
    if runs("snapshot") {
        println!("\n## A snapshot of 1 M blocks beside live batches\n");
        snapshot().await;
    }
}
