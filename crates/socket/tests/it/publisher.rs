//! Publishing over real sockets: to subscribers of libzmq, and to our own.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::raw::{Raw, subscribe as subscribe_frame};
use crate::support::{Heard, Log, PATIENCE, Recorder, Witness, sockets, subscribe};
use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext, SocketError, Subscription};

fn bind(context: &PublishContext, address: &str) -> PubSocket {
    PubSocket::open(context, &PubOptions::new(Endpoint::Bind(address.to_owned()))).unwrap()
}

fn connect(context: &PublishContext, address: &str) -> PubSocket {
    PubSocket::open(context, &PubOptions::new(Endpoint::Connect(address.to_owned()))).unwrap()
}

/// A SUB of libzmq's.
fn sub(context: &zmq::Context, topics: &[&str]) -> zmq::Socket {
    let socket = context.socket(zmq::SUB).unwrap();
    socket.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvhwm(0).unwrap();
    for topic in topics {
        socket.set_subscribe(topic.as_bytes()).unwrap();
    }
    socket
}

fn sequence_of(socket: &zmq::Socket) -> u64 {
    let frames = socket.recv_multipart(0).unwrap();
    assert_eq!(frames.len(), 3);
    u64::from_be_bytes(frames[1][..].try_into().unwrap())
}

/// libzmq and our own side both hear a publisher that is bound at `address`.
fn is_heard_at(address: &str) {
    let (context, zmq_context, sockets) = (PublishContext::new(), zmq::Context::new(), sockets());
    let mut publisher = bind(&context, address);
    let at = publisher.last_endpoint().replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
    let theirs = sub(&zmq_context, &["kv"]);
    theirs.set_ipv6(at.contains('[')).unwrap();
    theirs.connect(&at).unwrap();
    let (_handle, ours) = subscribe(&sockets, &at);
    assert!(publisher.wait_for_subscriptions(2, PATIENCE), "{address}");
    for (sequence, payload) in [(7, vec![]), (8, vec![1; 255]), (9, vec![2; 256]), (10, vec![3; 3_000_000])] {
        publisher.send(b"kv@pod", sequence, &payload).unwrap();
        let frames = theirs.recv_multipart(0).unwrap();
        assert_eq!(frames, [b"kv@pod".to_vec(), sequence.to_be_bytes().to_vec(), payload]);
        ours.wait_for_message(sequence);
    }
}

/// libzmq and our own side, bound, both hear a publisher that connects.
fn connects_to(address: &str) {
    let (context, zmq_context, sockets) = (PublishContext::new(), zmq::Context::new(), sockets());
    let theirs = sub(&zmq_context, &[""]);
    theirs.set_ipv6(address.contains('[')).unwrap();
    theirs.bind(address).unwrap();
    let mut publisher = connect(&context, &theirs.get_last_endpoint().unwrap().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !publisher.wait_for_subscriptions(1, Duration::from_millis(10)) {
        // libzmq meets a peer that connected when it is looked at.
        theirs.get_events().unwrap();
        assert!(Instant::now() < deadline, "{address}");
    }
    publisher.send(b"kv", 1, &[0; 300]).unwrap();
    assert_eq!(sequence_of(&theirs), 1);
    drop(theirs);

    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Bind(address.to_owned()));
    let address_taken = |error: &SocketError| error.is_address_in_use();
    let handle = loop {
        // libzmq closes in the background.
        match sockets.subscribe(subscription.clone(), Box::new(Recorder(log.clone()))) {
            Err(error) if address_taken(&error) => std::thread::yield_now(),
            result => break result.unwrap(),
        }
    };
    let mut publisher = connect(&context, handle.last_endpoint());
    assert!(publisher.wait_for_subscriptions(1, PATIENCE), "{address}");
    publisher.send(b"kv", 2, &vec![0; 300_000]).unwrap();
    log.wait_for_message(2);
}

#[test]
fn tcp() {
    is_heard_at("tcp://127.0.0.1:0");
    is_heard_at("tcp://*:0");
    is_heard_at("tcp://localhost:0");
    connects_to("tcp://127.0.0.1:*");
}

#[test]
fn ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    is_heard_at("tcp://[::1]:0");
    is_heard_at("tcp://[::]:0");
    connects_to("tcp://[::1]:*");
}

#[test]
fn ipc() {
    let path = std::env::temp_dir().join(format!("kvp-{}-publisher.sock", std::process::id()));
    let address = format!("ipc://{}", path.display());
    is_heard_at(&address);
    assert!(!path.exists(), "the path goes with its socket");
    connects_to(&address);
    is_heard_at(&format!("ipc://@kvp-{}-publisher", std::process::id()));
    connects_to(&format!("ipc://@kvp-{}-subscriber", std::process::id()));
}

