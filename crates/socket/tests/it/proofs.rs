//! When an engine is known to have been there, and when it is known to be gone.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::libzmq::{PubOptions, PubSocket, PublishContext};
use crate::support::peer::{Server, batch};
use crate::support::{Heard, Log, Witness, publisher, sockets};
use bytes::Bytes;
use kvplane_socket::{Alarm, Endpoint, Sockets, SubscriberHandler, Subscription, SubscriptionHandle};

const INTERVAL: Duration = Duration::from_millis(50);

fn watch(sockets: &Sockets, address: &str, timeout: Duration) -> (SubscriptionHandle, Log) {
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Connect(address.to_owned()));
    subscription.heartbeat_interval = INTERVAL;
    subscription.heartbeat_timeout = timeout;
    let handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    (handle, log)
}

fn proofs(heard: &[Heard]) -> Vec<Instant> {
    let at = |heard: &Heard| if let Heard::Proven(_, at) = heard { Some(*at) } else { None };
    heard.iter().filter_map(at).collect()
}

/// What was heard, with proofs without their time.
fn outline(heard: &[Heard]) -> Vec<String> {
    let line = |heard: &Heard| match heard {
        Heard::Proven(..) => "proven".to_owned(),
        Heard::Message(_, sequence, _) => format!("message {sequence}"),
        other => format!("{other:?}"),
    };
    heard.iter().map(line).collect()
}

#[test]
fn an_idle_publisher_of_libzmq_is_proven_to_be_there() {
    let (context, sockets, start) = (PublishContext::new(), sockets(), Instant::now());
    let publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (_handle, log) = watch(&sockets, publisher.last_endpoint(), Duration::from_mins(1));
    let heard = log.wait("five proofs", |heard| proofs(heard).len() >= 5);
    assert_eq!(outline(&heard)[..2], ["Connected", "proven"]);
    let at = proofs(&heard);
    assert!(at[0] >= start && at.is_sorted() && *at.last().unwrap() <= Instant::now(), "{at:?}");
    assert!(!heard.contains(&Heard::Disconnected));
}

/// Counts ticks once it is connected, and says whether it needs them.
struct Ticked {
    log: Log,
    idle: bool,
    connected: bool,
    ticks: Arc<AtomicU32>,
}

impl SubscriberHandler for Ticked {
    fn connected(&mut self) {
        self.connected = true;
        self.log.push(Heard::Connected);
    }

    fn disconnected(&mut self) {}

    fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}

    fn malformed(&mut self, _reason: &'static str) {}

    fn tick(&mut self, _now: Instant) {
        if self.connected && self.ticks.fetch_add(1, Ordering::SeqCst) == 4 {
            self.log.push(Heard::Disconnected); // as a sign
        }
    }

    fn next_tick(&self, now: Instant) -> Option<Instant> {
        (!self.idle).then_some(now)
    }
}

#[test]
fn whoever_is_idle_is_not_ticked() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let publisher = publisher(&context, "tcp://127.0.0.1:0");
    let subscribe = |idle| {
        let (log, ticks) = (Log::default(), Arc::new(AtomicU32::new(0)));
        let mut subscription = Subscription::new(Endpoint::Connect(publisher.last_endpoint().to_owned()));
        subscription.heartbeat_interval = Duration::from_hours(1);
        let handler = Ticked { log: log.clone(), idle, connected: false, ticks: ticks.clone() };
        let handle = sockets.subscribe(subscription, Box::new(handler)).unwrap();
        log.wait_for(&Heard::Connected);
        (handle, log, ticks)
    };
    let (_idle, _, idle_ticks) = subscribe(true);
    let (_busy, busy, _) = subscribe(false);
    busy.wait_for(&Heard::Disconnected);
    assert_eq!(idle_ticks.load(Ordering::SeqCst), 0);
}

/// Wants a tick once somebody else has said so.
struct Woken {
    log: Log,
    alarm: std::sync::mpsc::SyncSender<Alarm>,
    due: Arc<AtomicU32>,
}

impl SubscriberHandler for Woken {
    fn begun(&mut self, alarm: Alarm) {
        self.alarm.send(alarm).unwrap();
    }

    fn connected(&mut self) {
        self.log.push(Heard::Connected);
    }

    fn disconnected(&mut self) {}

    fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}

    fn malformed(&mut self, _reason: &'static str) {}

    fn tick(&mut self, _now: Instant) {
        self.due.store(0, Ordering::SeqCst);
        self.log.push(Heard::Disconnected); // as a sign
    }

    fn next_tick(&self, now: Instant) -> Option<Instant> {
        (self.due.load(Ordering::SeqCst) > 0).then_some(now)
    }
}

#[test]
fn whoever_becomes_due_on_another_thread_is_ticked_after_the_alarm() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (log, due) = (Log::default(), Arc::new(AtomicU32::new(0)));
    let (alarm, rings) = std::sync::mpsc::sync_channel(1);
    let mut subscription = Subscription::new(Endpoint::Connect(publisher.last_endpoint().to_owned()));
    subscription.heartbeat_interval = Duration::from_hours(1);
    let handler = Woken { log: log.clone(), alarm, due: due.clone() };
    let handle = sockets.subscribe(subscription, Box::new(handler)).unwrap();
    let alarm = rings.recv_timeout(crate::support::PATIENCE).unwrap();
    log.wait_for(&Heard::Connected);
    for times in 1..=3 {
        due.store(1, Ordering::SeqCst);
        alarm.ring();
        log.wait("a tick", |heard| heard.iter().filter(|h| **h == Heard::Disconnected).count() == times);
    }
    drop(handle);
    alarm.ring(); // nobody is there any more
}

#[test]
fn pings_of_libzmq_are_answered() {
    let (context, sockets) = (zmq::Context::new(), sockets());
    let publisher = context.socket(zmq::PUB).unwrap();
    let (every, patience) = (20, Duration::from_millis(1500));
    publisher.set_heartbeat_ivl(every).unwrap();
    publisher.set_heartbeat_timeout(patience.as_millis() as i32).unwrap();
    publisher.bind("tcp://127.0.0.1:*").unwrap();
    let address = publisher.get_last_endpoint().unwrap().unwrap();
    // We do not ask: only answers to libzmq's own PINGs keep it from hanging up.
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Connect(address));
    subscription.heartbeat_interval = Duration::from_hours(1);
    let start = Instant::now();
    let _handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    log.wait_for(&Heard::Connected);
    let mut sequence = 0_u64;
    while start.elapsed() < patience * 2 {
        sequence += 1;
        publisher.send_multipart([&b""[..], &sequence.to_be_bytes(), b"x"], 0).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!log.all().contains(&Heard::Disconnected), "{:?}", outline(&log.all()));
}

#[test]
fn a_peer_that_falls_silent_is_noticed_and_dialled_again() {
    let (server, sockets) = (Server::new(), sockets());
    let (_handle, log) = watch(&sockets, &server.address(), INTERVAL * 6);
    let mut silent = server.publisher();
    silent.send(&batch(0, b"x"));
    log.wait_for_message(0);
    // It neither reads nor answers, and the connection stays open.
    log.wait_for(&Heard::Disconnected);
    let mut second = server.publisher();
    second.answer_ping();
    let heard = log.wait("a proof of the second", |heard| {
        let after = heard.iter().rposition(|h| *h == Heard::Connected).unwrap_or(0);
        proofs(&heard[after..]).len() >= 2
    });
    assert_eq!(heard.iter().filter(|h| **h == Heard::Connected).count(), 2);
    drop(silent);
}

#[test]
fn frames_prove_until_a_ping_was_answered() {
    let (server, sockets) = (Server::new(), sockets());
    let (_handle, log) = watch(&sockets, &server.address(), Duration::from_mins(1));
    let mut peer = server.publisher();
    log.wait("the handshake", |heard| proofs(heard).len() == 1);
    peer.send(&batch(0, b"x"));
    let heard = log.wait("a proof by a frame", |heard| proofs(heard).len() == 2);
    assert_eq!(outline(&heard), ["Connected", "proven", "message 0", "proven"]);
    peer.answer_ping();
    log.wait("a proof by a PONG", |heard| proofs(heard).len() == 3);
    for sequence in 1..4 {
        peer.send(&batch(sequence, b"x"));
        log.wait_for_message(sequence);
    }
    assert_eq!(proofs(&log.all()).len(), 3, "{:?}", outline(&log.all()));
    peer.answer_ping();
    log.wait("another proof by a PONG", |heard| proofs(heard).len() == 4);
}

