//! Replay requests over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::time::Duration;

use crate::support::libzmq::{PublishContext, RouterSocket};
use crate::support::{Heard, Log, PATIENCE, ReplayRecorder, sockets};
use bytes::Bytes;
use kvplane_socket::{ReplayEnd, ReplayHandler, ReplayRequest, ReplayRequestIn, ReplyFraming, Sockets};

fn router(context: &PublishContext) -> RouterSocket {
    RouterSocket::bind(context, "tcp://127.0.0.1:0", 0).unwrap()
}

fn ask(sockets: &Sockets, request: ReplayRequest) -> Log {
    let log = Log::default();
    sockets.replay(request, Box::new(ReplayRecorder(log.clone()))).unwrap();
    log
}

fn patient(endpoint: &str, from: u64) -> ReplayRequest {
    ReplayRequest { idle_timeout: PATIENCE, deadline: PATIENCE, ..ReplayRequest::new(endpoint, from) }
}

fn request_at(router: &RouterSocket) -> ReplayRequestIn {
    router.recv_request(PATIENCE).unwrap().expect("a request")
}

#[test]
fn both_framings_are_understood() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    for (framing, topic) in [
        (ReplyFraming::Plain, &b""[..]),
        (ReplyFraming::WithTopic, b""),
        (ReplyFraming::WithTopic, b"kv@pod"),
    ] {
        let log = ask(&sockets, patient(router.last_endpoint(), 5));
        let request = request_at(&router);
        assert_eq!(request.start, 5);
        for sequence in 5..8 {
            router.reply_batch(&request.identity, framing, topic, sequence, &[sequence as u8]).unwrap();
        }
        router.reply_end(&request.identity, framing).unwrap();
        assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
        let batch = |sequence: u64| Heard::Batch(sequence, vec![sequence as u8]);
        assert_eq!(log.all(), [batch(5), batch(6), batch(7), Heard::Finished(ReplayEnd::Complete)]);
    }
}

#[test]
fn half_an_end_marker_is_not_the_end() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    for half in [[&b""[..], &[0xff; 8], b"x"], [&b""[..], &[0; 8], b""]] {
        let log = ask(&sockets, patient(router.last_endpoint(), 0));
        let request = request_at(&router);
        router.reply_frames(&request.identity, &half).unwrap();
        assert_eq!(log.wait_for_end(), ReplayEnd::Malformed("half_end"));
    }
}

#[test]
fn many_batches_come_whole_and_in_order() {
    const COUNT: u64 = 20_000;
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let log = ask(&sockets, patient(router.last_endpoint(), 0));
    let request = request_at(&router);
    for sequence in 0..COUNT {
        router.reply_batch(&request.identity, ReplyFraming::WithTopic, b"", sequence, &[0; 300]).unwrap();
    }
    router.reply_end(&request.identity, ReplyFraming::WithTopic).unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
    assert_eq!(log.sequences(), (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn silence_ends_by_the_idle_limit_and_drip_feed_by_the_deadline() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let mut silent = patient(router.last_endpoint(), 0);
    silent.idle_timeout = Duration::from_millis(50);
    let log = ask(&sockets, silent);
    request_at(&router);
    assert_eq!(log.wait_for_end(), ReplayEnd::Idle);

    let mut dripping = patient(router.last_endpoint(), 0);
    dripping.deadline = Duration::from_millis(200);
    let log = ask(&sockets, dripping);
    let request = request_at(&router);
    router.reply_batch(&request.identity, ReplyFraming::Plain, b"", 0, b"only one").unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Deadline);
    assert_eq!(log.sequences(), [0]);
}

#[test]
fn an_absent_engine_costs_nobody_else_anything() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let absent: Vec<_> = (0..300)
        .map(|_| {
            let mut request = patient("tcp://127.0.0.1:1", 0);
            request.idle_timeout = Duration::from_millis(300);
            ask(&sockets, request)
        })
        .collect();
    for log in &absent {
        assert_eq!(log.wait_for_end(), ReplayEnd::Idle);
    }
    let log = ask(&sockets, patient(router.last_endpoint(), 0));
    router.reply_end(&request_at(&router).identity, ReplyFraming::Plain).unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
    assert_eq!(ask(&sockets, patient("not an address", 0)).wait_for_end(), ReplayEnd::Malformed("endpoint"));
}