#[test]
fn a_name_is_looked_up_and_an_absent_subscriber_is_dialled_until_it_is_there() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut publisher = connect(&context, &format!("tcp://localhost:{port}"));
    assert!(!publisher.wait_for_subscriptions(1, Duration::from_millis(1)));
    for life in 0..3 {
        let log = Log::default();
        let subscription = Subscription::new(Endpoint::Bind(format!("tcp://127.0.0.1:{port}")));
        let handle = loop {
            match sockets.subscribe(subscription.clone(), Box::new(Recorder(log.clone()))) {
                // The last one is closed on a thread of its own.
                Err(error) if error.is_address_in_use() => std::thread::yield_now(),
                result => break result.unwrap(),
            }
        };
        assert!(publisher.wait_for_subscriptions(life + 1, PATIENCE));
        publisher.send(b"", life, b"x").unwrap();
        log.wait_for_message(life);
        drop(handle);
        log.wait_for(&Heard::Dropped);
    }
}

#[test]
fn addresses_that_cannot_be_are_errors_at_once() {
    let context = PublishContext::new();
    for address in ["inproc://x", "udp://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:1", "ipc://"] {
        let error =
            PubSocket::open(&context, &PubOptions::new(Endpoint::Bind(address.to_owned()))).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot bind {address}: ")), "{error}");
    }
    for address in ["tcp://*:5557", "tcp://127.0.0.1:0"] {
        let error =
            PubSocket::open(&context, &PubOptions::new(Endpoint::Connect(address.to_owned()))).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot connect {address}: ")), "{error}");
    }
    let first = bind(&context, "tcp://127.0.0.1:0");
    let again = PubOptions::new(Endpoint::Bind(first.last_endpoint().to_owned()));
    let error = PubSocket::open(&context, &again).unwrap_err();
    assert!(error.is_address_in_use(), "{error}");
}

/// What a simulated engine does that restarts: nobody waits for its port.
#[test]
fn an_address_is_free_when_the_socket_is_dropped() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let address = publisher.last_endpoint().to_owned();
    let (_handle, log) = subscribe(&sockets, &address);
    for life in 0..20 {
        assert!(publisher.wait_for_subscriptions(1, PATIENCE));
        publisher.send(b"", life, b"x").unwrap();
        log.wait_for_message(life);
        drop(publisher);
        // At once, also in another context.
        let other = PublishContext::new();
        publisher = bind(if life % 2 == 0 { &context } else { &other }, &address);
    }
}

#[test]
fn topics_of_libzmq_are_followed() {
    let (context, zmq_context) = (PublishContext::new(), zmq::Context::new());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let theirs = sub(&zmq_context, &["kv@a", "end"]);
    theirs.connect(publisher.last_endpoint()).unwrap();
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    for (sequence, topic) in ["kv@a", "kv@b", "", "kv@ab", "end"].into_iter().enumerate() {
        publisher.send(topic.as_bytes(), sequence as u64, b"").unwrap();
    }
    assert_eq!([(); 3].map(|()| sequence_of(&theirs)), [0, 3, 4]);
    theirs.set_unsubscribe(b"kv@a").unwrap();
    // In the order in which they were made: when this one is there, the other is gone.
    theirs.set_subscribe(b"new").unwrap();
    assert!(publisher.wait_for_subscriptions(3, PATIENCE));
    publisher.send(b"kv@a", 5, b"").unwrap();
    publisher.send(b"new", 6, b"").unwrap();
    assert_eq!(sequence_of(&theirs), 6);
}

#[test]
fn an_xsub_of_libzmq_is_a_subscriber_too() {
    let (context, zmq_context) = (PublishContext::new(), zmq::Context::new());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let theirs = zmq_context.socket(zmq::XSUB).unwrap();
    theirs.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
    theirs.connect(publisher.last_endpoint()).unwrap();
    theirs.send(&b"\x01kv"[..], 0).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"kv", 3, b"").unwrap();
    assert_eq!(sequence_of(&theirs), 3);
}

/// libzmq hangs up on a peer that does not answer its PINGs.
#[test]
fn heartbeats_of_libzmq_are_answered() {
    let (context, zmq_context) = (PublishContext::new(), zmq::Context::new());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let theirs = sub(&zmq_context, &[""]);
    let timeout = Duration::from_secs(1);
    theirs.set_heartbeat_ivl(50).unwrap();
    theirs.set_heartbeat_timeout(timeout.as_millis() as i32).unwrap();
    theirs.connect(publisher.last_endpoint()).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    // A new connection would be another subscription.
    assert!(!publisher.wait_for_subscriptions(2, timeout * 3));
    publisher.send(b"", 1, b"").unwrap();
    assert_eq!(sequence_of(&theirs), 1);
}

