//! What peers cannot make us do: hold memory, wait, or neglect the others.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "it/support/mod.rs"]
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_socket::{Endpoint, Options, Sockets, SubscriberHandler, Subscription};
use support::libzmq::{PubOptions, PubSocket, PublishContext, RouterSocket};
use support::peer::{PUB_READY, Server, batch, frame, greeting};
use support::{Heard, Log, PATIENCE, Witness, publisher, sockets, subscribe};

fn watch(sockets: &Sockets, endpoint: Endpoint) -> (kvplane_socket::SubscriptionHandle, Log) {
    let log = Log::default();
    let handle = sockets.subscribe(Subscription::new(endpoint), Box::new(Witness(log.clone()))).unwrap();
    (handle, log)
}

/// What a peer sends after it was dialled, and the word for it.
#[test]
fn a_peer_that_breaks_the_protocol_is_dropped_with_a_reason_and_dialled_again() {
    let greeted = |rest: &[u8]| [&greeting()[..], rest].concat();
    let ready = |rest: &[u8]| greeted(&[PUB_READY, rest].concat());
    let mut curve = greeting();
    curve[12..17].copy_from_slice(b"CURVE");
    let mut old = greeting();
    old[10] = 1;
    let lie = [&[2][..], &(u64::MAX / 2).to_be_bytes()].concat();
    let cases: [(Vec<u8>, &str, bool); 9] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "signature", false),
        (old.to_vec(), "version", false),
        (curve.to_vec(), "mechanism", false),
        (greeted(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"), "socket_type", false),
        (greeted(b"\x04\x0d\x05ERROR\x06go off"), "rejected", false),
        (greeted(&batch(0, b"early")), "early_message", false),
        (ready(&lie), "message_too_large", true),
        (ready(&frame(4, &[0; 5000])), "command_too_large", true),
        (ready(b"\xf0"), "flags", true),
    ];
    let sockets = sockets();
    for (bytes, reason, connected) in cases {
        let server = Server::new();
        let (_handle, log) = watch(&sockets, Endpoint::Connect(server.address()));
        let mut peer = server.accept();
        peer.write_all(&bytes).unwrap();
        let heard = log.wait_for(&Heard::ProtocolError(reason));
        assert_eq!(heard.contains(&Heard::Connected), connected, "{reason}: {heard:?}");
        assert_eq!(heard.contains(&Heard::Disconnected), connected, "{reason}: {heard:?}");
        // A good publisher at the same place is heard.
        let mut good = server.publisher();
        good.send(&batch(1, b"good"));
        log.wait_for_message(1);
    }
}

#[test]
fn a_replay_socket_is_not_an_event_socket() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = RouterSocket::bind(&context, "tcp://127.0.0.1:0", 0).unwrap();
    let (_handle, log) = watch(&sockets, Endpoint::Connect(router.last_endpoint().to_owned()));
    let heard = log.wait_for(&Heard::ProtocolError("socket_type"));
    assert!(!heard.contains(&Heard::Connected));
}

#[test]
fn strangers_that_stay_silent_keep_no_place() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".into()));
    subscription.max_connections = 3;
    let handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    let address = handle.last_endpoint().to_owned();
    let stranger = || TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let connect = || PubSocket::open(&context, &PubOptions::new(Endpoint::Connect(address.clone()))).unwrap();
    // More connections than places: a new one replaces the oldest.
    let mut silent: Vec<_> = (0..10).map(|_| stranger()).collect();
    let mut publisher = connect();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    // One that has a place until its time is over: it is hung up on, and does not have to speak for that.
    let start = Instant::now();
    for stranger in &mut silent {
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    assert!(start.elapsed() < PATIENCE);
    log.wait_for(&Heard::ProtocolError("handshake_timeout"));
    // Places that publishers have are theirs.
    let mut others = [connect(), connect()];
    assert!(others.iter_mut().all(|other| other.wait_for_subscriptions(1, PATIENCE)));
    let mut late = stranger();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(late.read(&mut [0; 1]), Ok(0) | Err(_)), "there is no place for it");
    publisher.send(b"kv", 0, b"x").unwrap();
    log.wait_for_message(0);
    assert!(!log.all().contains(&Heard::Disconnected));
}

