//! Bounds over real sockets, with short times.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::metered::Frames;
use super::*;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(10);
const PATIENCE: Duration = Duration::from_secs(20);

fn limits() -> Limits {
    Limits { handshake: LONG, head: LONG, idle: LONG, write: LONG, unread: LONG }
}

fn peer(last: u8) -> PeerKey {
    PeerKey::of(IpAddr::from([10, 0, 0, last]))
}

/// A connection: the client's end, and ours under its bounds.
async fn connected(connections: &Arc<Connections>, speaks: Speaks) -> (TcpStream, Guarded<TcpStream>) {
    let accepting = Accepting::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), "test");
    let client = TcpStream::connect(accepting.local_addr().unwrap()).await.unwrap();
    let (stream, address) = accepting.next().await;
    (client, Guarded::new(stream, connections.admit(address, speaks).unwrap()))
}

/// Reads until the bound ends the connection.
async fn ends(mut guarded: Guarded<TcpStream>) -> std::io::ErrorKind {
    let mut buffer = [0; 64];
    loop {
        match timeout(PATIENCE, guarded.read(&mut buffer)).await.expect("the bound applies") {
            Ok(read) => assert!(read > 0, "the client closed"),
            Err(error) => return error.kind(),
        }
    }
}

fn counted(connections: &Connections, reason: Closed) -> u64 {
    connections.closed().find(|(of, _)| *of == reason).unwrap().1
}

#[tokio::test]
async fn silent_peers_are_closed_at_every_step() {
    for (speaks, sent, limits, reason) in [
        (Speaks::Handshake, &b""[..], Limits { handshake: SHORT, ..limits() }, Closed::HandshakeTimeout),
        (Speaks::Http1, b"", Limits { head: SHORT, ..limits() }, Closed::HeadTimeout),
        (Speaks::Http1, b"GET / HT", Limits { head: SHORT, ..limits() }, Closed::HeadTimeout),
        (Speaks::Http2, b"", Limits { head: SHORT, ..limits() }, Closed::PrefaceTimeout),
        (Speaks::Http2, b"PRI * HTT", Limits { head: SHORT, ..limits() }, Closed::PrefaceTimeout),
        (Speaks::Http2, &[0; 30], Limits { idle: SHORT, ..limits() }, Closed::IdleTimeout),
    ] {
        let connections = Connections::new(4, 4, limits);
        let (mut client, guarded) = connected(&connections, speaks).await;
        client.write_all(sent).await.unwrap();
        assert_eq!(ends(guarded).await, std::io::ErrorKind::TimedOut, "{reason:?}");
        assert_eq!(counted(&connections, reason), 1, "{reason:?}");
        assert_eq!(connections.open(), 0);
    }
}

