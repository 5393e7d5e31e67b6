//! A recorder as a program in Rust would use it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_catalog::Question;
use kvplane_core::{EngineKind, ErrorCode, PublicError};
use kvplane_embed::{DEFAULT_CREDIT, Index, NotAnswered, Recorder, RecoveryServer, Settings};
use kvplane_ingest::NotHandedOver;
use kvplane_stream::{OnGap, Recovery};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

const ALL: Recovery = Recovery { start: None, end: None };

fn store(hash: u64) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        token_ids: vec![1, 2],
        block_size: 2,
        ..OwnedStored::default()
    })
}

#[test]
fn settings_that_cannot_be_are_named() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings::new("e");
        change(&mut settings);
        let PublicError { code, field, .. } = Recorder::new(&settings).unwrap_err();
        assert_eq!(code, ErrorCode::InvalidArgument);
        field.unwrap()
    };
    assert_eq!(refused(|settings| settings.engine.clear()), "engine");
    assert_eq!(refused(|settings| settings.kind = EngineKind::Kvplane), "kind");
    assert_eq!(refused(|settings| settings.block_size = Some(0)), "block_size");
    assert_eq!(refused(|settings| settings.max_events = 0), "max_events");
    assert_eq!(refused(|settings| settings.max_bytes = 0), "max_bytes");
    assert_eq!(refused(|settings| settings.max_state_bytes = 0), "max_state_bytes");
}

#[test]
fn lives_of_one_process_never_meet() {
    let first_numbers: Vec<u64> = (0..50)
        .map(|_| Recorder::new(&Settings::new("e")).unwrap().apply(None, &[store(1)]).unwrap().number)
        .collect();
    assert!(first_numbers.windows(2).all(|pair| pair[0] >> 20 < pair[1] >> 20), "{first_numbers:?}");
}

#[test]
fn a_recorder_that_was_closed_says_nothing() {
    let recorder = Recorder::new(&Settings::new("e")).unwrap();
    recorder.apply(Some(1), &[store(1)]).unwrap();
    recorder.close();
    recorder.close();
    assert_eq!(recorder.apply(Some(2), &[store(2)]).unwrap_err(), NotHandedOver::Closed);
    assert_eq!(recorder.recover_json(ALL), Err(NotAnswered::Closed));
    assert_eq!(recorder.snapshot().err(), Some(NotAnswered::Closed));
}

#[test]
fn a_moment_is_reported_by_what_it_was_worth() {
    let settings = Settings { on_gap: OnGap::Keep, ..Settings::new("e") };
    let recorder = Recorder::new(&settings).unwrap();
    let before = recorder.snapshot().unwrap();
    recorder.apply(Some(1), &[store(1)]).unwrap();
    let good = recorder.snapshot().unwrap();
    recorder.apply(Some(9), &[store(9)]).unwrap();
    let unsound = recorder.snapshot().unwrap();
    let refused = recorder.recover_json(ALL).unwrap();
    recorder.apply(Some(10), &[OwnedEvent::Cleared]).unwrap();
    assert_eq!(before.recover_json(), r#"{"Error":"stream e/0: nothing is known yet"}"#);
    assert!(good.recover_json().starts_with(r#"{"TreeDump":"#));
    assert_eq!(unsound.recover_json(), refused);
    assert!(refused.contains("unsound"), "{refused}");
    assert!(recorder.recover_json(ALL).unwrap().starts_with(r#"{"TreeDump":"#));
}

#[test]
fn a_recorder_that_is_gone_is_not_credited_whatever_was_taken_of_it() {
    let index = Index::new(DEFAULT_CREDIT.to_vec()).unwrap();
    let recorder = Recorder::new(&Settings::new("e")).unwrap();
    recorder.apply(Some(1), &[store(1)]).unwrap();
    index.add(&recorder, "m").unwrap();
    let question = Question { model: Some("m".into()), token_ids: Some(vec![1, 2]), ..Question::default() };
    let matches = || index.ask(&question, |answer| answer.matches().len());
    assert_eq!(matches().unwrap(), 1);
    let moment = recorder.snapshot().unwrap();
    drop(recorder);
    assert_ne!(matches().ok(), Some(1));
    assert!(moment.recover_json().starts_with(r#"{"TreeDump":"#));
}

fn ask(connection: &mut TcpStream, host: &str, path: &str) {
    write!(connection, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
}

fn get_of(server: &RecoveryServer, host: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(server.address()).unwrap();
    ask(&mut connection, host, path);
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

fn get(server: &RecoveryServer, path: &str) -> String {
    get_of(server, "localhost", path)
}

#[test]
fn on_loopback_only_names_of_this_machine_are_answered() {
    let recorder = Arc::new(Recorder::new(&Settings::new("e")).unwrap());
    let server = RecoveryServer::start(recorder.clone(), "127.0.0.1", 0).unwrap();
    for ours in ["localhost:8090", "127.0.0.1", "[::1]:80", "10.0.0.7:8090", "a.localhost"] {
        assert!(get_of(&server, ours, "/kv_recover").starts_with("HTTP/1.1 200"), "{ours}");
    }
    for foreign in ["evil.example", "localhost.evil.example:8090", "127.0.0.1.evil.example", "a b"] {
        let answer = get_of(&server, foreign, "/kv_recover");
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(r#"{"Error":"#), "{foreign}: {answer}");
    }
    let open = RecoveryServer::start(recorder, "0.0.0.0", 0).unwrap();
    let mut connection = TcpStream::connect(("127.0.0.1", open.address().port())).unwrap();
    ask(&mut connection, "engine-0.cluster", "/kv_recover");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn silent_connections_make_room_for_one_that_asks() {
    let recorder = Arc::new(Recorder::new(&Settings::new("e")).unwrap());
    let server = RecoveryServer::start(recorder, "127.0.0.1", 0).unwrap();
    let mut silent: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let begun = Instant::now();
    let mut last = TcpStream::connect(server.address()).unwrap();
    ask(&mut last, "localhost", "/kv_recover");
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(8), "it does not wait until the silent ones time out");
    // The oldest was closed for it.
    assert_eq!(silent[0].read(&mut [0; 64]).unwrap_or(0), 0);
}

#[test]
fn recovery_over_http_until_it_is_shut_down() {
    let recorder = Arc::new(Recorder::new(&Settings::new("e")).unwrap());
    recorder.apply(Some(1), &[store(1)]).unwrap();
    let mut server = RecoveryServer::start(recorder.clone(), "127.0.0.1", 0).unwrap();
    let answer = get(&server, "/kv_recover?start=1");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let json = recorder.recover_json(Recovery { start: Some(1), end: None }).unwrap();
    assert!(answer.ends_with(&json), "{answer}");
    assert!(get(&server, "/kv_recover?engine=f").starts_with("HTTP/1.1 404"));
    assert!(get(&server, "/kv_recover?start=x").starts_with("HTTP/1.1 400"));
    let taken = RecoveryServer::start(recorder, "127.0.0.1", server.address().port());
    assert!(taken.unwrap_err().to_string().starts_with("cannot listen on 127.0.0.1:"));
    server.shutdown();
    assert!(TcpStream::connect(server.address()).is_err());
}
