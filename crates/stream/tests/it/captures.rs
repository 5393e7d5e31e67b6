//! What real engines published, against what they themselves then reported as cached.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::reader::Reader;
use bytes::Bytes;
use kvplane_core::{EngineKind, Reason, Tier, Trust};
use kvplane_stream::{JournalOptions, Ledger, Now, Options, Recorder, Semantics, Snapshot};
use serde_json::Value;

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

fn lines(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn payload(line: &Value) -> Bytes {
    let hex = line["payload_hex"].as_str().unwrap().as_bytes();
    hex.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn recorder() -> Recorder {
    recorder_of(EngineKind::Vllm)
}

fn recorder_of(kind: EngineKind) -> Recorder {
    let follow = Options { replay: false, ..Options::default() };
    let keep = JournalOptions { semantics: Semantics::of(kind), ..JournalOptions::default() };
    let mut recorder = Recorder::new(follow, keep, 0, NOW);
    recorder.connected(NOW);
    recorder
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    let mut builder = ledger.begin_snapshot();
    while !builder.gather() {
        ledger.step_snapshot(&mut builder, 1_000).unwrap();
    }
    builder.finish()
}

/// How many requests of a recording took from the cache what was predicted for them, of how many; and what is
/// left of trust.
fn predicted(name: &str) -> (usize, usize, Trust) {
    let mut recorder = recorder();
    recorder.ledger_mut().keep_fresh();
    let mut reader = Reader::default();
    let (mut right, mut asked) = (0, 0);
    // A truth is the state before its own step, whose live lines come first: they wait until it has been
    // asked.
    let mut waiting: Vec<Value> = Vec::new();
    for line in lines(name) {
        match line["kind"].as_str().unwrap() {
            "live" => waiting.push(line),
            "truth" => {
                if let (Some(prompt), Some(cached)) =
                    (line["prompt_token_ids"].as_array(), line["cached_tokens"].as_u64())
                {
                    let prompt: Vec<u32> = prompt.iter().map(|t| t.as_u64().unwrap() as u32).collect();
                    let predicted = reader.cached(&prompt, line["cache_salt"].as_str(), Tier::Device);
                    asked += 1;
                    right += usize::from(predicted == cached as usize);
                }
                for live in waiting.drain(..) {
                    recorder.live(NOW, live["seq"].as_u64().unwrap(), payload(&live));
                    reader.follow(&recorder.ledger_mut().take_fresh());
                    reader.assert_current(recorder.ledger());
                }
            }
            _ => {}
        }
    }
    (right, asked, recorder.ledger().trust().level())
}

#[test]
fn the_engine_serves_from_its_cache_what_we_predict() {
    // The one miss is a reset that the engine had not published yet.
    assert_eq!(predicted("vllm-0.32.0-oracle.jsonl"), (128, 129, Trust::Exact));
}

#[test]
fn a_hybrid_engine_serves_from_its_cache_what_we_predict() {
    assert_eq!(predicted("vllm-0.32.0-hybrid-oracle.jsonl"), (58, 58, Trust::Exact));
}

#[test]
fn a_late_joiner_learns_from_the_ring_what_a_listener_learnt_live() {
    for (kind, name) in [
        (EngineKind::Vllm, "vllm-0.32.0.jsonl"),
        (EngineKind::Vllm, "vllm-0.32.0-oracle.jsonl"),
        (EngineKind::Vllm, "vllm-0.32.0-hybrid-oracle.jsonl"),
        (EngineKind::Sglang, "sglang-0.5.23.jsonl"),
    ] {
        let all = lines(name);
        let mut live = recorder_of(kind);
        for line in all.iter().filter(|line| line["kind"] == "live") {
            live.live(NOW, line["seq"].as_u64().unwrap(), payload(line));
        }
        let follow = Options { replay: true, ..Options::default() };
        let keep = JournalOptions { semantics: Semantics::of(kind), ..JournalOptions::default() };
        let mut late = Recorder::new(follow, keep, 0, NOW);
        late.connected(NOW);
        let id = late
            .take_asks()
            .into_iter()
            .find_map(|ask| match ask {
                kvplane_stream::Ask::Replay { id, from: 0 } => Some(id),
                _ => None,
            })
            .unwrap();
        let replay = all.iter().filter(|line| line["kind"] == "replay" && line["start"] == 0);
        for line in replay.filter(|line| line["payload_hex"].as_str().is_some_and(|hex| !hex.is_empty())) {
            late.replayed(NOW, id, line["seq"].as_u64().unwrap(), payload(line));
        }
        late.replay_ended(NOW, id, true);
        for recorder in [&live, &late] {
            assert_eq!(recorder.ledger().trust().level(), Trust::Exact, "{name}");
            assert_eq!(recorder.ledger().counters().rejected, [], "{name}");
        }
        let held = |recorder: &Recorder| -> BTreeMap<(Option<u32>, u64), u32> {
            let residencies = recorder.ledger().state().residencies();
            residencies.map(|(place, hash, copies)| ((place.group, hash), copies)).collect()
        };
        assert!(!held(&live).is_empty());
        assert_eq!(held(&late), held(&live), "{name}");
        assert_eq!(late.last_sequence(), live.last_sequence(), "{name}");
    }
}

#[test]
fn a_hash_that_two_prompts_share_is_credited_while_both_are_held() {
    let mut recorder = recorder_of(EngineKind::Sglang);
    // A plain prompt, the same tokens under a salt, and under a key that neither a field nor the hash shows.
    let mut removed = false;
    for line in lines("sglang-0.5.23.jsonl").iter().filter(|line| line["kind"] == "live").take(28) {
        recorder.live(NOW, line["seq"].as_u64().unwrap(), payload(line));
        let label = line["request"]["label"].as_str().unwrap();
        let worst = recorder.ledger().trust().worst().map(|worst| worst.reason);
        assert_eq!(worst.is_some(), label >= "E:" && !label.starts_with("start"), "{label}");
        assert!(worst.is_none_or(|reason| reason == Reason::SharedHash));
        let snapshot = snapshot(recorder.ledger_mut());
        let held = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
        let roots: Vec<_> = held.filter(|block| block.hash == 9_140_308_358_832_500_602).collect();
        removed |= label.starts_with("G:");
        assert_eq!(roots.len(), usize::from(!removed && !label.starts_with("start")), "{label}");
    }
}
