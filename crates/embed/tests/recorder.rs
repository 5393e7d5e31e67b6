//! A recorder as a program in Rust would use it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use kvplane_core::{EngineKind, ErrorCode, PublicError};
use kvplane_embed::{NotAnswered, Recorder, RecoveryServer, Settings};
use kvplane_ingest::NotHandedOver;
use kvplane_stream::Recovery;
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

fn get(server: &RecoveryServer, path: &str) -> String {
    let mut connection = TcpStream::connect(server.address()).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
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
