//! A plane that lies: any messages of kvplane.v1, in any order, with digests and numbers that are right or
//! wrong. A mirror and a client's replica refuse what does not fit, stay within their bounds, and agree where
//! both go on.

#![no_main]

#[path = "../../crates/ingest/src/source/kvplane_source/convert.rs"]
#[allow(dead_code, unreachable_pub, reason = "the whole of what a link does with messages")]
mod convert;
#[path = "../../crates/client/src/error.rs"]
#[allow(dead_code, unreachable_pub, reason = "the replica's")]
mod error;
#[path = "../../crates/client/src/replica/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "the client's, without the client")]
mod replica;
#[path = "../../crates/client/src/worth.rs"]
#[allow(dead_code, unreachable_pub, reason = "the replica's")]
mod worth;

use std::collections::BTreeMap;
use std::time::Duration;

use kvplane_core::{EngineKind, PlaceSeed, StateDigest, StreamId};
use kvplane_fuzz::{Clock, Input};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_stream::{JournalOptions, Limits, MirrorSnapshot, Misfit, Recorder, Semantics};
use libfuzzer_sys::fuzz_target;
use replica::{Replica, ReplicaOptions};

const MAX_BATCHES: usize = 8;
const MAX_WINDOW: usize = 64 << 10;
const MAX_STATE: usize = 256 << 10;
/// One message may be larger than what is left.
const SLACK: usize = 256 << 10;

/// What the messages add up to.
#[derive(Debug, Default, Clone)]
struct Held(BTreeMap<(usize, u64), u32>);

const MEDIA: [Option<&str>; 4] = [None, Some("GPU"), Some("CPU"), Some("")];
const GROUPS: [Option<u32>; 3] = [None, Some(0), Some(1)];
const PLACES: usize = MEDIA.len() * GROUPS.len();

fn place(input: &mut Input<'_>) -> (usize, proto::Place) {
    let at = input.below(PLACES);
    let told = proto::Place {
        tier: input.number() as i32 % 6,
        medium: MEDIA[at % MEDIA.len()].map(str::to_owned),
        group: GROUPS[at / MEDIA.len()],
        spec_kind: input
            .pick(&[None, Some("full_attention"), Some("sliding_window"), Some("?")])
            .map(str::to_owned),
        sliding_window: (input.below(4) == 0).then(|| input.number32()),
        ..proto::Place::default()
    };
    (at, told)
}

impl Held {
    fn set(&mut self, place: usize, hash: u64, copies: u32) {
        if copies == 0 {
            self.0.remove(&(place, hash));
        } else {
            self.0.insert((place, hash), copies);
        }
    }

    fn digest(&self) -> StateDigest {
        let mut digest = StateDigest::default();
        for (&(place, hash), &copies) in &self.0 {
            let seed = PlaceSeed::new(MEDIA[place % MEDIA.len()], None, None, GROUPS[place / MEDIA.len()]);
            digest.change(seed, hash, 0, copies);
        }
        digest
    }
}

fn hash(input: &mut Input<'_>) -> u64 {
    if input.below(32) == 0 { input.number() } else { u64::from(input.byte() % 24) }
}

fn block(input: &mut Input<'_>) -> proto::Block {
    let tokens = input.pick(&[0_u32, 4, 4, 4, 4, 3, 8]);
    proto::Block {
        hash: hash(input),
        digest: if input.below(8) == 0 { vec![input.byte(); 32].into() } else { Default::default() },
        copies: if input.below(8) == 0 { input.number32() } else { 1 },
        parent: input.flag().then(|| hash(input)),
        root: input.below(4) == 0,
        token_ids: (0..tokens).collect(),
        first_position: input.flag().then(|| input.number32()),
        content_hash: input.flag().then(|| input.number()),
        extra_keys: (0..input.below(16) / 15)
            .map(|_| proto::ExtraKey { key: Some(proto::extra_key::Key::Number(input.number() as i64)) })
            .collect(),
        ..proto::Block::default()
    }
}

fn stored(input: &mut Input<'_>, held: &mut Held, in_snapshot: bool) -> proto::Stored {
    let (at, told) = place(input);
    let blocks: Vec<proto::Block> = (0..input.below(5)).map(|_| block(input)).collect();
    let cause = if input.below(4) == 0 { input.below(4) as i32 } else { 0 };
    let nowhere = in_snapshot && input.below(8) == 0;
    if cause != proto::StoreCause::Attached as i32 && !nowhere {
        for block in &blocks {
            held.set(at, block.hash, block.copies);
        }
    }
    proto::Stored {
        cause,
        place: (!nowhere).then_some(told),
        blocks,
        layout: if input.below(4) == 0 { input.below(4) as i32 } else { 0 },
        block_size: if input.below(8) == 0 { input.number32() } else { 4 },
        parent_hash: input.flag().then(|| hash(input)),
        span_token_ids: (0..input.below(16) as u32 / 12).collect(),
        lora_id: (input.below(8) == 0).then(|| input.number() as i64),
        lora_name: (input.below(8) == 0).then(|| "adapter".to_owned()),
        cache_salt: (input.below(8) == 0).then(|| "salt".to_owned()),
        bigrams: input.below(16) == 0,
        ..proto::Stored::default()
    }
}

