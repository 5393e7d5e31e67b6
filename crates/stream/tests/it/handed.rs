//! Batches that the engine's own process hands over: numbers, gaps, and what subscribers get of them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::time::Duration;

use kvplane_core::{Reason, Trust};
use kvplane_stream::{
    Entry, HandedOptions, Happening, JournalOptions, NotTaken, Now, Numbering, OnGap, Recorder, Recovery,
    Transition, Worker,
};
use kvplane_wire::dynamo::{KvCacheEventData, WorkerKvQueryResponse as Answer};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{DecodeError, OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored, RejectReason};
use serde_json::Value;

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };
const WORKER: Worker = Worker { id: 7, rank: 0 };

fn recorder() -> Recorder {
    recorder_with(HandedOptions::default(), JournalOptions::default())
}

fn recorder_with(follow: HandedOptions, keep: JournalOptions) -> Recorder {
    Recorder::of_hand_over(follow, keep, 0, NOW)
}

fn store(hash: u64) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        token_ids: vec![hash as u32; 2],
        block_size: 2,
        ..OwnedStored::default()
    })
}

fn remove(hash: u64) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        ..OwnedRemoved::default()
    })
}

fn ask(recorder: &Recorder, start: u64) -> Option<Answer> {
    let recovery = Recovery { start: Some(start), end: None };
    recovery.from_window(WORKER, Numbering::Batches, &recorder.ledger().window())
}

/// The numbers of the entries from `start` on, with `c` for a clear, and the number of blocks of anything
/// else.
fn reported(recorder: &Recorder, start: u64) -> Vec<(u64, String)> {
    let Some(Answer::Events { events, .. }) = ask(recorder, start) else { panic!("not in the window") };
    let reported = |data: &KvCacheEventData| match data {
        KvCacheEventData::Stored(stored) => format!("+{}", stored.blocks.len()),
        KvCacheEventData::Removed(removed) => format!("-{}", removed.block_hashes.len()),
        KvCacheEventData::Cleared => "c".to_owned(),
    };
    events.iter().map(|event| (event.event.event_id, reported(&event.event.data))).collect()
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|&(number, what)| (number, what.to_owned())).collect()
}

#[test]
fn every_number_is_reported_and_numbers_follow_one_another() {
    let mut recorder = recorder();
    assert_eq!(recorder.hand_events(NOW, Some(5), &[store(1)]), Ok(5));
    assert_eq!(recorder.hand_events(NOW, None, &[store(1)]), Ok(6));
    assert_eq!(recorder.hand_events(NOW, Some(7), &[remove(1), store(2), OwnedEvent::Cleared]), Ok(7));
    assert_eq!(reported(&recorder, 5), pairs(&[(5, "+1"), (6, "-0"), (7, "+1"), (7, "c")]));
    assert_eq!(reported(&recorder, 7), pairs(&[(7, "+1"), (7, "c")]));
    assert!(matches!(ask(&recorder, 8), Some(Answer::TooNew { newest_available: 7, .. })));
    for foreign in [0, 4, 9, u64::MAX] {
        assert_eq!(ask(&recorder, foreign), None, "{foreign}");
    }
    assert_eq!(recorder.ledger().trust().level(), Trust::Exact);
}

#[test]
fn a_gap_stands_under_the_last_number_that_is_missing() {
    let mut recorder = recorder();
    for number in [0, 1, 6] {
        recorder.hand_events(NOW, Some(number), &[store(number + 1)]).unwrap();
    }
    assert_eq!(reported(&recorder, 1), pairs(&[(1, "+1"), (5, "c"), (6, "+1")]));
    assert_eq!(reported(&recorder, 3), pairs(&[(5, "c"), (6, "+1")]));
    assert_eq!(reported(&recorder, 6), pairs(&[(6, "c"), (6, "+1")]));
    assert!(recorder.ledger().trust().has(Reason::Gap));
    assert_eq!((recorder.counters().gaps, recorder.ledger().known_from()), (1, Some(6)));

    let keep = HandedOptions { on_gap: OnGap::Keep, ..HandedOptions::default() };
    let mut keeping = recorder_with(keep, JournalOptions::default());
    for number in [0, 6] {
        keeping.hand_events(NOW, Some(number), &[store(number + 1)]).unwrap();
    }
    assert_eq!(reported(&keeping, 0), pairs(&[(0, "+1"), (6, "+1")]));
    assert_eq!(keeping.ledger().trust().level(), Trust::Unsound);
}

