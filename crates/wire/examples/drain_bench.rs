//! What one core pays for `TensorRT-LLM`'s JSON: cutting a drained body into parts, and decoding them.
//!
//! `cargo run --release -p kvplane-wire --example drain_bench`

#![allow(clippy::disallowed_methods, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use kvplane_wire::trtllm::encode::{TrtBlock, TrtData, TrtEvent, TrtHash, encode_events};
use kvplane_wire::trtllm::{Drained, split};
use kvplane_wire::{Decoder, Dialect};

/// `TensorRT-LLM`'s default.
const TOKENS_PER_BLOCK: usize = 32;
const BLOCKS: usize = 8;
const EVENTS: usize = 2000;
const RUNS: usize = 21;

fn main() {
    println!(
        "a drain of {EVENTS} events, {BLOCKS} blocks of {TOKENS_PER_BLOCK} tokens per store, median of {RUNS} runs"
    );
    println!("{:<34} {:>9} {:>10} {:>10} {:>12}", "body", "MB", "split", "decode", "both");
    let compact = body(1);
    let spaced = spaced(&compact);
    for (name, body) in [
        ("one rank", compact),
        ("four ranks, event by event", body(4)),
        ("one rank, written with spaces", spaced),
    ] {
        let mut decoder = Decoder::default();
        let drained = split(&body).unwrap_or_else(|error| panic!("{error}"));
        let cut = median(|| split(black_box(&body)).map_or(0, |drained| drained.events));
        let read = median(|| decode(&mut decoder, black_box(&drained)));
        let megabytes = body.len() as f64 / 1e6;
        let both = cut + read;
        println!(
            "{name:<34} {megabytes:>9.1} {:>5.0} MB/s {:>5.0} MB/s {:>7.0} MB/s  {:.0} events/s  {:.1} ns per token",
            megabytes / cut,
            megabytes / read,
            megabytes / both,
            EVENTS as f64 / both,
            both * 1e9 / (EVENTS / 2 * BLOCKS * TOKENS_PER_BLOCK) as f64,
        );
    }
}

fn decode(decoder: &mut Decoder, drained: &Drained) -> usize {
    let events = |payload: &Bytes, decoder: &mut Decoder| {
        let batch = decoder.decode_as(Dialect::TrtllmJson, payload).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(batch.broken, None);
        black_box(&batch).events.len()
    };
    drained.parts.iter().map(|part| events(&part.payload, decoder)).sum()
}

/// Seconds of a run.
fn median(mut run: impl FnMut() -> usize) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            black_box(run());
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// As many stores as removals, of ranks that take turns.
fn body(ranks: u32) -> Bytes {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let event = |index: usize| {
        let rank = index as u32 % ranks;
        let hash = TrtHash::Number(random.next());
        let data = if (index / ranks as usize).is_multiple_of(2) {
            let block = |_| TrtBlock {
                block_hash: TrtHash::Number(random.next()),
                tokens: (0..TOKENS_PER_BLOCK).map(|_| (random.next() as u32 % 128_000).into()).collect(),
                cache_level: 0,
                priority: 35,
                mm_keys: Vec::new(),
                cache_salt: None,
            };
            TrtData::Stored { parent_hash: Some(hash), blocks: (0..BLOCKS).map(block).collect() }
        } else {
            TrtData::Removed { block_hashes: vec![hash] }
        };
        TrtEvent {
            event_id: index as u64 / u64::from(ranks),
            data,
            window_size: Some(4096),
            attention_dp_rank: (ranks > 1).then_some(rank),
            hash_algo: None,
            layer_group_id: None,
        }
    };
    encode_events(&(0..EVENTS).map(event).collect::<Vec<_>>()).into()
}

/// As a serializer writes that puts a space behind every comma and colon.
fn spaced(body: &Bytes) -> Bytes {
    let text = String::from_utf8_lossy(body).replace(',', ", ").replace("\":", "\": ");
    text.into_bytes().into()
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
