//! Recorded engines, and what a running plane says, in tables.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_ingest::Events;
use kvplane_wire::Decoder;
use serde_json::{Value, json};

use super::*;
use crate::seen::{Peer, PlaneSeen, RingEnd, RingSeen, Said, SetUp, Way};
use crate::{Code, Heard, Mark, OpenSocket, Severity};

const USUAL: Window = Window { max_batches: 10_000, max_bytes: 64 << 20 };

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// What the live frames of a recording sum up to, as if they came at the time that they say.
fn recorded(name: &str) -> Heard {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut heard, mut decoder) = (Heard::default(), Decoder::default());
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["kind"] == "live" {
            let sequence = u64::from_be_bytes(bytes(line["seq_hex"].as_str().unwrap()).try_into().unwrap());
            heard.note(&mut decoder, sequence, &bytes(line["payload_hex"].as_str().unwrap()), None);
        }
    }
    assert!(heard.batches > 0);
    heard
}

fn socket(socket: &str) -> Peer {
    Peer::Zmtp { socket: socket.to_owned() }
}

/// An engine that is well, of which this was heard.
fn well(kind: EngineKind, heard: &Heard) -> EngineSeen {
    let events = Events::Connect("tcp://127.0.0.1:5557".to_owned());
    let mut rank = RankSeen::new(0, events, Some("tcp://127.0.0.1:5558".to_owned()));
    (rank.events_peer, rank.replay_peer) = (Some(socket("PUB")), Some(socket("ROUTER")));
    rank.live = heard.clone();
    rank.ring = Some(RingSeen { heard: heard.clone(), end: RingEnd::Complete });
    EngineSeen {
        id: "e".to_owned(),
        kind,
        model: "m".to_owned(),
        topic: String::new(),
        block_size: None,
        way: Way::Published,
        http: None,
        said: Said::default(),
        ranks: vec![rank],
        server: None,
        heard_by_plane: BTreeSet::new(),
    }
}

fn codes(found: &[Finding]) -> Vec<Code> {
    found.iter().map(|finding| finding.code).collect()
}

#[test]
fn real_engines_have_no_findings() {
    for (name, kind, size) in [
        ("vllm-0.32.0.jsonl", EngineKind::Vllm, 32),
        ("vllm-0.32.0-oracle.jsonl", EngineKind::Vllm, 32),
        ("vllm-0.32.0-hybrid-oracle.jsonl", EngineKind::Vllm, 32),
        ("sglang-0.5.23.jsonl", EngineKind::Sglang, 16),
    ] {
        let heard = recorded(name);
        let mut seen = well(kind, &heard);
        assert_eq!(judge_engine(&seen, Some(&USUAL)), [], "{name}");
        assert!(heard.block_sizes.contains(&size), "{name}: {:?}", heard.block_sizes);
        seen.block_size = Some(size);
        assert_eq!(judge_engine(&seen, Some(&USUAL)), [], "{name}");
        seen.block_size = Some(size + 1);
        assert_eq!(codes(&judge_engine(&seen, Some(&USUAL))), [Code::BlockSizeContradiction], "{name}");
    }
}

#[test]
fn what_the_engine_says_of_its_block_size_is_held_against_both() {
    let heard = recorded("vllm-0.32.0.jsonl");
    let mut seen = well(EngineKind::Vllm, &heard);
    seen.said.block_size = Some(16);
    let found = judge_engine(&seen, Some(&USUAL));
    assert_eq!((codes(&found), found[0].severity), (vec![Code::BlockSizeContradiction], Severity::Warning));
    // Nothing was heard: its word against the configuration.
    seen.ranks[0].live = Heard::default();
    seen.ranks[0].ring = None;
    seen.block_size = Some(32);
    assert!(codes(&judge_engine(&seen, Some(&USUAL))).contains(&Code::BlockSizeContradiction));
}