#[test]
fn what_a_gap_did_is_never_left_out() {
    for max_batches in 1..8 {
        let keep = JournalOptions { max_batches, ..JournalOptions::default() };
        let mut recorder = recorder_with(HandedOptions::default(), keep);
        for number in [0, 1, 2, 5, 6, 9, 10, 11] {
            recorder.hand_events(NOW, Some(number), &[store(number + 1)]).unwrap();
            let cleared = |start| reported(&recorder, start).iter().any(|(_, what)| what == "c");
            match ask(&recorder, number) {
                // There is no room for the batch and what came with it.
                None => assert!(max_batches <= 2, "{number}"),
                Some(_) => assert_eq!(cleared(number), [5, 9].contains(&number), "{number}"),
            }
            let in_window = |start: u64| start <= number && ask(&recorder, start).is_some();
            for start in (0..=number).filter(|&start| in_window(start)) {
                let gaps = [5, 9].iter().filter(|&&after| start <= after && after <= number).count();
                let reported = reported(&recorder, start);
                assert_eq!(
                    reported.iter().filter(|(_, what)| what == "c").count(),
                    gaps,
                    "{start} {reported:?}"
                );
            }
        }
    }
}

#[test]
fn a_batch_of_another_rank_is_recorded_and_reported_once() {
    let mut recorder = recorder();
    let mut foreign = 0;
    for (number, rank) in [Some(0), Some(3), None, Some(3), Some(4)].into_iter().enumerate() {
        let frame = encode_batch(Profile::Vllm0_32, 1.0, rank, &[store(number as u64 + 1)]);
        recorder.hand_frame(NOW, Some(number as u64), &frame).unwrap();
        let happened = recorder.take_happenings();
        foreign += happened.iter().filter(|one| matches!(one, Happening::ForeignRank(3))).count();
    }
    assert_eq!((foreign, recorder.ledger().counters().foreign_rank), (1, 3));
    assert_eq!(recorder.ledger().trust().level(), Trust::Unsound, "it is of another cache");
}

#[test]
fn what_is_not_taken_changes_nothing() {
    let mut recorder = recorder();
    recorder.hand_events(NOW, Some(3), &[store(1)]).unwrap();
    let before = (recorder.ledger().cursor(), recorder.ledger().state().digest());
    let good = encode_batch(Profile::Vllm0_32, 1.0, None, &[store(2)]);
    let torn = &good[..good.len() - 1];
    let unfit = OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(9)],
        token_ids: vec![1],
        block_size: 2,
        ..OwnedStored::default()
    });
    let passed = |number| Err(NotTaken::Passed { number, last: 3 });
    assert_eq!(recorder.hand_frame(NOW, Some(4), torn), Err(DecodeError::Truncated.into()));
    assert_eq!(recorder.hand_frame(NOW, Some(3), &good), passed(3));
    assert_eq!(recorder.hand_events(NOW, Some(0), &[store(2)]), passed(0));
    let refused = recorder.hand_events(NOW, Some(4), &[store(2), unfit]);
    assert_eq!(refused, Err(NotTaken::Unfit(RejectReason::TooFewTokens)));
    assert_eq!((recorder.ledger().cursor(), recorder.ledger().state().digest()), before);
    assert_eq!((recorder.counters().undecodable, recorder.counters().refused), (2, 2));

    recorder.hand_events(NOW, Some(u64::MAX), &[store(2)]).unwrap();
    assert_eq!(recorder.hand_events(NOW, None, &[store(3)]), Err(NotTaken::NoNumber));
    let mut elsewhere = Recorder::new(kvplane_stream::Options::default(), JournalOptions::default(), 0, NOW);
    assert_eq!(elsewhere.hand_frame(NOW, Some(0), &good), Err(NotTaken::Foreign));
}

