//! What a call costs in Rust: the measure for the same calls from Python (`python/benches/bench.py`).
//!
//! ```text
//! cargo run --release -p kvplane-embed --example embed_bench
//! ```

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark")]

use std::time::Instant;

use kvplane_embed::{Recorder, Settings};
use kvplane_stream::Recovery;
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BLOCK: u64 = 16;
/// Blocks of a prompt, and of a frame.
const BLOCKS: u64 = 8;
/// Prompts that are held: 100,000 blocks.
const HELD: u64 = 12_500;
/// Prompts that are removed in a row; as many are stored after that.
const ROUND: u64 = 100;
const ROUNDS: u64 = 300;
const RUNS: usize = 7;

/// Hashes of real engines have all their bits.
fn hashes(prompt: u64) -> Vec<OwnedHash> {
    let hash = |n: u64| OwnedHash::Unsigned((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (prompt * BLOCKS..(prompt + 1) * BLOCKS).map(hash).collect()
}

fn frame(event: OwnedEvent) -> Vec<u8> {
    encode_batch(Profile::Vllm0_32, 1.0, Some(0), &[event])
}

/// A prompt is stored, as vLLM publishes it.
fn stored(prompt: u64) -> Vec<u8> {
    let first = prompt * BLOCKS * BLOCK;
    frame(OwnedEvent::Stored(OwnedStored {
        block_hashes: hashes(prompt),
        token_ids: (first..first + BLOCKS * BLOCK).map(|n| (n % 150_000) as u32).collect(),
        block_size: BLOCK as u32,
        medium: Some("GPU".into()),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    }))
}

fn removed(prompt: u64) -> Vec<u8> {
    let (medium, group) = (Some("GPU".into()), Some(0));
    let block_hashes = hashes(prompt).into_iter().rev().collect();
    frame(OwnedEvent::Removed(OwnedRemoved { block_hashes, medium, group, ..OwnedRemoved::default() }))
}

/// Hands frames over; how long one took, in microseconds.
fn hand_over(recorder: &Recorder, frames: &[Vec<u8>]) -> f64 {
    let begun = Instant::now();
    for frame in frames {
        recorder.apply_frame(None, frame).unwrap();
    }
    begun.elapsed().as_secs_f64() * 1e6 / frames.len() as f64
}

/// What a tenth of all stays below: a machine that does other things too is often late, and never early.
fn typical(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

fn main() {
    let all_stored: Vec<_> = (0..HELD + ROUNDS * ROUND).map(stored).collect();
    let all_removed: Vec<_> = (0..ROUNDS * ROUND).map(removed).collect();
    let (first, further) = all_stored.split_at(HELD as usize);
    let recorder = Recorder::new(&Settings::new("bench")).unwrap();
    hand_over(&recorder, first);
    let (mut stores, mut removals) = (Vec::new(), Vec::new());
    for (removed, stored) in all_removed.chunks(ROUND as usize).zip(further.chunks(ROUND as usize)) {
        removals.push(hand_over(&recorder, removed));
        stores.push(hand_over(&recorder, stored));
    }
    println!("store_us {:.3}", typical(stores));
    println!("removal_us {:.3}", typical(removals));

    let elapsed = |what: &dyn Fn()| {
        let run = |_| {
            let begun = Instant::now();
            what();
            begun.elapsed().as_secs_f64() * 1e3
        };
        typical((0..RUNS).map(run).collect())
    };
    let last = recorder.status().engine_sequence.unwrap();
    let recovery = Recovery { start: Some(last - 999), end: None };
    println!("events_1000_ms {:.3}", elapsed(&|| drop(recorder.recover_json(recovery).unwrap())));
    println!("snapshot_100k_ms {:.3}", elapsed(&|| drop(recorder.snapshot().unwrap())));
}