#[tokio::test]
async fn a_connection_with_a_request_under_way_is_not_idle() {
    let limits = Limits { head: SHORT, idle: SHORT, ..limits() };
    let connections = Connections::new(4, 4, limits);
    let (_client, guarded) = connected(&connections, Speaks::Http1).await;
    let request = guarded.pulse().enter();
    let ended = tokio::spawn(ends(guarded));
    tokio::time::sleep(SHORT * 4).await;
    assert!(!ended.is_finished());
    drop(request);
    // It is idle from now on, which is seen when its timer ends.
    assert_eq!(ended.await.unwrap(), std::io::ErrorKind::TimedOut);
    assert_eq!(counted(&connections, Closed::IdleTimeout), 1);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_closed() {
    let connections = Connections::new(4, 4, Limits { write: SHORT, ..limits() });
    let (_client, mut guarded) = connected(&connections, Speaks::Http1).await;
    let _request = guarded.pulse().enter();
    let bytes = vec![0; 1 << 20];
    let error = loop {
        if let Err(error) = timeout(PATIENCE, guarded.write_all(&bytes)).await.expect("the bound applies") {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(counted(&connections, Closed::WriteTimeout), 1);
}

#[tokio::test]
async fn the_oldest_idle_connection_of_a_peer_makes_room() {
    let connections = Connections::new(8, 2, limits());
    let (_first_client, first) = connected(&connections, Speaks::Http1).await;
    let (_second_client, second) = connected(&connections, Speaks::Http1).await;
    let busy = first.pulse().enter();
    let (_third_client, third) = connected(&connections, Speaks::Http1).await;
    assert_eq!(ends(second).await, std::io::ErrorKind::ConnectionAborted);
    assert_eq!((connections.open(), counted(&connections, Closed::Displaced)), (2, 1));
    let busy_too = third.pulse().enter();
    let address = "127.0.0.1:1".parse().unwrap();
    assert!(connections.admit(address, Speaks::Http1).is_none());
    assert_eq!(counted(&connections, Closed::TooManyOfPeer), 1);
    drop((busy, busy_too, first, third));
    assert_eq!(connections.open(), 0);
}

#[tokio::test]
async fn a_connection_that_was_not_listened_to_is_not_taken_for_silent() {
    let connections = Connections::new(8, 2, limits());
    let (mut client, mut new) = connected(&connections, Speaks::Http1).await;
    let (_silent_client, mut silent) = connected(&connections, Speaks::Http1).await;
    poll_fn(|context| {
        let listening = std::pin::pin!(silent.first_byte()).poll(context);
        assert!(listening.is_pending());
        Poll::Ready(())
    })
    .await;
    let (_third_client, _third) = connected(&connections, Speaks::Http1).await;
    assert_eq!(ends(silent).await, std::io::ErrorKind::ConnectionAborted);
    client.write_all(b"GET").await.unwrap();
    timeout(PATIENCE, new.first_byte()).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_that_wait_to_be_accepted_are_not_refused() {
    let longest = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
    let longest: usize = longest.and_then(|longest| longest.trim().parse().ok()).unwrap_or(128);
    let accepting = Accepting::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), "test");
    let address = accepting.local_addr().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..longest.min(512) {
        // Beyond the queue's length a connection is not made until another is accepted.
        waiting
            .push(timeout(PATIENCE, TcpStream::connect(address)).await.expect("room in the queue").unwrap());
    }
}

#[tokio::test]
async fn a_peer_that_sends_all_the_time_leaves_turns_to_others() {
    const TURN: usize = 64 << 10;
    let connections = Connections::new(4, 4, limits());
    let place = connections.admit("127.0.0.1:1".parse().unwrap(), Speaks::Http1).unwrap();
    let (mut client, ours) = tokio::io::duplex(4 * TURN);
    client.write_all(&vec![7; 4 * TURN]).await.unwrap();
    let mut guarded = Guarded::new(ours, place);
    let mut bytes = vec![0; 3 * TURN];
    let mut turns = Vec::new();
    while turns.iter().sum::<usize>() < 4 * TURN {
        let mut read = 0;
        let turn = poll_fn(|context| {
            loop {
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut guarded).poll_read(context, &mut buffer) {
                    Poll::Ready(done) => done.unwrap(),
                    Poll::Pending => return Poll::Ready(std::mem::take(&mut read)),
                }
                assert!(buffer.filled().iter().all(|byte| *byte == 7));
                read += buffer.filled().len();
            }
        });
        turns.push(turn.await);
    }
    assert_eq!(turns, [TURN; 4]);
}

#[tokio::test]
async fn a_peer_that_takes_no_data_is_closed_and_one_that_takes_some_is_not() {
    let connections = Connections::new(4, 4, Limits { unread: SHORT * 4, ..limits() });
    let (mut client, guarded) = connected(&connections, Speaks::Http2).await;
    client.write_all(&[0; 30]).await.unwrap();
    let pulse = guarded.pulse().clone();
    let mut call = pulse.enter();
    let closing = tokio::spawn(ends(guarded));
    // A response that waits for nothing may rest.
    call.given();
    call.taken();
    tokio::time::sleep(SHORT * 8).await;
    assert!(!closing.is_finished());
    call.given();
    while pulse.check().is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(pulse.check(), Err(Closed::UnreadTimeout));
    assert_eq!(closing.await.unwrap(), std::io::ErrorKind::TimedOut);
    assert_eq!(counted(&connections, Closed::UnreadTimeout), 1);
    // However slow it is, a peer that takes something has its time again.
    pulse.note_data_taken();
    assert!(pulse.check().is_ok());
}

#[test]
fn data_is_distinguished_from_other_frames_wherever_writes_end() {
    let frame = |kind: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 1];
        frame.extend(payload);
        frame
    };
    let (headers, ping, data) = (frame(1, &[0; 7]), frame(6, &[0; 8]), frame(0, &[0; 5]));
    let written = [headers, ping.clone(), data, frame(0, b""), ping].concat();
    let first = 9 + 7 + 9 + 8 + 9;
    for length in 1..=written.len() {
        let mut frames = Frames::default();
        for (at, bytes) in written.chunks(length).enumerate() {
            let (begin, end) = (at * length, at * length + bytes.len());
            assert_eq!(frames.follow(bytes), begin < first + 5 && end > first, "{begin}..{end}");
        }
    }
}

