//! The publishing side, byte by byte: what it says, and what it does not take.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::PATIENCE;
use crate::support::peer::{frame, greeting};
use crate::support::raw::{
    ROUTER_READY, Raw, SUB_READY, XPUB_READY, cancel, dealer_ready, message, ping, pong, request, subscribe,
};
use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext, ReplyFraming, RouterSocket};

fn publisher() -> PubSocket {
    let options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
    PubSocket::open(&PublishContext::new(), &options).unwrap()
}

fn router() -> RouterSocket {
    RouterSocket::bind(&PublishContext::new(), "tcp://127.0.0.1:0", 0).unwrap()
}

#[test]
fn a_conversation_with_a_subscriber_is_these_bytes() {
    let mut publisher = publisher();
    let mut raw = Raw::connect(publisher.last_endpoint());
    raw.expect(&greeting());
    raw.send(&greeting());
    raw.expect(XPUB_READY);
    raw.send(SUB_READY);
    raw.send(&subscribe(b"kv"));
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"other", 0, b"not wanted").unwrap();
    publisher.send(b"kv@pod", 258, b"payload").unwrap();
    raw.expect(b"\x01\x06kv@pod\x01\x08\0\0\0\0\0\0\x01\x02\x00\x07payload");
    publisher.send(b"kv", 1, &[7; 256]).unwrap();
    raw.expect(b"\x01\x02kv\x01\x08\0\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x01\0");
    raw.expect(&[7; 256]);
    raw.send(&ping(6000, b""));
    raw.expect(b"\x04\x05\x04PONG");
    raw.send(&ping(0, b"0123456789abcdef"));
    raw.expect(b"\x04\x15\x04PONG0123456789abcdef");
    raw.send(&cancel(b"kv"));
    assert!(raw.sync().is_empty());
    publisher.send(b"kv", 2, b"").unwrap();
    assert!(raw.sync().is_empty(), "cancelled");
    assert_eq!(publisher.counts().peers, 1);
    drop(publisher);
    assert!(raw.closed().is_empty());
}

