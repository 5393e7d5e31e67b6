//! What one core pays per block of 16 tokens: decoding alone, and decoding with content hashes.
//!
//! `cargo run --release -p kvplane-wire --example decode_bench`

use std::hint::black_box;
use std::time::Instant;

use kvplane_core::{ContentHasher, Namespace};
use kvplane_wire::{Decoder, Event, OwnedEvent, OwnedHash, OwnedStored, Profile, encode_batch};

const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 8;
/// Different batches, so that branches and caches cannot learn one by heart.
const BATCHES: usize = 2000;
const RUNS: usize = 21;

/// How token ids are drawn. Both are made up: neither was measured on text. They differ in how often each
/// width of integer occurs, which is what a reader that guesses widths would be sensitive to.
#[derive(Clone, Copy)]
enum Ids {
    Skewed,
    Uniform,
}

fn main() {
    println!("ns per block of {BLOCK_SIZE} tokens, {BLOCKS} blocks per batch, median of {RUNS} runs");
    println!("{:<12} {:<18} {:>8} {:>14}", "profile", "token ids", "decode", "decode + hash");
    for profile in [Profile::Vllm0_22, Profile::Vllm0_32] {
        for (name, ids) in [("skewed, 128k", Ids::Skewed), ("uniform, 128k", Ids::Uniform)] {
            let frames = frames(profile, ids);
            let mut state = State::default();
            let decode = median(|| frames.iter().map(|frame| state.decode(frame)).fold(0, u64::wrapping_add));
            let both = median(|| frames.iter().map(|frame| state.hash(frame)).fold(0, u64::wrapping_add));
            println!("{:<12} {name:<18} {decode:>8.1} {both:>14.1}", profile.as_str());
        }
    }
}

#[derive(Default)]
struct State {
    decoder: Decoder,
    hasher: ContentHasher,
}

impl State {
    fn decode(&mut self, frame: &[u8]) -> u64 {
        let batch = black_box(self.decoder.decode(black_box(frame)));
        batch.map_or(0, |batch| batch.events.len() as u64)
    }

    fn hash(&mut self, frame: &[u8]) -> u64 {
        let Ok(batch) = self.decoder.decode(black_box(frame)) else { return 0 };
        let mut sum = 0u64;
        for event in &batch.events {
            let Event::Stored(stored) = event else { continue };
            let tokens = batch.tokens(stored).ids();
            for (hash, block) in batch.stored_hashes(stored).iter().zip(tokens.chunks_exact(BLOCK_SIZE)) {
                let content = self.hasher.plain(block, Namespace::PLAIN);
                sum = sum.wrapping_add(content ^ hash.bits);
            }
        }
        black_box(sum)
    }
}

/// Nanoseconds per block.
fn median(mut run: impl FnMut() -> u64) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            black_box(run());
            start.elapsed().as_nanos() as f64 / (BATCHES * BLOCKS) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn frames(profile: Profile, ids: Ids) -> Vec<Vec<u8>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    (0..BATCHES)
        .map(|_| {
            let stored = OwnedStored {
                block_hashes: (0..BLOCKS).map(|_| OwnedHash::Unsigned(random.next())).collect(),
                parent: Some(OwnedHash::Unsigned(random.next())),
                token_ids: (0..BLOCKS * BLOCK_SIZE).map(|_| ids.draw(&mut random)).collect(),
                block_size: BLOCK_SIZE as u32,
                medium: Some("GPU".to_owned()),
                extra_keys: Some(vec![None; BLOCKS]),
                group: Some(0),
                spec_kind: Some("full_attention".to_owned()),
                ..OwnedStored::default()
            };
            encode_batch(profile, 1_700_000_000.5, Some(0), &[OwnedEvent::Stored(stored)])
        })
        .collect()
}

impl Ids {
    fn draw(self, random: &mut Random) -> u32 {
        let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let unit = match self {
            // A third in one byte, half of all below 2000, a tenth above 65536.
            Self::Skewed => unit.powi(6),
            Self::Uniform => unit,
        };
        (unit * 128_000.0) as u32
    }
}

/// xorshift64*: good enough to keep branches from being predicted.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