#[test]
fn publishers_of_one_host_do_not_take_all_places() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".into()));
    (subscription.max_connections, subscription.max_connections_per_host) = (3, 2);
    let handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    let address = handle.last_endpoint().to_owned();
    let connect = || PubSocket::open(&context, &PubOptions::new(Endpoint::Connect(address.clone()))).unwrap();
    let mut publishers = [connect(), connect()];
    assert!(publishers.iter_mut().all(|one| one.wait_for_subscriptions(1, PATIENCE)));
    let mut late = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(late.read(&mut [0; 1]), Ok(0) | Err(_)), "there is no place for it");
    assert_eq!(sockets.refusals().counts(), [("too_many_connections_of_host", 1)].into());
    publishers[0].send(b"kv", 0, b"x").unwrap();
    log.wait_for_message(0);
    assert!(!log.all().contains(&Heard::Disconnected));
}

/// Waits in its first message until it is let go.
struct Stalled(Receiver<()>, Log);

impl SubscriberHandler for Stalled {
    fn connected(&mut self) {}
    fn disconnected(&mut self) {}
    fn message(&mut self, _topic: &[u8], sequence: u64, payload: Bytes) {
        self.1.push(Heard::Message(Vec::new(), sequence, payload.len().to_be_bytes().to_vec()));
        let _ = self.0.recv();
    }
    fn malformed(&mut self, _reason: &'static str) {}
    fn tick(&mut self, _now: Instant) {}
}

/// 1 GiB is offered to a handler that does not come back: all but what the kernel holds stays with the
/// publisher.
#[test]
fn a_stalled_handler_leaves_data_in_the_publisher() {
    const PAYLOAD: usize = 4 << 20;
    const OFFERED: usize = 1 << 30;
    /// The kernel's buffers of both ends, which tune themselves, with much to spare.
    const KERNEL: usize = 64 << 20;
    let (server, sockets) = (Server::new(), sockets());
    let (let_go, held) = sync_channel(1);
    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Connect(server.address()));
    let _handle = sockets.subscribe(subscription, Box::new(Stalled(held, log.clone()))).unwrap();
    let mut peer = server.publisher();
    peer.send(&batch(0, b"x"));
    log.wait_for_message(0);
    let before = resident();
    peer.0.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let bytes = batch(1, &vec![1; PAYLOAD]);
    let mut sent = 0;
    'offer: while sent < OFFERED {
        let mut at = 0;
        while at < bytes.len() {
            match peer.0.write(&bytes[at..]) {
                Ok(count) => at += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    sent += at;
                    break 'offer;
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent += at;
    }
    let grown = resident().saturating_sub(before);
    assert!(sent < KERNEL, "{sent} bytes were taken from the publisher");
    assert!(grown < KERNEL, "{grown} bytes more in memory");
    drop(let_go);
    log.wait_for_message(1);
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn flooding_neighbours_do_not_starve_a_quiet_stream() {
    struct Deaf;
    impl SubscriberHandler for Deaf {
        fn connected(&mut self) {}
        fn disconnected(&mut self) {}
        fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}
        fn malformed(&mut self, _reason: &'static str) {}
        fn tick(&mut self, _now: Instant) {}
    }
    // All on one thread.
    let sockets = Sockets::start(&Options { poller_threads: 1, ..Options::default() }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let floods: [(Vec<u8>, Server); 3] = [
        (batch(0, b"x").repeat(1000), Server::new()),
        (batch(0, &vec![0; 8 << 20]), Server::new()),
        (frame(4, b"\x04PING\0\0").repeat(10_000), Server::new()),
    ];
    let mut handles = Vec::new();
    let mut threads = Vec::new();
    for (bytes, server) in floods {
        let subscription = Subscription::new(Endpoint::Connect(server.address()));
        handles.push(sockets.subscribe(subscription, Box::new(Deaf)).unwrap());
        let mut peer = server.publisher();
        let stop = stop.clone();
        threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) && peer.0.write_all(&bytes).is_ok() {}
        }));
    }
    let context = PublishContext::new();
    let mut quiet = publisher(&context, "tcp://127.0.0.1:0");
    let (_handle, log) = subscribe(&sockets, quiet.last_endpoint());
    assert!(quiet.wait_for_subscriptions(1, PATIENCE));
    for sequence in 0..50 {
        quiet.send(b"", sequence, b"x").unwrap();
        log.wait_for_message(sequence);
    }
    stop.store(true, Ordering::Relaxed);
    drop(handles);
    for thread in threads {
        thread.join().unwrap();
    }
}