#[test]
fn the_peer_with_the_most_connections_makes_room_for_another() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let connections = Connections::new(3, 3, limits());
    let admit = |address: &str| connections.admit(address.parse().unwrap(), Speaks::Http2);
    let of_one: Vec<_> = (0..3).map(|_| admit("10.0.0.1:5").unwrap()).collect();
    let other = admit("10.0.0.2:5").unwrap();
    assert!(of_one[0].pulse().closing().is_cancelled());
    assert!(!of_one[1].pulse().closing().is_cancelled());
    let busy: Vec<_> = of_one.iter().map(|place| place.pulse().enter()).collect();
    assert!(admit("10.0.0.3:5").is_none());
    assert_eq!(counted(&connections, Closed::TooMany), 1);
    drop((busy, other, of_one));
    assert_eq!(connections.open(), 0);
}

#[test]
fn one_peer_has_its_share_only() {
    let shares = Shares::new(10, 4);
    let mut one = shares.take(peer(1), 3).unwrap();
    assert_eq!(shares.take(peer(1), 2).unwrap_err(), Full::Peer);
    assert_eq!(one.grow(2), Err(Full::Peer));
    assert_eq!(one.grow(1), Ok(()));
    let _two = shares.take(peer(2), 4).unwrap();
    assert_eq!(shares.take(peer(3), 3).unwrap_err(), Full::Total);
    let three = shares.take(peer(3), 2).unwrap();
    assert_eq!((shares.taken(), one.amount()), (10, 4));
    drop((one, three));
    assert_eq!(shares.taken(), 4);
}

#[tokio::test]
async fn waiting_for_a_share_is_bounded_in_time_and_number() {
    let shares = Shares::with_queue(1, 1, 1);
    let first = shares.take(peer(1), 1).unwrap();
    let waiting = {
        let shares = shares.clone();
        tokio::spawn(async move { shares.take_within(peer(2), 1, LONG).await.map(drop) })
    };
    while shares.taken.lock().waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shares.take_within(peer(3), 1, LONG).await.unwrap_err(), Full::Total, "the queue is full");
    drop(first);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    let _again = shares.take(peer(1), 1).unwrap();
    assert_eq!(shares.take_within(peer(2), 1, SHORT).await.unwrap_err(), Full::Total);
}

#[test]
fn addresses_of_one_host_are_one_peer() {
    let of = |address: &str| PeerKey::of(address.parse().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[tokio::test]
async fn failures_that_repeat_are_one_line() {
    let repeats = Repeats::default();
    assert_eq!(repeats.due(), Some(0));
    for _ in 0..100 {
        assert_eq!(repeats.due(), None);
    }
    repeats.forget_last();
    assert_eq!(repeats.due(), Some(100));
}