#[test]
fn listeners_and_descriptors() {
    let open = |on_purpose| OpenSocket {
        key: "listen.http".to_owned(),
        address: "0.0.0.0:80".to_owned(),
        on_purpose,
    };
    let cases = [
        (SetUp::default(), vec![]),
        (
            SetUp { open: vec![open(false)], ..SetUp::default() },
            vec![(Code::OpenListenerWithoutRoles, Severity::Error)],
        ),
        (
            SetUp { open: vec![open(true)], ..SetUp::default() },
            vec![(Code::OpenListenerWithoutRoles, Severity::Warning)],
        ),
        (SetUp { streams: 32, descriptors: Some(1024), ..SetUp::default() }, vec![]),
        (
            SetUp { streams: 200, descriptors: Some(1024), ..SetUp::default() },
            vec![(Code::DescriptorLimit, Severity::Info)],
        ),
        (SetUp { streams: 200, descriptors: None, ..SetUp::default() }, vec![]),
    ];
    for (seen, expected) in cases {
        let found: Vec<_> =
            judge_set_up(&seen).iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(found, expected, "{seen:?}");
    }
}

/// A plane with one stream, which is like this.
fn plane_with(rank: &Value) -> PlaneSeen {
    let mut whole = json!({
        "rank": 0, "continuity": "live", "reasons": [], "trouble": null, "index_reason": null,
        "window": {"batches": 10, "bytes": 100}, "counters": {"batches": 10, "rejected": {}},
    });
    whole.as_object_mut().unwrap().extend(rank.as_object().unwrap().clone());
    PlaneSeen {
        address: "http://127.0.0.1:8090".to_owned(),
        status: json!({"engines": [{"id": "e", "kind": "vllm", "ranks": [whole]}]}),
        engines: json!({"engines": [{"id": "e", "ranks": [
            {"rank": 0, "events": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5558"}]}]}),
        ..PlaneSeen::default()
    }
}

#[test]
fn what_a_plane_says_of_its_streams_has_codes() {
    let reason = |word: &str| json!({"reasons": [{"reason": word, "since_ms": 1}]});
    let cases = [
        (json!({}), None),
        (json!({"trouble": "unreached"}), Some(Code::EndpointUnreachable)),
        (json!({"trouble": "discovering"}), Some(Code::EndpointUnreachable)),
        (json!({"continuity": "down"}), Some(Code::EndpointUnreachable)),
        (json!({"trouble": "no_sources"}), Some(Code::RankMissing)),
        (json!({"trouble": "shared_address"}), Some(Code::RankMissing)),
        (
            json!({"trouble": "events_disabled", "reasons": [{"reason": "events_disabled"}]}),
            Some(Code::EventsDisabled),
        ),
        (json!({"trouble": "bad_answer", "reasons": [{"reason": "unheard"}]}), Some(Code::SourcesUntold)),
        (
            json!({"trouble": "block_size", "reasons": [{"reason": "block_size"}]}),
            Some(Code::BlockSizeContradiction),
        ),
        (reason("stolen_drain"), Some(Code::StolenDrain)),
        (reason("suspected_drain"), Some(Code::StolenDrain)),
        (reason("unknown_event"), Some(Code::UnsupportedLayout)),
        (reason("history"), Some(Code::StreamNotExact)),
        (reason("a_word_of_a_newer_release"), None),
        (json!({"index_reason": "budget"}), Some(Code::StreamNotExact)),
        (json!({"counters": {"batches": 10, "foreign_rank_batches": 3}}), Some(Code::RankMissing)),
    ];
    for (rank, expected) in cases {
        assert_eq!(codes(&judge_plane(&plane_with(&rank))), Vec::from_iter(expected), "{rank}");
    }
}

#[test]
fn a_stream_whose_past_stays_unknown_names_the_flush_that_ends_it() {
    for reason in ["history", "gap", "unproven", "undecodable", "unproven_flush"] {
        let mut seen = plane_with(&json!({"reasons": [{"reason": reason, "since_ms": 1_000_000}]}));
        seen.looked_at_ms = 1_100_000;
        assert_ne!(codes(&judge_plane(&seen)), [Code::HistoryMissing], "{reason}: it may still heal");
        seen.looked_at_ms = 1_120_000;
        let found = judge_plane(&seen);
        assert_eq!(codes(&found), [Code::HistoryMissing], "{reason}");
        assert!(found[0].todo.contains("kvplane flush --engine e --nudge"), "{found:?}");
        assert!(found[0].seen.contains("for 2 minutes"), "{found:?}");
    }
    let mut seen = plane_with(&json!({"reasons": [{"reason": "presence", "since_ms": 1}]}));
    seen.looked_at_ms = 1_000_000;
    assert_eq!(codes(&judge_plane(&seen)), [Code::StreamNotExact], "a flush does not end it");
}

#[test]
fn a_plane_whose_windows_are_short_whose_engines_have_no_replay_and_that_is_open() {
    let mut seen = plane_with(&json!({"counters": {"batches": 1000}}));
    assert!(seen.needs_a_second_look());
    assert_eq!(judge_plane(&seen), []);
    // 100 batches within 10 s: 10 batches last a second.
    let later = plane_with(&json!({"counters": {"batches": 1100}})).status;
    seen.later = Some((later, Duration::from_secs(10)));
    assert_eq!(codes(&judge_plane(&seen)), [Code::WindowBelowRate]);
    let mut seen = plane_with(&json!({}));
    assert!(!seen.needs_a_second_look());
    seen.engines["engines"][0]["ranks"][0]["replay"] = Value::Null;
    assert_eq!(codes(&judge_plane(&seen)), [Code::ReplayAbsent]);
    seen.engines["engines"][0]["ranks"][0]["events"] = json!("http://127.0.0.1:8000");
    assert_eq!(judge_plane(&seen), []);
    seen.answers_strangers = true;
    assert_eq!(codes(&judge_plane(&seen)), [Code::OpenListenerWithoutRoles]);
}

#[test]
fn what_a_plane_says_of_its_listeners_and_descriptors() {
    let listener = |loopback: bool, keys: bool, opened: bool| json!({"listeners": [{"name": "listen.http", "address": "0.0.0.0:1", "loopback": loopback, "keys": keys, "opened": opened}]});
    let files = |open: u64, limit: u64| json!({"process": {"open_files": open, "open_files_limit": limit}});
    let open = |severity| Some((Code::OpenListenerWithoutRoles, severity));
    let short = |severity| Some((Code::DescriptorLimit, severity));
    for (said, expected) in [
        (listener(true, false, false), None),
        (listener(false, true, false), None),
        (listener(false, false, false), open(Severity::Error)),
        (listener(false, false, true), open(Severity::Warning)),
        (files(40, 1024), None),
        (files(40, 256), short(Severity::Warning)),
        (files(1000, 1024), short(Severity::Error)),
        (json!({"process": {"open_files": null, "open_files_limit": null}}), None),
    ] {
        let mut seen = plane_with(&json!({}));
        seen.status.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        let found: Vec<_> =
            judge_plane(&seen).iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(found, Vec::from_iter(expected), "{said}");
        // Somebody who showed no key says nothing that the plane does not.
        seen.answers_strangers = true;
        let found = codes(&judge_plane(&seen));
        assert_eq!(found.iter().filter(|code| **code == Code::OpenListenerWithoutRoles).count(), 1, "{said}");
    }
}

#[test]
fn a_rank_that_is_an_engine_of_its_own_is_no_mistake() {
    let mut heard = recorded("vllm-0.32.0.jsonl");
    heard.ranks = [3].into();
    let mut seen = well(EngineKind::Vllm, &heard);
    let found = judge_engine(&seen, Some(&USUAL));
    assert_eq!((codes(&found), found[0].severity), (vec![Code::RankMissing], Severity::Info));
    // Two ranks at one socket are one, and so is a rank beside others that names another.
    seen.ranks[0].live.ranks = [0, 3].into();
    assert!(judge_engine(&seen, Some(&USUAL)).iter().any(|finding| finding.severity == Severity::Error));
    let mut seen = well(EngineKind::Vllm, &heard);
    seen.ranks.push(RankSeen { rank: 3, ..seen.ranks[0].clone() });
    let found = judge_engine(&seen, Some(&USUAL));
    assert!(
        found.iter().any(|finding| finding.code == Code::RankMissing && finding.severity == Severity::Error)
    );
}

#[test]
fn releases_on_both_sides_of_a_change() {
    let heard = recorded("vllm-0.32.0.jsonl");
    let engine = |id: &str, version: &str| {
        let mut engine = well(EngineKind::Vllm, &heard);
        (engine.id, engine.said.version) = (id.to_owned(), Some(version.to_owned()));
        engine.ranks[0].events = Events::Connect(format!("tcp://{id}:5557"));
        engine
    };
    assert_eq!(judge_fleet(&[engine("a", "0.31.0"), engine("b", "0.32.0")]), []);
    let found = judge_fleet(&[engine("a", "0.30.1"), engine("b", "0.31.0rc1"), engine("c", "0.32.0")]);
    assert_eq!((codes(&found), found[0].severity), (vec![Code::EngineVersionBroken], Severity::Info));
    assert!(found[0].seen.contains("on (c) and before (a, b)"), "{}", found[0].seen);
    for (version, rows) in [("0.23.0", 2), ("0.24.0", 1), ("0.29.1", 1), ("0.30.0rc1", 1), ("0.30.0", 0)] {
        let mut engine = engine("a", version);
        assert_eq!(judge_engine(&engine, Some(&USUAL)), [], "{version}: it offloads nothing");
        engine.ranks[0].live.has_host = true;
        assert_eq!(judge_engine(&engine, Some(&USUAL)).len(), rows, "{version}");
    }
}

/// A ring from which only the oldest part was read says nothing of its end.
#[test]
fn a_ring_that_is_too_large_to_be_read() {
    let mark = |sequence, timestamp| Some(Mark { sequence, timestamp });
    let heard = recorded("vllm-0.32.0.jsonl");
    for (live, expected) in
        [(None, vec![]), (mark(90_000, 60.0), vec![]), (mark(90_000, 20.0), vec![Code::ReplayTooShort])]
    {
        let mut seen = well(EngineKind::Vllm, &heard);
        let rank = &mut seen.ranks[0];
        rank.live.last = live;
        let read = Heard { first: mark(1000, 0.0), last: mark(2000, 2.0), ..heard.clone() };
        rank.ring = Some(RingSeen { heard: read, end: RingEnd::Cut });
        assert_eq!(codes(&judge_engine(&seen, None)), expected, "{live:?}");
    }
}

#[test]
fn engines_that_only_the_plane_reaches() {
    let elsewhere = [(Code::EndpointUnreachable, Severity::Info)];
    for (events, peer) in [
        (Events::Connect("tcp://127.0.0.1:1".to_owned()), Some(Peer::Refused)),
        (Events::Connect("tcp://vllm:1".to_owned()), Some(Peer::Unreachable("no such name".to_owned()))),
        (Events::Connect("tcp://127.0.0.1:1".to_owned()), Some(Peer::Http)),
        (Events::Bind("tcp://127.0.0.1:1".to_owned()), Some(Peer::Refused)),
    ] {
        let mut seen = well(EngineKind::Vllm, &Heard::default());
        seen.ranks[0] =
            RankSeen { events_peer: peer, ..RankSeen::new(0, events, Some("tcp://vllm:2".to_owned())) };
        seen.said.unreachable = Some("no connection".to_owned());
        seen.heard_by_plane = [0].into();
        let found: Vec<_> =
            judge_engine(&seen, None).iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(found, elsewhere, "{seen:?}");
    }
    // What the plane hears and we reach is looked at as ever.
    let mut seen = well(EngineKind::Vllm, &recorded("vllm-0.32.0.jsonl"));
    seen.heard_by_plane = [0].into();
    seen.ranks[0].replay_peer = Some(Peer::Refused);
    assert_eq!(codes(&judge_engine(&seen, None)), [Code::ReplayAbsent]);
}

#[test]
fn one_publisher_under_two_names() {
    let heard = recorded("vllm-0.32.0.jsonl");
    let engine = |id: &str, address: &str, topic: &str| {
        let mut engine = well(EngineKind::Vllm, &heard);
        (engine.id, engine.topic) = (id.to_owned(), topic.to_owned());
        engine.ranks[0].events = Events::Connect(address.to_owned());
        engine
    };
    for (one, other, expected) in [
        (("tcp://localhost:1", ""), ("tcp://127.0.0.1:1", ""), Some(Code::SharedAddress)),
        (("tcp://a:1", ""), ("tcp://a:1", "kv@b"), Some(Code::SharedAddress)),
        (("tcp://a:1", "kv@a"), ("tcp://a:1", "kv@b"), None),
        (("tcp://a:1", ""), ("tcp://a:2", ""), None),
    ] {
        let found = judge_fleet(&[engine("a", one.0, one.1), engine("b", other.0, other.1)]);
        assert_eq!(codes(&found), Vec::from_iter(expected), "{one:?} {other:?}");
    }
}

#[test]
fn addresses_that_nobody_could_look_at() {
    let mut seen = well(EngineKind::Vllm, &Heard::default());
    let none = Some(Peer::NoDescriptors);
    (seen.ranks[0].events_peer, seen.ranks[0].replay_peer, seen.ranks[0].ring) = (none.clone(), none, None);
    assert_eq!(judge_engine(&seen, None), []);
    let found = judge_fleet(&[seen]);
    assert_eq!((codes(&found), found[0].severity), (vec![Code::DescriptorLimit], Severity::Error));
}

#[test]
fn one_buffer_under_two_names() {
    let heard = recorded("vllm-0.32.0.jsonl");
    let engine = |id: &str, address: &str| {
        let server = Some((address.to_owned(), Peer::Http));
        EngineSeen { id: id.to_owned(), way: Way::Drained, server, ..well(EngineKind::Trtllm, &heard) }
    };
    let found = judge_fleet(&[engine("a", "http://localhost:8000/"), engine("b", "http://127.0.0.1:8000")]);
    assert_eq!(codes(&found), [Code::StolenDrain]);
    assert_eq!(
        judge_fleet(&[engine("a", "http://127.0.0.1:8001"), engine("b", "http://127.0.0.1:8000")]),
        []
    );
}

#[test]
fn a_link_of_a_plane_that_is_refused_or_cut() {
    for (link, code) in [
        (json!({"connected": true, "trouble": null}), None),
        (json!({"connected": false, "trouble": null}), Some(Code::PlaneUnreachable)),
        (json!({"connected": false, "trouble": "refused"}), Some(Code::PlaneUnauthorised)),
    ] {
        let status = json!({"engines": [{"id": "site", "kind": "kvplane", "link": link, "ranks": []}]});
        let seen = PlaneSeen { status, ..PlaneSeen::default() };
        assert_eq!(codes(&judge_plane(&seen)), Vec::from_iter(code));
    }
}

#[test]
fn an_engine_that_died_a_moment_ago_is_named_from_afar() {
    let status = |continuity: &str, trouble: Option<&str>| {
        let rank = json!({"rank": 0, "continuity": continuity, "trouble": trouble, "reasons": []});
        json!({"engines": [{"id": "a", "kind": "kvplane", "ranks": [rank]}]})
    };
    let later = |continuity, trouble| Some((status(continuity, trouble), Duration::from_secs(5)));
    let unreachable = Some((Code::EndpointUnreachable, Severity::Error));
    for (now, later, expected) in [
        // Before the plane has a word for it.
        ("recovering", None, unreachable),
        ("recovering", later("recovering", None), unreachable),
        ("connecting", later("connecting", None), unreachable),
        ("recovering", later("down", None), unreachable),
        ("recovering", later("recovering", Some("unreached")), unreachable),
        // It was only catching up.
        ("recovering", later("live", None), None),
        ("live", None, None),
    ] {
        let seen = PlaneSeen { status: status(now, None), later, ..PlaneSeen::default() };
        assert_eq!(seen.needs_a_second_look(), now != "live");
        let found = judge_plane(&seen);
        let found: Vec<_> = found.iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(found, Vec::from_iter(expected), "{now}, {:?}", seen.later);
    }
}

#[test]
fn drift_and_contradicted_tokenizers_of_a_plane_are_found() {
    let status = serde_json::json!({
        "routing": {"settled": 40, "drifts": 2, "last_drift": {
            "receipt": "00000001-2a", "engine": "vllm-0", "rank": 1, "kind": "gained_unannounced", "at_ms": 1}},
        "contradicted_tokenizers": [{"model": "m", "engine": "vllm-1", "dimensions": ["tools", "system"]}],
    });
    let seen = PlaneSeen { status, ..PlaneSeen::default() };
    let found = judge_plane(&seen);
    let [drift, tokenizer] = &found[..] else { panic!("{found:?}") };
    assert_eq!((drift.code, drift.subject.as_str()), (Code::PredictionDrift, "vllm-0/1"));
    assert!(drift.seen.contains("2 of 40") && drift.seen.contains("00000001-2a"), "{}", drift.seen);
    assert_eq!((tokenizer.code, tokenizer.subject.as_str()), (Code::TokenizerContradicted, "vllm-1"));
    assert!(tokenizer.seen.contains("tools, system"), "{}", tokenizer.seen);
    let quiet = serde_json::json!({"routing": {"settled": 40, "drifts": 0, "last_drift": null}});
    assert!(judge_plane(&PlaneSeen { status: quiet, ..PlaneSeen::default() }).is_empty());
}
