//! What one core pays per block of 16 tokens: decoding alone, and decoding with content hashes, for the wire
//! shape of every engine release.
//!
//! `cargo run --release -p kvplane-wire --example decode_bench`, or with the names of some profiles behind
//! `--`

#![allow(clippy::disallowed_methods, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use kvplane_core::{ContentHasher, EngineKind, Namespace};
use kvplane_wire::{Decoder, Event, OwnedEvent, OwnedHash, OwnedStored, Profile, encode_batch};

const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 8;
/// Different batches, so that branches and caches cannot learn one by heart.
const BATCHES: usize = 2000;
const RUNS: usize = 21;

/// How token ids are drawn. All are made up: none was measured on text. They differ in how often each
/// width of integer occurs, which is what a reader that guesses widths would be sensitive to.
#[derive(Clone, Copy, PartialEq)]
enum Ids {
    Skewed,
    Uniform,
    /// Pairs of skewed ones, each beginning where the last one ended: what `SGLang` sends with EAGLE.
    Bigrams,
}

fn main() {
    println!("blocks of {BLOCK_SIZE} tokens, {BLOCKS} blocks per batch, median of {RUNS} runs");
    println!(
        "{:<17} {:<8} {:>6} {:>11} {:>16} {:>14}",
        "profile", "ids", "events", "ns/block", "ns/block, hashed", "events/s"
    );
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted =
        |profile: &Profile| wanted.is_empty() || wanted.iter().any(|name| name == profile.as_str());
    for profile in Profile::ALL.into_iter().filter(is_wanted) {
        for (name, ids) in [("skewed", Ids::Skewed), ("uniform", Ids::Uniform), ("bigrams", Ids::Bigrams)] {
            if ids == Ids::Bigrams && profile.engine() != EngineKind::Sglang {
                continue;
            }
            let frames = frames(profile, ids);
            let mut state = State::default();
            let decode = median(|| frames.iter().map(|frame| state.decode(frame)).fold(0, u64::wrapping_add));
            let both = median(|| frames.iter().map(|frame| state.hash(frame)).fold(0, u64::wrapping_add));
            let events = events_per_batch(profile);
            let per_second = 1e9 / (decode * BLOCKS as f64) * events as f64;
            println!(
                "{:<17} {name:<8} {events:>6} {decode:>11.1} {both:>16.1} {per_second:>14.0}",
                profile.as_str()
            );
        }
    }
}

/// `SGLang` announced every page in an event of its own until 0.5.17.
fn events_per_batch(profile: Profile) -> usize {
    let one_each = matches!(profile, Profile::Sglang0_4_6 | Profile::Sglang0_4_7 | Profile::Sglang0_5_9);
    if one_each { BLOCKS } else { 1 }
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
            let tokens = batch.tokens(stored);
            let width = tokens.ids().len() / tokens.positions().max(1) * BLOCK_SIZE;
            let blocks = tokens.ids().chunks_exact(width.max(1));
            for (hash, block) in batch.stored_hashes(stored).iter().zip(blocks) {
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
    let events = events_per_batch(profile);
    let mut batch = || -> Vec<u8> {
        let stores: Vec<_> =
            (0..events).map(|_| store(profile.engine(), BLOCKS / events, ids, &mut random)).collect();
        encode_batch(profile, 1_700_000_000.5, Some(0), &stores)
    };
    (0..BATCHES).map(|_| batch()).collect()
}

/// A store as the engine would make it; what a profile does not have is left out by the encoder.
fn store(engine: EngineKind, blocks: usize, ids: Ids, random: &mut Random) -> OwnedEvent {
    let hash = |random: &mut Random| match engine {
        EngineKind::Sglang => OwnedHash::Signed(random.next().cast_signed()),
        _ => OwnedHash::Unsigned(random.next()),
    };
    let bigrams = ids == Ids::Bigrams;
    let count = blocks * BLOCK_SIZE + usize::from(bigrams);
    let mut token_ids: Vec<u32> = (0..count).map(|_| ids.draw(random)).collect();
    if bigrams {
        token_ids = token_ids.windows(2).flatten().copied().collect();
    }
    OwnedEvent::Stored(OwnedStored {
        block_hashes: (0..blocks).map(|_| hash(random)).collect(),
        parent: Some(hash(random)),
        token_ids,
        bigrams,
        block_size: BLOCK_SIZE as u32,
        medium: Some("GPU".to_owned()),
        extra_keys: Some(vec![None; blocks]),
        group: Some(0),
        spec_kind: Some("full_attention".to_owned()),
        ..OwnedStored::default()
    })
}

impl Ids {
    fn draw(self, random: &mut Random) -> u32 {
        let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let unit = match self {
            // A third in one byte, half of all below 2000, a tenth above 65536.
            Self::Skewed | Self::Bigrams => unit.powi(6),
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
