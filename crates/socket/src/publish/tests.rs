//! Limits of a socket, made small.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::context::Handle;
use super::outgoing::Limits;
use super::outlet::Patience;
use super::{Delivery, PubSocket, PublishContext};
use crate::Endpoint;
use crate::places::Places;
use crate::zmtp::SocketType;
use crate::zmtp::greeting;

/// Far above what anything here takes, so that only a defect reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(limits: Limits, patience: Patience) -> Handle {
    let endpoint = Endpoint::Bind("tcp://127.0.0.1:0".to_owned());
    PublishContext::new().open_with(SocketType::XPub, &endpoint, limits, false, patience).unwrap()
}

fn stranger(handle: &Handle) -> TcpStream {
    let stream = TcpStream::connect(handle.last_endpoint.trim_start_matches("tcp://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A subscriber to everything, once the socket knows it.
fn subscriber(handle: &Handle) -> TcpStream {
    let before = handle.hub.subscriptions();
    let mut stream = stranger(handle);
    stream.write_all(&greeting::ours(b"NULL")).unwrap();
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x04\x0a\x09SUBSCRIBE").unwrap();
    assert!(handle.hub.wait_for_subscriptions(before + 1, PATIENCE));
    stream.read_exact(&mut [0; 64 + 28]).unwrap();
    stream
}

fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn strangers_lose_their_place_and_subscribers_keep_theirs() {
    let patience = Patience { places: Places { connections: 3, ..Places::default() }, ..Patience::default() };
    let handle = open(Limits::new(0, 1 << 20), patience);
    let mut silent: Vec<_> = (0..3).map(|_| stranger(&handle)).collect();
    for stranger in &mut silent {
        // Its greeting came: it was accepted.
        stranger.read_exact(&mut [0; 64]).unwrap();
    }
    let mut subscribers: Vec<_> = (0..3).map(|_| subscriber(&handle)).collect();
    assert!(silent.iter_mut().all(is_closed));
    let mut late = stranger(&handle);
    assert!(is_closed(&mut late));
    let counts = handle.hub.counts();
    assert_eq!(counts.refused, BTreeMap::from([("handshake_timeout", 3), ("too_many_connections", 1)]));
    assert_eq!(counts.peers, 3);
    handle.hub.publish(&[b"x"]).unwrap();
    for subscriber in &mut subscribers {
        let mut read = [0; 3];
        subscriber.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"\0\x01x");
    }
}

#[test]
fn one_host_does_not_take_all_places() {
    let patience = Patience { places: Places { connections: 3, per_host: 2 }, ..Patience::default() };
    let handle = open(Limits::new(0, 1 << 20), patience);
    let _subscribers = [subscriber(&handle), subscriber(&handle)];
    let mut third = stranger(&handle);
    assert!(is_closed(&mut third));
    assert_eq!(handle.hub.counts().refused, BTreeMap::from([("too_many_connections_of_host", 1)]));
    // Another host gets the place that is left.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    let address: SocketAddr = handle.last_endpoint.trim_start_matches("tcp://").parse().unwrap();
    socket.connect(&address.into()).unwrap();
    let mut other = TcpStream::from(socket);
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.read_exact(&mut [0; 64]).unwrap();
}

#[test]
fn a_handshake_has_its_time() {
    let patience = Patience { handshake: Duration::from_millis(1), ..Patience::default() };
    let handle = open(Limits::new(0, 1 << 20), patience);
    let mut slow = stranger(&handle);
    // It begins well.
    slow.write_all(&greeting::ours(b"NULL")).unwrap();
    assert!(is_closed(&mut slow));
    assert_eq!(handle.hub.counts().refused, BTreeMap::from([("handshake_timeout", 1)]));
}

/// What is waiting is bounded in bytes, whatever the limit in messages is; the others get everything.
#[test]
fn a_subscriber_that_does_not_read_holds_so_many_bytes() {
    const PAYLOAD: usize = 64 << 10;
    const LIMIT: usize = 1 << 20;
    let mut socket = PubSocket(open(Limits::new(0, LIMIT), Patience::default()));
    let mut lazy = subscriber(&socket.0);
    let mut good = subscriber(&socket.0);
    let payload = vec![1; PAYLOAD];
    let mut sent = 0_u64;
    let mut read = vec![0; 8 + 2 + 9 + PAYLOAD];
    // Until the kernel's buffers and the queue are full, and then some.
    while socket.counts().dropped < 100 {
        socket.send_frames(&[&sent.to_be_bytes(), &payload]).unwrap();
        good.read_exact(&mut read).unwrap();
        assert_eq!(read[2..10], sent.to_be_bytes());
        sent += 1;
    }
    // It has the first ones whole and in order, and then those after the gap.
    let dropped = socket.counts().dropped;
    let mut expected = 0;
    for _ in 0..sent - dropped {
        lazy.read_exact(&mut read).unwrap();
        let number = u64::from_be_bytes(read[2..10].try_into().unwrap());
        assert!(number >= expected, "{number} after {expected}");
        assert!(read[19..].iter().all(|byte| *byte == 1));
        expected = number + 1;
    }
    assert_eq!(socket.counts().refused, BTreeMap::new());
}

#[test]
fn a_thread_ends_with_its_last_socket_and_its_context() {
    let context = PublishContext::new();
    let endpoint = Endpoint::Bind("tcp://127.0.0.1:0".to_owned());
    let limits = Limits::new(0, 1 << 20);
    let first = context.open(SocketType::XPub, &endpoint, limits, false).unwrap();
    let second = context.open(SocketType::Router, &endpoint, limits, false).unwrap();
    let hub = second.hub.clone();
    drop((context, first));
    assert_eq!(hub.next_request(Duration::ZERO).unwrap(), None);
    drop(second);
    assert!(hub.next_request(PATIENCE).is_err(), "closed");
    assert!(hub.publish(&[b"x"]).is_err());
    assert!(!hub.wait_for_subscriptions(1, PATIENCE));
}

#[test]
fn sockets_may_be_moved_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<PublishContext>();
    check::<PubSocket>();
    check::<super::RouterSocket>();
}

#[test]
fn newcomers_are_distinguished_and_held_back_until_they_are_admitted() {
    let endpoint = Endpoint::Bind("tcp://127.0.0.1:0".to_owned());
    let limits = Limits::new(2, 1 << 20);
    let handle = PublishContext::new().open(SocketType::XPub, &endpoint, limits, true).unwrap();
    assert_eq!(handle.hub.newcomers(b"t"), []);
    let mut one = subscriber(&handle);
    let [first] = handle.hub.newcomers(b"t")[..] else { panic!("one newcomer") };
    assert_eq!(handle.hub.newcomers(b"t"), [], "told once");
    handle.hub.publish(&[b"t", b"a"]).unwrap();
    assert_eq!(handle.hub.send_to(first, &[b"t", b"b"]).unwrap(), Delivery::Queued);
    handle.hub.admit(first);
    handle.hub.publish(&[b"t", b"c"]).unwrap();
    let mut read = [0; 12];
    one.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"\x01\x01t\0\x01b\x01\x01t\0\x01c", "not what was published before");
    let mut two = subscriber(&handle);
    let [second] = handle.hub.newcomers(b"t")[..] else { panic!("another newcomer") };
    assert_ne!(first, second);
    handle.hub.hold_back();
    assert_eq!(handle.hub.newcomers(b"t"), [first], "the other was held back all along");
    drop(one);
    let gone = kvplane_runtime::now() + PATIENCE;
    while handle.hub.send_to(first, &[b"t"]).unwrap() != Delivery::Gone {
        assert!(kvplane_runtime::now() < gone);
        std::thread::yield_now();
    }
    handle.hub.admit(second);
    handle.hub.publish(&[b"t", b"d"]).unwrap();
    let mut read = [0; 6];
    two.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"\x01\x01t\0\x01d");
}

#[test]
fn a_subscriber_that_loses_a_message_is_a_newcomer_again() {
    let endpoint = Endpoint::Bind("tcp://127.0.0.1:0".to_owned());
    let handle =
        PublishContext::new().open(SocketType::XPub, &endpoint, Limits::new(2, 1 << 20), true).unwrap();
    let mut one = subscriber(&handle);
    let [id] = handle.hub.newcomers(b"")[..] else { panic!("one newcomer") };
    handle.hub.admit(id);
    let large = vec![0; 1 << 20];
    let mut lost = Vec::new();
    // The kernel takes some; two wait; the next is lost.
    while lost.is_empty() {
        handle.hub.publish(&[&large]).unwrap();
        lost = handle.hub.newcomers(b"");
    }
    assert_eq!(lost, [id]);
    let reading = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while one.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    while handle.hub.send_to(id, &[&large]).unwrap() == Delivery::Full {
        std::thread::yield_now();
    }
    drop(handle);
    reading.join().unwrap();
}