#[test]
fn a_proof_is_as_old_as_its_ping_and_comes_in_order() {
    let (server, sockets) = (Server::new(), sockets());
    let (_handle, log) = watch(&sockets, &server.address(), Duration::from_mins(1));
    let mut peer = server.publisher();
    let ping = peer.command_named(b"PING");
    let pinged = Instant::now();
    // Answered late, between two batches, and then the end; all in one piece.
    peer.command_named(b"PING");
    peer.command_named(b"PING");
    let pong = crate::support::peer::frame(4, &[b"\x04PONG", &ping[2..]].concat());
    peer.send(&[batch(0, b"x"), pong, batch(1, b"x")].concat());
    drop(peer);
    let heard = log.wait_for(&Heard::Disconnected);
    let expected = ["Connected", "proven", "message 0", "proven", "message 1", "Disconnected"];
    assert_eq!(outline(&heard), expected);
    let late = proofs(&heard)[1];
    assert!(late <= pinged, "the PING was sent before it was read");
}

#[test]
fn what_was_sent_before_the_end_is_heard_before_the_end() {
    const COUNT: u64 = 5000;
    let (server, sockets) = (Server::new(), sockets());
    let (_handle, log) = watch(&sockets, &server.address(), Duration::from_mins(1));
    for life in 0..3_u64 {
        let mut peer = server.publisher();
        // One more than a turn takes, several times, with the end right behind.
        let batches: Vec<u8> = (0..COUNT).flat_map(|n| batch(life * COUNT + n, &[0; 100])).collect();
        // The subscriber is read, so that closing is no reset: that would discard what it has not read.
        peer.0.set_nonblocking(false).unwrap();
        peer.send(&batches);
        peer.0.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = std::io::copy(&mut peer.0, &mut std::io::sink());
        let wanted = (life + 1) as usize;
        let heard = log
            .wait("the end", |heard| heard.iter().filter(|h| **h == Heard::Disconnected).count() == wanted);
        let before = heard.iter().rposition(|h| *h == Heard::Disconnected).unwrap();
        let count = heard[..before].iter().filter(|h| matches!(h, Heard::Message(..))).count();
        assert_eq!(count as u64, COUNT * (life + 1));
        assert_eq!(before, heard.len() - 1);
    }
}

#[test]
fn publishers_of_a_bound_socket_are_proven_one_by_one() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".into()));
    subscription.heartbeat_interval = INTERVAL;
    let handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    let connect = || {
        let endpoint = Endpoint::Connect(handle.last_endpoint().to_owned());
        PubSocket::open(&context, &PubOptions::new(endpoint)).unwrap()
    };
    let _publishers = (connect(), connect());
    log.wait("three proofs of each of two", |heard| {
        let mut counts = std::collections::HashMap::new();
        for h in heard {
            if let Heard::Proven(connection, _) = h {
                *counts.entry(*connection).or_insert(0) += 1;
            }
        }
        counts.len() == 2 && counts.values().all(|count| *count >= 3)
    });
}

#[test]
fn a_publisher_that_never_pauses_is_asked_too() {
    let (server, sockets) = (Server::new(), sockets());
    let (_handle, log) = watch(&sockets, &server.address(), Duration::from_mins(1));
    let mut peer = server.publisher();
    let mut asked = crate::support::peer::Publisher(peer.0.try_clone().unwrap());
    let (tell, pings) = std::sync::mpsc::sync_channel(64);
    std::thread::spawn(move || {
        while asked.0.peek(&mut [0; 2]).is_ok_and(|count| count > 0)
            && tell.send(asked.command_named(b"PING")).is_ok()
        {}
    });
    // As much as the subscriber takes, with the answers in between.
    let batches: Vec<u8> = (0..1000).flat_map(|_| batch(0, &[0; 100])).collect();
    let start = Instant::now();
    let mut answered = 0;
    while answered < 5 {
        assert!(start.elapsed() < crate::support::PATIENCE, "{answered} PINGs");
        peer.send(&batches);
        while let Ok(ping) = pings.try_recv() {
            peer.send(&crate::support::peer::frame(4, &[b"\x04PONG", &ping[2..]].concat()));
            answered += 1;
        }
    }
    log.wait("a proof that is younger than the first batches", |heard| {
        proofs(heard).last().is_some_and(|at| *at > start)
    });
    // Ends the thread, which reads.
    peer.0.shutdown(std::net::Shutdown::Both).unwrap();
}
