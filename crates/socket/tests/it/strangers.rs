//! Peers that do not speak the protocol.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::support::libzmq::{PubOptions, PubSocket, PublishContext};
use crate::support::{Heard, Log, PATIENCE, Recorder, rebind, sockets, subscribe};
use kvplane_socket::{Endpoint, Subscription};

#[test]
fn a_port_scan_on_a_bound_subscription_is_no_connection() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".into()));
    let handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    let address = handle.last_endpoint().to_owned();
    let mut publisher =
        PubSocket::open(&context, &PubOptions::new(Endpoint::Connect(address.clone()))).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    for greeting in [&b""[..], b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stranger = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        stranger.write_all(greeting).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        // Read until the other side has given up on us.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    publisher.send(b"", 0, b"x").unwrap();
    log.wait_for_message(0);
    publisher.send(b"", 1, b"x").unwrap();
    log.wait_for_message(1);
    let message = |sequence| Heard::Message(Vec::new(), sequence, b"x".to_vec());
    assert_eq!(log.all(), [Heard::Connected, message(0), message(1)]);
}

#[test]
fn an_engine_is_found_where_something_else_answered_first() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let (_handle, log) = subscribe(&sockets, &address);
    // A greeting that announces ZMTP, and then an invalid command: a protocol error.
    let (mut stranger, _) = listener.accept().unwrap();
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stranger.write_all(&greeting).unwrap();
    stranger.write_all(b"\x04\x05\xffjunk").unwrap();
    let _ = stranger.read_to_end(&mut Vec::new());
    drop((stranger, listener));

    let mut publisher = rebind(&context, &address);
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"", 0, b"x").unwrap();
    log.wait_for_message(0);
    assert_eq!(log.all(), [Heard::Connected, Heard::Message(Vec::new(), 0, b"x".to_vec())]);
}