#[test]
fn who_was_not_there_from_the_start_says_so() {
    let frame = encode_batch(Profile::Vllm0_32, 1.0, None, &[store(2)]);
    let late = HandedOptions { from_start: false, ..HandedOptions::default() };
    let mut by_setting = recorder_with(late, JournalOptions::default());
    by_setting.hand_events(NOW, Some(4), &[store(1)]).unwrap();
    let mut by_number = recorder();
    by_number.hand_frame(NOW, Some(4), &frame).unwrap();
    for recorder in [&by_setting, &by_number] {
        assert!(recorder.ledger().trust().has(Reason::History));
        assert_eq!(recorder.ledger().known_from(), Some(4));
    }
    for first in [Some(0), None] {
        let mut from_start = recorder();
        from_start.hand_frame(NOW, first, &frame).unwrap();
        assert_eq!(from_start.ledger().trust().level(), Trust::Exact);
    }
}

/// What entries say of blocks, without tokens.
fn without_tokens(entry: &Entry) -> String {
    let mut transitions = entry.transitions.clone();
    for transition in &mut transitions {
        if let Transition::Stored { blocks, .. } = transition {
            for block in blocks {
                block.tokens = kvplane_stream::Tokens::default();
            }
        }
    }
    format!("{:?} {:?} {:?} {:?}", entry.engine_sequence, entry.digest, transitions, entry.marks)
}

#[test]
fn entries_without_changes_say_the_same_of_every_capture() {
    for name in ["vllm-0.32.0-hybrid-oracle", "vllm-0.32.0", "sglang-0.5.23"] {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../wire/tests/captures/{name}.jsonl"));
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let [mut whole, mut short] = [false, true].map(|transitions_only| {
            let keep = JournalOptions { transitions_only, ..JournalOptions::default() };
            let mut recorder = recorder_with(HandedOptions::default(), keep);
            recorder.ledger_mut().keep_fresh();
            recorder
        });
        for line in lines.filter(|line| line["kind"] == "live") {
            let digits = line["payload_hex"].as_str().unwrap().as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let payload: Vec<u8> = digits.map(byte).collect();
            let [whole, short] = [&mut whole, &mut short].map(|recorder| {
                recorder.hand_frame(NOW, line["seq"].as_u64(), &payload).unwrap();
                recorder.ledger_mut().take_fresh()
            });
            assert!(short.iter().all(|entry| entry.changes.is_empty()));
            let reported = |entries: &[std::sync::Arc<Entry>]| -> Vec<_> {
                entries.iter().map(|entry| without_tokens(entry)).collect()
            };
            assert_eq!(reported(&short), reported(&whole), "{name}");
        }
        assert!(short.ledger().window_bytes() * 2 < whole.ledger().window_bytes(), "{name}");
    }
}

#[test]
fn an_input_of_another_kind_of_source_is_counted_and_reported() {
    let mut recorder = recorder();
    recorder.hand_events(NOW, None, &[store(1)]).unwrap();
    recorder.take_happenings();
    let before = recorder.continuity();
    recorder.connected(NOW);
    recorder.drain_answered(NOW, 1, 0);
    recorder.relay_subscribed(NOW, 0);
    recorder.lost(NOW);
    recorder.offer_replay(true);
    assert_eq!(recorder.counters().misdirected, 5);
    let reported = recorder.take_happenings();
    assert_eq!(reported[..2], [Happening::Misdirected("published"), Happening::Misdirected("drained")]);
    // Neither do they, nor the silence of a source that there is none of, change anything.
    recorder.silent(NOW);
    recorder.proven(NOW);
    assert_eq!((recorder.continuity(), recorder.counters().silences), (before, 0));
}
