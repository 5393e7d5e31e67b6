//! Streams that hold blocks, and the memory that the process has for them.

use std::sync::Arc;

use bytes::Bytes;
use kvplane_catalog::{Catalog, Identity};
use kvplane_core::{EngineId, StreamId};
use kvplane_ingest::Stream;
use kvplane_stream::{JournalOptions, Limits, Options, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

/// Tokens of a block.
const BLOCK: u32 = 16;
/// Blocks of a batch.
const BATCH: u64 = 8;
/// Batches of a prompt.
const PROMPT: u64 = 8;

/// Bytes a block: of the process, and as the plane counts them.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) process: f64,
    pub(crate) state: f64,
    pub(crate) window: f64,
    pub(crate) index: f64,
}

/// Fills streams, all of one model, with this many blocks each. A window keeps `max_batches` of their batches.
pub(crate) fn fill(engines: u64, blocks: u64, max_batches: usize, keep_tokens: bool) -> Taken {
    let catalog = Catalog::new(kvplane_index::Options::default());
    let state = Limits { keep_tokens, ..Limits::default() };
    let options = JournalOptions { max_batches, state, ..JournalOptions::default() };
    let before = resident();
    let streams: Vec<_> = (0..engines).map(|number| stream(&catalog, number, options.clone())).collect();
    let batches = blocks / BATCH;
    for at in 0..batches {
        for (number, stream) in (0..).zip(&streams) {
            let first = (number << 40) + at * BATCH;
            let parent = (at % PROMPT > 0).then(|| hash(first - 1));
            feed(stream, at, batch(first, parent, BATCH));
        }
    }
    let process = resident().saturating_sub(before);
    let statuses: Vec<_> = streams.iter().map(|stream| stream.status()).collect();
    let state: usize = statuses.iter().map(|status| status.state_bytes).sum();
    let window: usize = statuses.iter().map(|status| status.window_bytes).sum();
    let index: usize = catalog.stats().iter().map(|index| index.stats.bytes).sum();
    let each = |bytes: f64| bytes / (batches * BATCH * engines) as f64;
    Taken {
        process: each(process as f64),
        state: each(state as f64),
        window: each(window as f64),
        index: each(index as f64),
    }
}

/// A stream of its own engine, connected and in the index.
pub(crate) fn stream(catalog: &Arc<Catalog>, number: u64, keep: JournalOptions) -> Arc<Stream> {
    let follow = Options { replay: false, ..Options::default() };
    let id = StreamId::new(EngineId::new(&format!("engine-{number:05}")), 0);
    let stream = Stream::in_process(id, follow, keep);
    let identity = Identity { model: "m".to_owned(), worker_id: number, routing_group: "default".to_owned() };
    stream.join(catalog, identity);
    stream.feed(Recorder::connected);
    Arc::new(stream)
}

pub(crate) fn feed(stream: &Stream, sequence: u64, payload: Bytes) {
    stream.feed(|recorder, now| recorder.live(now, sequence, payload));
}

fn hash(block: u64) -> u64 {
    (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A batch that stores blocks in a row.
pub(crate) fn batch(first: u64, parent: Option<u64>, blocks: u64) -> Bytes {
    let token = |at| (first.wrapping_mul(7).wrapping_add(at * 31) % 128_000) as u32;
    let stored = OwnedStored {
        block_hashes: (0..blocks).map(|at| OwnedHash::Unsigned(hash(first + at))).collect(),
        parent: parent.map(OwnedHash::Unsigned),
        token_ids: (0..blocks * u64::from(BLOCK)).map(token).collect(),
        block_size: BLOCK,
        medium: Some("GPU".into()),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    };
    Bytes::from(encode_batch(Profile::Vllm0_32, first as f64, Some(0), &[OwnedEvent::Stored(stored)]))
}

/// Bytes of memory that the process has.
pub(crate) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