fn event(input: &mut Input<'_>, held: &mut Held) -> proto::Event {
    use proto::event::Kind;
    let kind = match input.below(12) {
        0 | 1 => {
            let (at, told) = place(input);
            let blocks = (0..input.below(5)).map(|_| {
                let (hash, copies) = (hash(input), input.number32() % 3);
                held.set(at, hash, copies);
                proto::RemovedBlock { hash, copies }
            });
            Kind::Removed(proto::Removed { blocks: blocks.collect(), place: Some(told) })
        }
        2 => {
            let places = (0..input.below(3)).map(|_| {
                let (at, told) = place(input);
                held.0.retain(|&(place, _), _| place != at);
                told
            });
            Kind::Cleared(proto::Cleared { places: places.collect() })
        }
        3 => {
            held.0.clear();
            let reason = input.pick(&["gap", "undecodable", "budget", "no such reason"]);
            Kind::Dropped(proto::Dropped { reason: reason.to_owned() })
        }
        _ => Kind::Stored(stored(input, held, false)),
    };
    proto::Event { kind: (input.below(64) != 0).then_some(kind) }
}

fn trust(input: &mut Input<'_>) -> proto::Trust {
    let reason = input.pick(&["gap", "late_join", "unheard", "no such reason"]);
    let degradation = proto::Degradation { reason: reason.to_owned(), since_ms: input.number() };
    proto::Trust { level: input.below(6) as i32, degradations: vec![degradation; input.below(3)] }
}

fn sent_digest(digest: StateDigest, input: &mut Input<'_>) -> Option<proto::Digest> {
    let (low, high) = digest.parts();
    match input.below(32) {
        0 => None,
        1 => Some(proto::Digest { low: low ^ 1, high }),
        _ => Some(proto::Digest { low, high }),
    }
}

/// The mirror, as a link feeds it.
struct Mirror {
    recorder: Recorder,
    loading: Option<MirrorSnapshot>,
    semantics: Semantics,
    limits: Limits,
}