#[test]
fn a_conversation_with_an_asker_is_these_bytes() {
    let router = router();
    let mut raw = Raw::connect(router.last_endpoint());
    raw.expect(&greeting());
    raw.send(&[&greeting()[..], &dealer_ready(b"me"), &request(7)].concat());
    raw.expect(ROUTER_READY);
    let asked = router.recv_request(PATIENCE).unwrap().unwrap();
    assert_eq!((&asked.identity[..], asked.start), (&b"me"[..], 7));
    router.reply_batch(b"me", ReplyFraming::Plain, b"kv", 7, b"x").unwrap();
    router.reply_batch(b"me", ReplyFraming::WithTopic, b"kv", 8, b"y").unwrap();
    router.reply_end(b"me", ReplyFraming::Plain).unwrap();
    raw.expect(b"\x01\0\x01\x08\0\0\0\0\0\0\0\x07\0\x01x");
    raw.expect(b"\x01\0\x01\x02kv\x01\x08\0\0\0\0\0\0\0\x08\0\x01y");
    raw.expect(b"\x01\0\x01\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
    raw.send(&ping(0, b"x"));
    raw.expect(b"\x04\x06\x04PONGx");
}

#[test]
fn old_peers_subscribe_with_messages() {
    let mut old = greeting();
    old[11] = 0;
    let mut publisher = publisher();
    let mut raw = Raw::connect(publisher.last_endpoint());
    raw.send(&[&old[..], SUB_READY, &frame(0, b"\x01kv"), &frame(0, b"\x01")].concat());
    raw.expect(&[&greeting()[..], XPUB_READY].concat());
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    raw.send(&frame(0, b"\0"));
    assert!(raw.sync().is_empty());
    publisher.send_frames(&[b"other"]).unwrap();
    publisher.send_frames(&[b"kv"]).unwrap();
    raw.expect(b"\0\x02kv");
}

/// Each conversation, cut at every byte: both halves arrive apart.
#[test]
fn cuts_make_no_difference() {
    let mut publisher = publisher();
    let address = publisher.last_endpoint().to_owned();
    let said =
        [&greeting()[..], SUB_READY, &subscribe(b"kv"), &frame(0, b"\x01x"), &ping(0, b"ctx")].concat();
    for cut in 0..=said.len() {
        let mut raw = Raw::connect(&address);
        raw.send(&said[..cut]);
        raw.send(&said[cut..]);
        raw.expect(&[&greeting()[..], XPUB_READY, &pong(b"ctx")].concat());
        publisher.send_frames(&[b"kv", b""]).unwrap();
        raw.expect(b"\x01\x02kv\0\0");
    }
    let router = router();
    let said = [&greeting()[..], &dealer_ready(b""), &request(3), &ping(0, b"ctx")].concat();
    for cut in 0..=said.len() {
        let mut raw = Raw::connect(router.last_endpoint());
        raw.send(&said[..cut]);
        raw.send(&said[cut..]);
        raw.expect(&[&greeting()[..], ROUTER_READY, &pong(b"ctx")].concat());
        let asked = router.recv_request(PATIENCE).unwrap().unwrap();
        assert_eq!((asked.identity.len(), asked.identity[0], asked.start), (5, 0, 3));
    }
    assert_eq!(publisher.counts().refused, BTreeMap::new());
}

/// Cut off at every byte: nobody else notices, and nothing stays.
#[test]
fn conversations_that_break_off_leave_nothing() {
    let mut publisher = publisher();
    let mut other = Raw::subscriber(publisher.last_endpoint());
    other.send(&subscribe(b""));
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    let said = [&greeting()[..], SUB_READY, &subscribe(b"kv"), &ping(0, b"ctx")].concat();
    for cut in 0..=said.len() {
        let mut raw = Raw::connect(publisher.last_endpoint());
        raw.send(&said[..cut]);
        raw.0.shutdown(Shutdown::Write).unwrap();
        raw.closed();
    }
    assert_eq!(publisher.counts().peers, 1);
    publisher.send_frames(&[b"x"]).unwrap();
    other.expect(b"\0\x01x");
}

#[test]
fn a_peer_that_breaks_the_protocol_is_closed_and_counted() {
    let greeted = |rest: &[u8]| [&greeting()[..], rest].concat();
    let ready = |rest: &[u8]| greeted(&[SUB_READY, rest].concat());
    let version = |major: u8| {
        let mut greeting = greeting();
        greeting[10] = major;
        greeting.to_vec()
    };
    let mut curve = greeting();
    curve[12..17].copy_from_slice(b"CURVE");
    let length = |flags: u8, length: u64| [&[flags][..], &length.to_be_bytes()].concat();
    let cases: [(Vec<u8>, &str); 14] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "signature"),
        (version(1), "version"),
        (version(2), "version"),
        (curve.to_vec(), "mechanism"),
        (greeted(&dealer_ready(b"")), "socket_type"),
        (greeted(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04SUB"), "command"),
        (greeted(b"\x04\x0d\x05ERROR\x06go off"), "rejected"),
        (greeted(&frame(0, b"\x01")), "early_message"),
        (ready(&length(2, u64::MAX)), "message_too_large"),
        (ready(&length(3, (64 << 10) + 1)), "message_too_large"),
        (ready(&length(6, 1 << 40)), "command_too_large"),
        (ready(b"\x01\0".repeat(1025).as_slice()), "too_many_frames"),
        (ready(b"\xf0"), "flags"),
        (ready(&ping(0, &[0; 17])), "command"),
    ];
    let publisher = publisher();
    let mut expected = BTreeMap::new();
    for (bytes, reason) in cases {
        let mut raw = Raw::connect(publisher.last_endpoint());
        raw.send(&bytes);
        raw.closed();
        *expected.entry(reason).or_insert(0) += 1;
        assert_eq!(publisher.counts().refused, expected, "{}", bytes.escape_ascii());
    }
    assert_eq!(publisher.counts().peers, 0);
}

#[test]
fn requests_that_are_none_are_passed_over() {
    let router = router();
    let mut raw = Raw::dealer(router.last_endpoint(), b"me");
    let number = 1_u64.to_be_bytes();
    for frames in [
        &[&number[..]][..],
        &[b"", b"", &number],
        &[b"x", &number],
        &[b"", &number[1..]],
        &[b"", b""],
        &[b"", b"", b"", b"", b"", b""],
    ] {
        raw.send(&message(frames));
    }
    raw.send(&request(2));
    assert_eq!(router.recv_request(PATIENCE).unwrap().unwrap().start, 2);
    assert_eq!(router.recv_request(std::time::Duration::ZERO).unwrap(), None);
    // To nobody.
    router.reply_frames(b"nobody", &[b"x"]).unwrap();
    router.reply_frames(b"me", &[b"x"]).unwrap();
    raw.expect(b"\0\x01x");
}

#[test]
fn a_second_peer_with_an_identity_is_refused() {
    let router = router();
    let mut first = Raw::dealer(router.last_endpoint(), b"me");
    first.sync();
    let mut second = Raw::connect(router.last_endpoint());
    second.send(&[&greeting()[..], &dealer_ready(b"me"), &request(2)].concat());
    second.closed();
    assert_eq!(router.counts().refused, BTreeMap::from([("duplicate_identity", 1)]));
    let mut forged = Raw::connect(router.last_endpoint());
    forged.send(&[&greeting()[..], &dealer_ready(b"\0abcd")].concat());
    forged.closed();
    assert_eq!(router.counts().refused["identity"], 1);
    first.send(&request(1));
    assert_eq!(router.recv_request(PATIENCE).unwrap().unwrap().start, 1);
    router.reply_frames(b"me", &[b"x"]).unwrap();
    first.expect(b"\0\x01x");
    // Free again when its owner is gone.
    first.0.shutdown(Shutdown::Write).unwrap();
    first.closed();
    let mut third = Raw::dealer(router.last_endpoint(), b"me");
    third.send(&request(3));
    assert_eq!(router.recv_request(PATIENCE).unwrap().unwrap().start, 3);
}

#[test]
fn one_peer_may_subscribe_to_so_much() {
    let mut publisher = publisher();
    let mut other = Raw::subscriber(publisher.last_endpoint());
    other.send(&subscribe(b""));
    let mut many = Raw::subscriber(publisher.last_endpoint());
    let all: Vec<u8> = (0..1024_u32).flat_map(|n| subscribe(&n.to_be_bytes())).collect();
    // Twice is once.
    many.send(&[&all[..], &all].concat());
    many.sync();
    assert!(publisher.wait_for_subscriptions(2049, PATIENCE));
    many.send(&subscribe(b"one more"));
    many.closed();
    let mut long = Raw::subscriber(publisher.last_endpoint());
    for n in 0..17_u8 {
        let _ = long.0.write_all(&subscribe(&[n; 4000]));
    }
    long.closed();
    assert_eq!(publisher.counts().refused, BTreeMap::from([("too_many_subscriptions", 2)]));
    publisher.send_frames(&[b"x"]).unwrap();
    other.expect(b"\0\x01x");
}

/// The order that readers rely on: what was sent before a PING was read comes before its PONG.
#[test]
fn a_pong_comes_behind_everything_that_was_sent_before() {
    const ROUNDS: u64 = 200;
    let mut publisher = publisher();
    let mut raw = Raw::subscriber(publisher.last_endpoint());
    raw.send(&subscribe(b""));
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    for round in 0..ROUNDS {
        for _ in 0..round % 7 {
            publisher.send(b"kv", round, &vec![1; 1 << (round % 16)]).unwrap();
        }
        let messages = raw.sync().into_iter().filter(|(flags, _)| flags & 1 == 0).count();
        assert_eq!(messages as u64, round % 7);
    }
}

/// The same while another thread publishes: whatever was sent when a PING was written is there before its
/// PONG.
#[test]
fn a_pong_comes_behind_what_another_thread_sent() {
    /// Far below what is dropped at.
    const AHEAD: u64 = 1000;
    let mut publisher = publisher();
    let mut raw = Raw::subscriber(publisher.last_endpoint());
    raw.send(&subscribe(b""));
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
    let sending = std::thread::spawn({
        let shared = shared.clone();
        move || {
            let (sent, read, stop) = &*shared;
            while !stop.load(Ordering::Relaxed) {
                let number = sent.load(Ordering::Relaxed);
                if number >= read.load(Ordering::Relaxed) + AHEAD {
                    std::thread::yield_now();
                    continue;
                }
                publisher.send_frames(&[&number.to_be_bytes()]).unwrap();
                sent.store(number + 1, Ordering::Release);
            }
            publisher
        }
    });
    let (sent, read, stop) = &*shared;
    let mut received = 0_u64;
    for _ in 0..500 {
        let before = sent.load(Ordering::Acquire);
        for (flags, body) in raw.sync() {
            assert_eq!((flags, body), (0, received.to_be_bytes().to_vec()));
            received += 1;
        }
        assert!(received >= before, "{received} of {before}");
        read.store(received, Ordering::Relaxed);
    }
    stop.store(true, Ordering::Relaxed);
    let publisher = sending.join().unwrap();
    assert_eq!(publisher.counts().refused, BTreeMap::new());
}

#[test]
fn a_peer_that_falls_silent_beyond_its_time_to_live_is_closed() {
    let mut publisher = publisher();
    let mut quiet = Raw::subscriber(publisher.last_endpoint());
    quiet.send(&subscribe(b""));
    let mut mortal = Raw::subscriber(publisher.last_endpoint());
    mortal.send(&ping(1, b"last words"));
    assert_eq!(mortal.closed(), pong(b"last words"));
    // Without a promise there is none to break.
    publisher.send_frames(&[b"x"]).unwrap();
    quiet.expect(b"\0\x01x");
    assert_eq!(publisher.counts().peers, 1);
}

#[test]
fn a_peer_that_pings_and_does_not_read_costs_little() {
    let publisher = publisher();
    let mut raw = Raw::subscriber(publisher.last_endpoint());
    raw.0.set_nonblocking(true).unwrap();
    // Until nothing more is taken, or long enough: the publisher reads on, and answers what it can.
    let pings = ping(0, b"0123456789abcdef").repeat(1000);
    for _ in 0..200 {
        let _ = raw.0.write(&pings);
    }
    let mut other = Raw::subscriber(publisher.last_endpoint());
    other.sync();
    assert_eq!(publisher.counts().dropped, 0);
}
