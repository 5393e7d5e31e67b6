//! The pool beside a real engine: what was asked of vLLM 0.32, asked again here.

use kvplane_wire::{Decoder, Event};
use serde::Deserialize;

use super::super::*;
use super::config;

const PLAIN: &str = include_str!("../../../../wire/tests/captures/vllm-0.32.0-oracle.jsonl");
const HYBRID: &str = include_str!("../../../../wire/tests/captures/vllm-0.32.0-hybrid-oracle.jsonl");

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Live {
        payload_hex: String,
    },
    Truth(Truth),
    #[serde(other)]
    Other,
}

/// A request, or several at once, which have no order to ask them in again.
#[derive(Deserialize)]
#[serde(untagged)]
enum Truth {
    One { prompt_token_ids: Vec<u32>, output_token_ids: Vec<u32>, cached_tokens: usize },
    Several {},
}

/// What an event is, without hashes: each engine has its own.
#[derive(Debug, PartialEq, Eq)]
enum Announced {
    Stored { group: u32, kept: usize, tokens: usize },
    Removed { group: u32 },
}

fn recorded(payload: &str) -> Vec<Announced> {
    let digits = payload.as_bytes().chunks(2);
    let bytes: Vec<u8> =
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&bytes).unwrap();
    let reported = |event: &Event<'_>| match event {
        Event::Stored(stored) => Announced::Stored {
            group: stored.group.unwrap(),
            kept: batch.stored_hashes(stored).len(),
            tokens: batch.tokens(stored).positions(),
        },
        Event::Removed(removed) => Announced::Removed { group: removed.group.unwrap() },
        other => panic!("{other:?}"),
    };
    batch.events.iter().map(reported).collect()
}

fn simulated(pool: &mut Pool) -> Vec<Announced> {
    let reported = |event| match event {
        OwnedEvent::Stored(stored) => Announced::Stored {
            group: stored.group.unwrap(),
            kept: stored.block_hashes.len(),
            tokens: stored.token_ids.len(),
        },
        OwnedEvent::Removed(removed) => Announced::Removed { group: removed.group.unwrap() },
        OwnedEvent::Cleared => panic!("nothing was reset"),
    };
    pool.take_events().into_iter().map(reported).collect()
}

/// Asks for everything again, up to requests at once: as much is found, and the same is published in the same
/// order. How many requests there were.
fn ask_again(capture: &str, groups: Vec<GroupSpec>, blocks: usize) -> usize {
    let mut pool = Pool::new(PoolConfig { groups, block_size: 32, ..config(blocks) });
    let mut heard: Vec<Announced> = Vec::new();
    let mut requests = 0;
    for line in capture.lines() {
        match serde_json::from_str(line).unwrap() {
            Line::Live { payload_hex } => heard.extend(recorded(&payload_hex)),
            Line::Truth(Truth::One { prompt_token_ids, output_token_ids, cached_tokens }) => {
                let mut table = pool.begin(&prompt_token_ids, Keys::default(), Report::New).unwrap();
                assert_eq!(table.cached_tokens(), cached_tokens, "request {requests}");
                // The last token is sampled, and never computed.
                for token in &output_token_ids[..output_token_ids.len() - 1] {
                    pool.append(&mut table, *token).unwrap();
                }
                pool.finish(&table);
                assert_eq!(simulated(&mut pool), std::mem::take(&mut heard), "request {requests}");
                requests += 1;
            }
            Line::Truth(Truth::Several {}) => break,
            Line::Other => {}
        }
    }
    requests
}

/// One block of an engine is its null block.
#[test]
fn a_real_engine_found_and_kept_as_much() {
    let hybrid = vec![GroupSpec::sliding(128), GroupSpec::sliding(128), GroupSpec::FULL];
    assert_eq!(ask_again(HYBRID, hybrid, 199), 58);
    assert_eq!(ask_again(PLAIN, Vec::new(), 95), 123);
}