impl Mirror {
    fn apply(&mut self, clock: &Clock, message: proto::SubscribeResponse) -> Result<(), Misfit> {
        let now = clock.now();
        let cursor = convert::cursor(&message);
        let applied = match message.item {
            Some(Item::Reset(_)) => {
                self.loading = Some(MirrorSnapshot::new(cursor, self.limits, self.semantics));
                if self.recorder.resume().is_some_and(|ours| ours.epoch != cursor.epoch) {
                    self.recorder.void(now, None);
                }
                return Ok(());
            }
            Some(Item::Snapshot(chunk)) => {
                let Some(mut loading) = self.loading.take() else { return Err(Misfit::Order) };
                match convert::chunk(chunk).and_then(|chunk| loading.chunk(cursor, chunk)) {
                    Ok(false) => self.loading = Some(loading),
                    Ok(true) => {
                        if let Some(state) = loading.finish() {
                            self.recorder.load(now, state);
                        }
                    }
                    Err(misfit) => {
                        self.recorder.void(now, Some(misfit));
                        return Err(misfit);
                    }
                }
                return Ok(());
            }
            Some(Item::Batch(_)) if self.loading.take().is_some() => Err(Misfit::Order),
            Some(Item::Batch(batch)) => convert::entry(cursor, batch),
            Some(Item::Standing(continuity)) => {
                if let Some(continuity) = kvplane_proto::continuity(continuity.continuity) {
                    self.recorder.mirror_continuity(now, continuity);
                }
                return Ok(());
            }
            Some(Item::Gone(_)) | None => return Ok(()),
        };
        match applied {
            Ok(entry) => self.recorder.mirrored(now, entry),
            Err(misfit) => {
                self.recorder.void(now, Some(misfit));
                Err(misfit)
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut clock = Clock::default();
    let kinds = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Tokenspeed, EngineKind::Trtllm];
    let semantics = Semantics::of(input.pick(&kinds));
    let limits = Limits { max_bytes: MAX_STATE, max_waiting: 16 };
    let keep = JournalOptions {
        max_batches: MAX_BATCHES,
        max_bytes: MAX_WINDOW,
        state: limits,
        semantics,
        transitions_only: input.flag(),
        ..JournalOptions::default()
    };
    let recorder = Recorder::of_mirror(Duration::from_secs(10), keep, 0, clock.now());
    let mut mirror = Mirror { recorder, loading: None, semantics, limits };
    let mut replica = Replica::new(StreamId::new("e".into(), 0), ReplicaOptions { keep_tokens: true });
    let (mut held, mut gathered) = (Held::default(), Held::default());
    let (mut epoch, mut sequence, mut last_event_id, mut next_chunk) = (1_u64, 1_u64, 0_u64, 0_u32);
    // Most inputs begin as a link does.
    let mut scripted = if input.below(8) == 0 { 2 } else { 0 };
    while !input.is_empty() {
        let step = match scripted {
            0 => 0,
            1 => 2,
            _ => input.below(16),
        };
        scripted += 1;
        let before = (mirror.recorder.resume(), sequence);
        let item = match step {
            0 => {
                if input.below(8) == 0 {
                    (epoch, sequence) = (input.extreme(), input.extreme());
                }
                gathered = Held::default();
                next_chunk = 0;
                Some(Item::Reset(proto::Reset::default()))
            }
            1 | 2 => {
                let stores = (0..input.below(4)).map(|_| stored(&mut input, &mut gathered, true)).collect();
                let last = step == 2;
                let index = if input.below(32) == 0 { input.number32() } else { next_chunk };
                next_chunk = next_chunk.wrapping_add(1);
                if last {
                    last_event_id = if input.below(8) == 0 { input.extreme() } else { 0 };
                    held = gathered.clone();
                }
                Some(Item::Snapshot(proto::SnapshotChunk {
                    index,
                    last,
                    stored: stores,
                    trust: (input.below(16) != 0).then(|| trust(&mut input)),
                    continuity: input.below(6) as i32,
                    engine_sequence: input.flag().then(|| input.number()),
                    known_from: input.flag().then(|| input.number()),
                    digest: sent_digest(gathered.digest(), &mut input),
                    last_event_id,
                    block_size: input.pick(&[None, Some(4), Some(4), Some(0), Some(u32::MAX)]),
                    groups: (0..input.below(4))
                        .map(|_| proto::CacheGroup {
                            group: input.pick(&GROUPS),
                            spec_kind: Some("sliding_window".to_owned()),
                            sliding_window: input.flag().then(|| input.number32()),
                            block_size: input.flag().then(|| input.number32()),
                            block_size_sure: input.flag(),
                            ..proto::CacheGroup::default()
                        })
                        .collect(),
                    units: (0..input.below(6)).map(|_| input.number32()).collect(),
                    drops_last: input.flag(),
                    partial_blocks: input.flag(),
                    ..proto::SnapshotChunk::default()
                }))
            }
            3 => Some(Item::Standing(proto::Standing {
                continuity: input.below(6) as i32,
                ..Default::default()
            })),
            4 => {
                clock.pass(Duration::from_millis(input.number() & 0xffff));
                mirror.recorder.tick(clock.now());
                match input.below(4) {
                    0 => mirror.recorder.lost(clock.now()),
                    1 => {
                        let at = mirror.recorder.ledger().cursor();
                        mirror.recorder.reached(clock.now(), at);
                    }
                    _ => {}
                }
                None
            }
            _ => {
                sequence = if input.below(32) == 0 { input.number() } else { sequence.wrapping_add(1) };
                let events: Vec<proto::Event> =
                    (0..=input.below(3)).map(|_| event(&mut input, &mut held)).collect();
                last_event_id = last_event_id.wrapping_add(input.number());
                Some(Item::Batch(proto::Batch {
                    engine_sequence: input.flag().then(|| input.number()),
                    timestamp: f64::from_bits(input.number()),
                    events,
                    trust: input.flag().then(|| trust(&mut input)),
                    continuity: input.below(6) as i32,
                    last_event_id,
                    digest: sent_digest(held.digest(), &mut input),
                    known_from: input.flag().then(|| input.number()),
                    units: (0..input.below(6)).map(|_| input.number32()).collect(),
                    ..proto::Batch::default()
                }))
            }
        };
        let loaded = matches!(&item, Some(Item::Snapshot(chunk)) if chunk.last);
        let message = proto::SubscribeResponse { engine: "e".to_owned(), rank: 0, epoch, sequence, item };
        let copied = replica.apply(message.clone());
        let mirrored = mirror.apply(&clock, message);
        drop(mirror.recorder.take_happenings());
        if (step > 4 || loaded) && mirrored.is_ok() {
            let ledger = mirror.recorder.ledger();
            assert_eq!(ledger.state().digest(), held.digest());
            assert_eq!(ledger.cursor().sequence, sequence, "{before:?}");
            if copied.is_ok() {
                assert_eq!(replica.digest(), held.digest());
            }
        }
        if mirrored.is_err() {
            // As a link does: it begins anew with a snapshot.
            scripted = scripted.min(if input.flag() { 0 } else { 2 });
            held = Held::default();
            last_event_id = 0;
        }
        let ledger = mirror.recorder.ledger_mut();
        drop(ledger.take_retired());
        assert!(ledger.window_entries() <= MAX_BATCHES, "{} entries", ledger.window_entries());
        assert!(ledger.window_bytes() <= MAX_WINDOW + SLACK, "{} bytes", ledger.window_bytes());
        assert!(ledger.state().bytes() <= MAX_STATE + SLACK, "{} bytes", ledger.state().bytes());
        let cursor = ledger.cursor();
        drop(ledger.read_after(cursor, MAX_BATCHES));
        drop(ledger.transitions_from(input.number()));
        let mut builder = ledger.begin_snapshot();
        while !builder.gather() {
            if ledger.step_snapshot(&mut builder, 8).is_err() {
                break;
            }
        }
        drop(builder);
        assert!(replica.iter().count() <= 1 << 16);
    }
});
