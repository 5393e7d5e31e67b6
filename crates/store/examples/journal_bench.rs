//! What a journal costs the thread that hears, what a memory costs, and how long it takes to read one back.
//! Processor time of the thread, so that other load matters little:
//!
//! ```text
//! cargo run --release -p kvplane-store --example journal_bench
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_store::{Disk, Header, Journal, Name, Options, Written, read};
use kvplane_stream::{Ask, JournalOptions, Now, Options as Follow, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

const NOW: Now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
const TOKENS: u32 = 16;

#[derive(Debug)]
struct Nobody;

impl Written for Nobody {
    fn written(&self, _: u64) {}
    fn off(&self) {
        println!("the journal is off");
    }
}

/// Processor time of this thread, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Blocks `from` to `to`, a chain; and blocks that go.
fn batch(from: u64, to: u64, gone: &[u64]) -> Bytes {
    let stored = OwnedStored {
        block_hashes: (from..to).map(|hash| OwnedHash::Unsigned(mix(hash))).collect(),
        token_ids: (from * u64::from(TOKENS)..to * u64::from(TOKENS))
            .map(|at| mix(at) as u32 % 128_000)
            .collect(),
        block_size: TOKENS,
        medium: Some("GPU".into()),
        ..OwnedStored::default()
    };
    let removed = OwnedRemoved {
        block_hashes: gone.iter().map(|&hash| OwnedHash::Unsigned(mix(hash))).collect(),
        medium: Some("GPU".into()),
        ..OwnedRemoved::default()
    };
    let mut events = vec![OwnedEvent::Stored(stored)];
    if !gone.is_empty() {
        events.push(OwnedEvent::Removed(removed));
    }
    encode_batch(Profile::Vllm0_24, 1.0, Some(0), &events).into()
}

fn mix(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555
}

fn recorder(keeps: bool) -> Recorder {
    let mut recorder = Recorder::new(Follow::default(), JournalOptions::default(), 0, NOW);
    if keeps {
        recorder.keep_records(NOW);
    }
    recorder.connected(NOW);
    for ask in recorder.take_asks() {
        if let Ask::Replay { id, .. } = ask {
            recorder.replay_ended(NOW, id, true);
        }
    }
    recorder
}

fn main() {
    let path = std::env::temp_dir().join(format!("kvplane-journal-bench-{}", std::process::id()));
    let files = Arc::new(Disk::take(&path).unwrap());
    let header = Header { plane: [1; 16], boot: [1; 16], run: 1, always_synced: false };
    let found = read(files.clone()).unwrap();
    let options = Options { max_queue: 1 << 30, ..Options::default() };
    let journal = Journal::start(files.clone(), header, options, &found, &[]).unwrap();
    let mut stream = journal.stream(Name { engine: "e".to_owned(), rank: 0 }, None, Arc::new(Nobody));
    let (mut plain, mut kept) = (recorder(false), recorder(true));
    stream.append(kept.take_records(), 0);
    // 1 M blocks, and then 8 come and 8 go.
    let mut next = 0;
    for from in (0..1_000_000).step_by(1_000) {
        let payload = batch(from, from + 1_000, &[]);
        plain.live(NOW, next, payload.clone());
        kept.live(NOW, next, payload);
        stream.append(kept.take_records(), 0);
        next += 1;
    }
    let rounds = 20_u64;
    let each = 2_000_u64;
    let (mut without, mut with, mut bytes) = (0.0, 0.0, 0);
    for round in 0..rounds {
        let payloads: Vec<Bytes> = (0..each)
            .map(|at| {
                let from = 1_000_000 + (round * each + at) * 8;
                let gone: Vec<u64> = (from - 1_000_000..from - 1_000_000 + 8).rev().collect();
                batch(from, from + 8, &gone)
            })
            .collect();
        bytes += payloads.iter().map(Bytes::len).sum::<usize>();
        let before = cpu();
        for (sequence, payload) in (next..).zip(&payloads) {
            plain.live(NOW, sequence, payload.clone());
        }
        without += cpu() - before;
        let before = cpu();
        for (sequence, payload) in (next..).zip(&payloads) {
            kept.live(NOW, sequence, payload.clone());
            stream.append(kept.take_records(), sequence);
        }
        with += cpu() - before;
        next += each;
        // Other threads get their turn: this measures no queue.
        while journal.status().queued_bytes > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let batches = (rounds * each) as f64;
    let micros = |seconds: f64| seconds * 1e6 / batches;
    println!(
        "batches of 8 + 8 blocks, {:.0} bytes: {:.2} us without, {:.2} us with a journal: {:+.2} us",
        bytes as f64 / batches,
        micros(without),
        micros(with),
        micros(with) - micros(without)
    );
    journal.close();
    let status = journal.status();
    println!("journal: {} steps, {} MB, off: {:?}", status.steps, status.bytes >> 20, status.off);

    let (wall, started) = (Instant::now(), cpu());
    let found = read(files).unwrap();
    let scanned = (wall.elapsed(), cpu() - started);
    let restored = found.restore(&[1], u64::MAX, 1).unwrap().remove(0);
    let memory = restored.memory.unwrap();
    println!(
        "read back from steps alone: scan {:.2} s (cpu {:.2} s), all {:.2} s; {} blocks",
        scanned.0.as_secs_f64(),
        scanned.1,
        wall.elapsed().as_secs_f64(),
        memory.ledger().state().entries()
    );
    let (wall, started) = (Instant::now(), cpu());
    let saved = memory.save();
    println!(
        "save: {:.2} s (cpu {:.2} s), {} MB",
        wall.elapsed().as_secs_f64(),
        cpu() - started,
        saved.len() >> 20
    );
    let (wall, started) = (Instant::now(), cpu());
    let loaded = kvplane_stream::Memory::load(&saved).unwrap();
    println!("load: {:.2} s (cpu {:.2} s)", wall.elapsed().as_secs_f64(), cpu() - started);
    assert_eq!(loaded.mark(), memory.mark());
    let ledger = kept.ledger();
    assert_eq!(loaded.mark().digest, ledger.state().digest());
    std::fs::remove_dir_all(&path).unwrap();
}
