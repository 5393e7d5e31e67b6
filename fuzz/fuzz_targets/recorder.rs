//! Any batches under any numbers, with the meaning that each kind of engine gives them, between losses, replays and
//! restarts: the recorder stays within its bounds, and can be read, pictured and copied at every step.

#![no_main]

#[path = "../../crates/stream/tests/it/copy.rs"]
#[allow(dead_code, reason = "shared with the models")]
mod copy;

use std::time::Duration;

use bytes::Bytes;
use copy::Copy;
use kvplane_core::{Cursor, EngineKind};
use kvplane_fuzz::{Clock, Input};
use kvplane_stream::{
    Ask, Duplicates, JournalOptions, Limits, OnGap, Options, Recorder, Semantics, SnapshotBuilder,
};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use libfuzzer_sys::fuzz_target;

const MAX_BATCHES: usize = 8;
const MAX_WINDOW: usize = 64 << 10;
const MAX_STATE: usize = 256 << 10;
const MAX_WAITING: usize = 16;
/// One entry may be larger than the window; a batch has at most so many bytes here, and tokens take some
/// times the room.
const MAX_FRAME: usize = 4096;
const SLACK: usize = 64 * MAX_FRAME;

const KINDS: [(EngineKind, Profile); 5] = [
    (EngineKind::Vllm, Profile::Vllm0_32),
    (EngineKind::Sglang, Profile::Sglang0_5_22),
    (EngineKind::Sglang, Profile::Sglang0_4_6),
    (EngineKind::Tokenspeed, Profile::Tokenspeed0_1_1),
    (EngineKind::Trtllm, Profile::TrtllmZmq),
];

fn hash(input: &mut Input<'_>) -> OwnedHash {
    match input.byte() {
        byte @ 0..=199 => OwnedHash::Unsigned(u64::from(byte % 24)),
        200..=219 => OwnedHash::Signed(-(i64::from(input.byte()) % 8)),
        220..=239 => OwnedHash::Bytes(vec![input.byte() % 4; 32]),
        _ => OwnedHash::Hex(vec![input.byte() % 4; 32]),
    }
}

fn text(input: &mut Input<'_>, words: &[&str]) -> Option<String> {
    let at = input.below(words.len() + 1);
    words.get(at).map(|word| (*word).to_owned())
}

fn event(input: &mut Input<'_>) -> OwnedEvent {
    let hashes = |input: &mut Input<'_>| (0..input.below(5)).map(|_| hash(input)).collect::<Vec<_>>();
    let media = ["GPU", "CPU", "CPU_PINNED", "DISK", "0", "1", "gpu", "nowhere"];
    let groups = [None, Some(0), Some(1), Some(2), Some(u32::MAX)];
    match input.below(8) {
        0 => OwnedEvent::Cleared,
        1 | 2 => OwnedEvent::Removed(OwnedRemoved {
            block_hashes: hashes(input),
            medium: text(input, &media),
            group: input.pick(&groups),
            ..OwnedRemoved::default()
        }),
        _ => {
            let block_hashes = hashes(input);
            let block_size = match input.below(16) {
                0 => input.number32(),
                1 => 0,
                2 => 3,
                _ => 4,
            };
            let short = if input.below(8) == 0 { input.below(6) } else { 0 };
            let tokens = (block_hashes.len() * 4).saturating_sub(short);
            let first = u32::from(input.byte());
            let keys = input.flag().then(|| {
                let key = |input: &mut Input<'_>| match input.below(4) {
                    0 => OwnedExtraKey::Text("salt".to_owned()),
                    1 => OwnedExtraKey::Integer(input.number() as i64),
                    2 => OwnedExtraKey::Bytes(vec![input.byte(); 3]),
                    _ => OwnedExtraKey::Multimodal("image".to_owned(), input.number() as i64),
                };
                let blocks = if input.below(8) == 0 { input.below(4) } else { block_hashes.len() };
                (0..blocks).map(|_| input.flag().then(|| vec![key(input)])).collect()
            });
            OwnedEvent::Stored(OwnedStored {
                parent: input.flag().then(|| hash(input)),
                token_ids: (0..tokens as u32).map(|at| first.wrapping_add(at)).collect(),
                bigrams: input.below(16) == 0,
                block_size,
                lora_id: (input.below(8) == 0).then(|| input.number() as i64),
                lora_name: text(input, &["adapter"]),
                cache_salt: text(input, &["salt"]),
                medium: text(input, &media),
                extra_keys: keys,
                group: input.pick(&groups),
                spec_kind: text(input, &["full_attention", "sliding_window", "mamba", "other"]),
                sliding_window: (input.below(4) == 0).then(|| input.number32()),
                block_hashes,
                ..OwnedStored::default()
            })
        }
    }
}