#[test]
fn an_engine_that_comes_up_in_time_still_answers() {
    let (context, sockets) = (PublishContext::new(), sockets());
    // Closed before anyone asks, and for certain: unlike a socket of libzmq's.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp://127.0.0.1:{port}");
    let log = ask(&sockets, patient(&address, 3));
    let router = RouterSocket::bind(&context, &address, 0).unwrap();
    let request = request_at(&router);
    assert_eq!(request.start, 3);
    router.reply_end(&request.identity, ReplyFraming::Plain).unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
}

#[test]
fn nonsense_and_excess_end_a_replay_with_their_reason() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let cases: [(&[&[u8]], ReplayEnd); 5] = [
        (&[b"", b"x"], ReplayEnd::Malformed("frame_count")),
        (&[b"", b"", b"", &[0; 8], b"x"], ReplayEnd::Malformed("frame_count")),
        (&[b"no", &[0; 8], b"x"], ReplayEnd::Malformed("delimiter")),
        (&[b"", &[0; 7], b"x"], ReplayEnd::Malformed("sequence_length")),
        (&[b"", &[0; 8], &[0; 101]], ReplayEnd::TooLarge),
    ];
    for (frames, end) in cases {
        let log = ask(&sockets, ReplayRequest { max_bytes: 100, ..patient(router.last_endpoint(), 0) });
        let request = request_at(&router);
        router.reply_frames(&request.identity, frames).unwrap();
        assert_eq!(log.wait_for_end(), end);
        assert!(log.sequences().is_empty());
    }
}

#[test]
fn a_cancelled_replay_ends_at_once() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let log = Log::default();
    let request = patient(router.last_endpoint(), 0);
    let handle = sockets.replay(request, Box::new(ReplayRecorder(log.clone()))).unwrap();
    request_at(&router);
    handle.cancel();
    assert_eq!(log.wait_for_end(), ReplayEnd::Cancelled);
}

#[test]
fn a_shutdown_cancels_what_is_in_flight_and_refuses_what_comes_later() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    let logs: Vec<_> = (0..5).map(|_| ask(&sockets, patient(router.last_endpoint(), 0))).collect();
    let request = request_at(&router);
    router.reply_batch(&request.identity, ReplyFraming::Plain, b"", 0, b"x").unwrap();
    sockets.shutdown();
    for log in logs {
        assert_eq!(log.wait_for_end(), ReplayEnd::Cancelled);
    }
    let late = sockets.replay(patient(router.last_endpoint(), 0), Box::new(ReplayRecorder(Log::default())));
    assert!(late.is_err());
    sockets.shutdown();
}

#[test]
fn a_handler_that_panics_ends_its_own_replay_only() {
    struct Panics;
    impl ReplayHandler for Panics {
        fn batch(&mut self, _sequence: u64, _payload: Bytes) {
            panic!("a defect");
        }
        fn finished(self: Box<Self>, _end: ReplayEnd) {
            panic!("another");
        }
    }
    let (context, sockets) = (PublishContext::new(), sockets());
    let router = router(&context);
    for with_batch in [true, false] {
        sockets.replay(patient(router.last_endpoint(), 0), Box::new(Panics)).unwrap();
        let request = request_at(&router);
        if with_batch {
            router.reply_batch(&request.identity, ReplyFraming::Plain, b"", 0, b"x").unwrap();
        }
        router.reply_end(&request.identity, ReplyFraming::Plain).unwrap();
    }
    let log = ask(&sockets, patient(router.last_endpoint(), 0));
    router.reply_end(&request_at(&router).identity, ReplyFraming::Plain).unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
}