#[test]
fn our_own_subscriber_gets_its_proofs() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Connect(publisher.last_endpoint().to_owned()));
    subscription.heartbeat_interval = Duration::from_millis(50);
    let _handle = sockets.subscribe(subscription, Box::new(Witness(log.clone()))).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    let proofs = |heard: &[Heard]| heard.iter().filter(|h| matches!(h, Heard::Proven(..))).count();
    for sequence in 0..5 {
        publisher.send(b"", sequence, b"x").unwrap();
        let before = proofs(&log.wait_for_message(sequence));
        log.wait("another proof", |heard| proofs(heard) > before);
    }
    assert!(!log.all().contains(&Heard::Disconnected));
}

#[test]
fn many_messages_come_whole_and_in_order_to_many() {
    const COUNT: u64 = 20_000;
    let (context, zmq_context, sockets) = (PublishContext::new(), zmq::Context::new(), sockets());
    let mut publisher = bind(&context, "tcp://127.0.0.1:0");
    let ours: Vec<_> = (0..4).map(|_| subscribe(&sockets, publisher.last_endpoint())).collect();
    let theirs: Vec<_> = (0..4).map(|_| sub(&zmq_context, &[""])).collect();
    for socket in &theirs {
        socket.connect(publisher.last_endpoint()).unwrap();
    }
    assert!(publisher.wait_for_subscriptions(8, PATIENCE));
    for sequence in 0..COUNT {
        publisher.send(b"kv", sequence, &vec![0; (sequence % 500) as usize]).unwrap();
    }
    for (_handle, log) in &ours {
        log.wait_for_message(COUNT - 1);
        assert_eq!(log.sequences(), (0..COUNT).collect::<Vec<_>>());
    }
    for socket in &theirs {
        assert!((0..COUNT).all(|sequence| sequence_of(socket) == sequence));
    }
    assert_eq!(publisher.counts().dropped, 0);
}

/// Subscribers that do not read hold up neither the publisher nor the others, and lose whole messages.
#[test]
fn a_subscriber_that_does_not_read_is_alone_with_it() {
    const HIGH_WATER: i32 = 10;
    const PAYLOAD: usize = 100_000;
    let context = PublishContext::new();
    let mut options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
    options.send_hwm = HIGH_WATER;
    let mut publisher = PubSocket::open(&context, &options).unwrap();
    let join = || {
        let mut raw = Raw::subscriber(publisher.last_endpoint());
        raw.send(&subscribe_frame(b""));
        raw
    };
    let (mut lazy, mut good) = (join(), join());
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    let next = |raw: &mut Raw| {
        let number = raw.frame().1;
        assert_eq!(raw.frame(), (0, vec![7; PAYLOAD]));
        u64::from_be_bytes(number.try_into().unwrap())
    };
    let (payload, mut sent) = (vec![7; PAYLOAD], 0);
    while publisher.counts().dropped < 50 {
        publisher.send_frames(&[&u64::to_be_bytes(sent), &payload]).unwrap();
        assert_eq!(next(&mut good), sent);
        sent += 1;
    }
    let kept = sent - publisher.counts().dropped;
    let received: Vec<_> = (0..kept).map(|_| next(&mut lazy)).collect();
    let first_lost = received.iter().zip(0..).take_while(|(received, n)| **received == *n).count();
    assert!(first_lost >= HIGH_WATER as usize, "{received:?}");
    assert!(received.is_sorted());
    // It goes on with whatever comes next.
    publisher.send_frames(&[&u64::to_be_bytes(sent), &payload]).unwrap();
    assert_eq!((next(&mut lazy), next(&mut good)), (sent, sent));
}

#[test]
fn one_thread_serves_many_sockets() {
    const SOCKETS: usize = 100;
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publishers: Vec<_> = (0..SOCKETS).map(|_| bind(&context, "tcp://127.0.0.1:0")).collect();
    let subscriptions: Vec<_> = publishers.iter().map(|p| subscribe(&sockets, p.last_endpoint())).collect();
    for publisher in &mut publishers {
        assert!(publisher.wait_for_subscriptions(1, PATIENCE));
        for sequence in 0..20 {
            publisher.send(b"kv", sequence, b"payload").unwrap();
        }
    }
    for (_handle, log) in &subscriptions {
        log.wait_for_message(19);
        assert_eq!(log.sequences(), (0..20).collect::<Vec<_>>());
    }
}