fn payload(input: &mut Input<'_>, profile: Profile) -> Bytes {
    if input.below(8) == 0 {
        return Bytes::copy_from_slice(input.bytes(MAX_FRAME));
    }
    let events: Vec<OwnedEvent> = (0..=input.below(4)).map(|_| event(input)).collect();
    let rank = if input.below(16) == 0 { input.number32() } else { 0 };
    encode_batch(profile, f64::from(input.byte()), Some(rank), &events).into()
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut clock = Clock::default();
    let (kind, profile) = input.pick(&KINDS);
    // The copy knows of no options but the kind's own.
    let plain = input.flag();
    let mut keep = JournalOptions {
        max_batches: MAX_BATCHES,
        max_bytes: MAX_WINDOW,
        semantics: Semantics::of(kind),
        ..JournalOptions::default()
    };
    if !plain {
        keep.state = Limits { max_bytes: MAX_STATE, max_waiting: MAX_WAITING };
        keep.duplicates = input.pick(&[Duplicates::Count, Duplicates::Presence]);
        keep.block_size = input.pick(&[None, Some(4), Some(1), Some(u32::MAX)]);
        keep.offload_chunk = input.flag().then(|| input.number32());
        keep.eagle = input.flag();
        keep.relayed = input.flag();
        keep.transitions_only = input.flag();
    }
    let follow = Options {
        replay: input.flag(),
        on_gap: input.pick(&[OnGap::Drop, OnGap::Keep]),
        hold_batches: 4,
        hold_bytes: 8 << 10,
        ..Options::default()
    };
    let mut recorder = Recorder::new(follow, keep, 0, clock.now());
    let mut copy = plain.then(|| Copy::new(kind));
    recorder.connected(clock.now());
    let (mut next, mut replay, mut hint) = (0_u64, 0, 0);
    let mut picture: Option<SnapshotBuilder> = None;
    while !input.is_empty() {
        let now = clock.now();
        match input.below(24) {
            0..12 => {
                let payload = payload(&mut input, profile);
                recorder.live(now, next, payload);
                next = next.wrapping_add(1);
            }
            12 => next = next.wrapping_add(u64::from(input.byte())),
            13 => next = input.number(),
            14 => recorder.replayed(now, replay, input.number(), payload(&mut input, profile)),
            15 => recorder.replay_ended(now, replay, input.flag()),
            16 => recorder.hint(
                now,
                hint,
                input.flag().then(|| input.number()),
                input.flag().then(|| input.number()),
            ),
            17 => recorder.disconnected(now),
            18 => recorder.connected(now),
            19 => clock.pass(Duration::from_millis(input.number() & 0xffff)),
            20 => drop(recorder.describe_block_size(input.number32(), now)),
            21 => drop(recorder.describe_adapters(input.flag(), now)),
            22 => {
                if let Ok(flush) = recorder.begin_flush() {
                    recorder.flush_accepted(flush, now);
                    recorder.live(now, next, payload(&mut input, profile));
                    next = next.wrapping_add(1);
                    recorder.flush_expired(flush, now);
                    recorder.end_flush(flush, now);
                }
            }
            _ => picture = Some(recorder.ledger_mut().begin_snapshot()),
        }
        recorder.tick(clock.now());
        for ask in recorder.take_asks() {
            match ask {
                Ask::Replay { id, .. } => replay = id,
                Ask::Hint { id } => hint = id,
                Ask::Resubscribe => {}
            }
        }
        drop(recorder.take_happenings());
        let ledger = recorder.ledger_mut();
        if let Some(mut builder) = picture.take() {
            let stepped = ledger.step_snapshot(&mut builder, 2);
            if builder.gather() {
                let snapshot = builder.finish();
                assert!(snapshot.parents_first().len() <= snapshot.image.blocks.len());
            } else if stepped.is_ok() {
                picture = Some(builder);
            }
        }
        drop(ledger.take_retired());
        assert!(ledger.window_entries() <= MAX_BATCHES, "{} entries", ledger.window_entries());
        assert!(ledger.window_bytes() <= MAX_WINDOW + SLACK, "{} bytes", ledger.window_bytes());
        if !plain {
            assert!(ledger.state().bytes() <= MAX_STATE + SLACK, "{} bytes", ledger.state().bytes());
            assert!(ledger.state().waiting() <= MAX_WAITING, "{} wait", ledger.state().waiting());
        }
        let cursor = ledger.cursor();
        let back = Cursor { sequence: cursor.sequence.saturating_sub(input.number()), ..cursor };
        if let Ok(entries) = ledger.read_after(back, MAX_BATCHES) {
            assert!(entries.len() <= MAX_BATCHES);
        }
        if let Some(copy) = &mut copy {
            copy.follow(&mut recorder);
        }
    }
});
