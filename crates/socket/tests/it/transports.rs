//! Every form of address, in both directions, with libzmq at the other end.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;

use crate::support::libzmq::{PubOptions, PubSocket, PublishContext};
use crate::support::{Heard, Log, PATIENCE, Recorder, publisher, sockets, subscribe};
use kvplane_socket::{Endpoint, SocketError, Subscription};

/// A path for a socket: short, as it must be, and nobody else's.
fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvp-{}-{name}.sock", std::process::id()))
}

fn has_ipv6() -> bool {
    let there = TcpListener::bind("[::1]:0").is_ok();
    if !there {
        eprintln!("skipped: this machine has no IPv6");
    }
    there
}

/// A publisher that is bound there is heard.
fn connects_to(bound: &str, connect: impl Fn(&str) -> String) {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut options = PubOptions::new(Endpoint::Bind(bound.to_owned()));
    options.send_hwm = 0;
    let mut publisher = PubSocket::open(&context, &options).unwrap();
    let (_handle, log) = subscribe(&sockets, &connect(publisher.last_endpoint()));
    assert!(publisher.wait_for_subscriptions(1, PATIENCE), "{bound}");
    publisher.send(b"kv", 7, &vec![1; 300_000]).unwrap();
    log.wait_for_message(7);
}

/// A publisher that connects there is heard.
fn listens_at(bind: &str) {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Bind(bind.to_owned()));
    let handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    let address = handle.last_endpoint().replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1");
    let endpoint = Endpoint::Connect(address);
    let mut publisher = PubSocket::open(&context, &PubOptions::new(endpoint)).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE), "{bind}");
    publisher.send(b"kv", 7, &vec![1; 300_000]).unwrap();
    log.wait_for_message(7);
}

fn same(address: &str) -> String {
    address.to_owned()
}

#[test]
fn tcp() {
    connects_to("tcp://127.0.0.1:0", same);
    listens_at("tcp://127.0.0.1:0");
    listens_at("tcp://*:0");
    listens_at("tcp://*:*");
    listens_at("tcp://localhost:0");
}

#[test]
fn names_are_resolved() {
    connects_to("tcp://127.0.0.1:0", |address| address.replace("127.0.0.1", "localhost"));
    let found: Vec<_> = ("localhost", 1).to_socket_addrs().unwrap().collect();
    if has_ipv6() && found.iter().any(SocketAddr::is_ipv6) {
        // Behind its other address, where nobody listens.
        connects_to("tcp://[::1]:0", |address| address.replace("[::1]", "localhost"));
    }
}

#[test]
fn a_name_that_nobody_knows_holds_nobody_up() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let unknown: Vec<_> =
        (0..10).map(|n| subscribe(&sockets, &format!("tcp://engine-{n}.invalid:5557"))).collect();
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (_handle, log) = subscribe(&sockets, publisher.last_endpoint());
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"", 0, b"x").unwrap();
    log.wait_for_message(0);
    assert!(unknown.iter().all(|(_, log)| log.all().is_empty()));
}

#[test]
fn ipv6() {
    if has_ipv6() {
        connects_to("tcp://[::1]:0", same);
        listens_at("tcp://[::1]:0");
        listens_at("tcp://[::]:0");
    }
}

#[test]
fn ipc_in_the_file_system() {
    let path = socket_path("connect");
    connects_to(&format!("ipc://{}", path.display()), same);
    let path = socket_path("bind");
    let address = format!("ipc://{}", path.display());
    // What a process left that was killed is taken over.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    listens_at(&address);
    let sockets = sockets();
    let open = || {
        let subscription = Subscription::new(Endpoint::Bind(address.clone()));
        sockets.subscribe(subscription, Box::new(Recorder(Log::default())))
    };
    let first = open().unwrap();
    let error = open().unwrap_err();
    assert!(error.is_address_in_use(), "{error}");
    drop(first);
    sockets.shutdown();
    assert!(!path.exists(), "the path goes with its socket");
    std::fs::write(&path, "a file of somebody's").unwrap();
    let subscription = Subscription::new(Endpoint::Bind(address.clone()));
    let error =
        crate::support::sockets().subscribe(subscription, Box::new(Recorder(Log::default()))).unwrap_err();
    assert!(error.is_address_in_use(), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ipc_in_the_abstract_namespace() {
    let name = |what: &str| format!("ipc://@kvp-{}-{what}", std::process::id());
    connects_to(&name("connect"), same);
    listens_at(&name("bind"));
}

#[test]
fn an_absent_path_is_dialled_until_it_is_there() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let address = format!("ipc://{}", socket_path("late").display());
    let (_handle, log) = subscribe(&sockets, &address);
    let mut publisher = publisher(&context, &address);
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"", 0, b"x").unwrap();
    log.wait_for_message(0);
    drop(publisher);
    log.wait_for(&Heard::Disconnected);
}

#[test]
fn addresses_that_cannot_be_are_errors_at_once() {
    let sockets = sockets();
    let long = format!("ipc:///{}", "x".repeat(200));
    for address in ["inproc://x", "udp://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:1", "ipc://", &long] {
        let subscription = Subscription::new(Endpoint::Bind(address.to_owned()));
        let error = sockets.subscribe(subscription, Box::new(Recorder(Log::default()))).unwrap_err();
        assert!(matches!(error, SocketError::Endpoint { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
    for address in ["inproc://x", "tcp://*:5557", "tcp://127.0.0.1:0", "tcp://127.0.0.1:x"] {
        let subscription = Subscription::new(Endpoint::Connect(address.to_owned()));
        let error = sockets.subscribe(subscription, Box::new(Recorder(Log::default()))).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot connect {address}")), "{error}");
    }
}
