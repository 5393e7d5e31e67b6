//! Answering replays over real sockets: askers of libzmq, and our own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::time::Duration;

use crate::support::raw::{Raw, request};
use crate::support::{Heard, Log, PATIENCE, ReplayRecorder, sockets};
use kvplane_socket::{PublishContext, ReplayEnd, ReplayRequest, ReplyFraming, RouterSocket};

fn router() -> RouterSocket {
    RouterSocket::bind(&PublishContext::new(), "tcp://127.0.0.1:0", 0).unwrap()
}

fn asker(context: &zmq::Context, kind: zmq::SocketType, router: &RouterSocket) -> zmq::Socket {
    let socket = context.socket(kind).unwrap();
    socket.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
    socket.set_linger(0).unwrap();
    socket.connect(router.last_endpoint()).unwrap();
    socket
}

#[test]
fn a_dealer_of_libzmq_is_answered_in_both_framings() {
    let (context, router) = (zmq::Context::new(), router());
    let dealer = asker(&context, zmq::DEALER, &router);
    for (framing, extra) in [(ReplyFraming::Plain, 0), (ReplyFraming::WithTopic, 1)] {
        dealer.send_multipart([&b""[..], &5_u64.to_be_bytes()], 0).unwrap();
        let asked = router.recv_request(PATIENCE).unwrap().unwrap();
        assert_eq!((asked.start, asked.identity.len(), asked.identity[0]), (5, 5, 0));
        for sequence in 5..8 {
            router.reply_batch(&asked.identity, framing, b"kv", sequence, &[1; 300]).unwrap();
        }
        router.reply_end(&asked.identity, framing).unwrap();
        for sequence in 5..8_u64 {
            let frames = dealer.recv_multipart(0).unwrap();
            assert_eq!((frames.len(), &frames[0][..]), (3 + extra, &b""[..]));
            assert_eq!(frames[1 + extra], sequence.to_be_bytes());
            assert_eq!(frames[2 + extra], [1; 300]);
        }
        let end = dealer.recv_multipart(0).unwrap();
        assert_eq!((&end[1 + extra][..], &end[2 + extra][..]), (&[0xff; 8][..], &b""[..]));
    }
}

#[test]
fn a_req_of_libzmq_puts_the_delimiter_by_itself() {
    let (context, router) = (zmq::Context::new(), router());
    let req = asker(&context, zmq::REQ, &router);
    for start in 0..3_u64 {
        req.send(&start.to_be_bytes()[..], 0).unwrap();
        let asked = router.recv_request(PATIENCE).unwrap().unwrap();
        assert_eq!(asked.start, start);
        router.reply_frames(&asked.identity, &[b"", b"answer"]).unwrap();
        assert_eq!(req.recv_multipart(0).unwrap(), [b"answer"]);
    }
}

#[test]
fn identities_of_libzmq_are_kept() {
    let (context, router) = (zmq::Context::new(), router());
    let dealer = context.socket(zmq::DEALER).unwrap();
    dealer.set_identity(b"kvplane-1").unwrap();
    dealer.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
    dealer.connect(router.last_endpoint()).unwrap();
    dealer.send_multipart([&b""[..], &[0; 8]], 0).unwrap();
    assert_eq!(router.recv_request(PATIENCE).unwrap().unwrap().identity, b"kvplane-1");
    router.reply_frames(b"kvplane-1", &[b"", b"x"]).unwrap();
    assert_eq!(dealer.recv_multipart(0).unwrap(), [&b""[..], b"x"]);
}

#[test]
fn our_own_asker_gets_a_whole_replay() {
    const COUNT: u64 = 20_000;
    let (sockets, router) = (sockets(), router());
    let log = Log::default();
    let asked = ReplayRequest {
        idle_timeout: PATIENCE,
        deadline: PATIENCE,
        ..ReplayRequest::new(router.last_endpoint(), 3)
    };
    sockets.replay(asked, Box::new(ReplayRecorder(log.clone()))).unwrap();
    let request = router.recv_request(PATIENCE).unwrap().unwrap();
    for sequence in request.start..COUNT {
        router.reply_batch(&request.identity, ReplyFraming::WithTopic, b"", sequence, &[0; 300]).unwrap();
    }
    router.reply_end(&request.identity, ReplyFraming::WithTopic).unwrap();
    assert_eq!(log.wait_for_end(), ReplayEnd::Complete);
    assert_eq!(log.sequences(), (3..COUNT).collect::<Vec<_>>());
    assert_eq!(log.all().last(), Some(&Heard::Finished(ReplayEnd::Complete)));
}

#[test]
fn many_askers_are_answered_each_with_their_own() {
    const ASKERS: u64 = 50;
    let (context, router) = (zmq::Context::new(), router());
    let dealers: Vec<_> = (0..ASKERS).map(|_| asker(&context, zmq::DEALER, &router)).collect();
    for (dealer, start) in dealers.iter().zip(0_u64..) {
        dealer.send_multipart([&b""[..], &start.to_be_bytes()], 0).unwrap();
    }
    for _ in 0..ASKERS {
        let asked = router.recv_request(PATIENCE).unwrap().unwrap();
        router.reply_frames(&asked.identity, &[b"", &asked.start.to_be_bytes()]).unwrap();
    }
    for (dealer, start) in dealers.iter().zip(0_u64..) {
        assert_eq!(dealer.recv_multipart(0).unwrap()[1], start.to_be_bytes());
    }
}

/// An asker with thousands of requests waits like the others; nothing of it is lost, and little of it is
/// held.
#[test]
fn each_asker_gets_its_turn() {
    const FLOOD: u64 = 20_000;
    let router = router();
    let mut flooding = Raw::dealer(router.last_endpoint(), b"flood");
    let writer = std::thread::spawn(move || {
        let all: Vec<u8> = (0..FLOOD).flat_map(request).collect();
        flooding.send(&all);
        flooding
    });
    // It is there, with more than one.
    let mut counts = HashMap::from([(b"flood".to_vec(), 0_u64)]);
    let mut next = || {
        let asked = router.recv_request(PATIENCE).unwrap().expect("a request");
        let count = counts.entry(asked.identity.clone()).or_insert(0);
        assert_eq!(asked.start, *count, "in the order in which it was asked");
        *count += 1;
        asked.identity
    };
    assert_eq!(next(), b"flood");
    let mut modest = Raw::dealer(router.last_endpoint(), b"modest");
    modest.send(&[request(0), request(1)].concat());
    assert!(modest.sync().is_empty());
    let order: Vec<_> = (0..4).map(|_| next()).collect();
    assert_eq!(order.iter().filter(|identity| *identity == b"modest").count(), 2, "{order:?}");
    for _ in 0..FLOOD - 3 {
        assert_eq!(next(), b"flood");
    }
    let mut flooding = writer.join().unwrap();
    assert!(flooding.sync().is_empty(), "it is still served");
    assert_eq!(router.recv_request(Duration::ZERO).unwrap(), None);
}

/// What waits for an asker is bounded; the rest is dropped, and others are not held up.
#[test]
fn an_asker_that_does_not_read_loses_replies() {
    let router = RouterSocket::bind(&PublishContext::new(), "tcp://127.0.0.1:0", 5).unwrap();
    let mut lazy = Raw::dealer(router.last_endpoint(), b"lazy");
    let mut good = Raw::dealer(router.last_endpoint(), b"good");
    lazy.sync();
    good.sync();
    let payload = vec![1; 200_000];
    let mut sent = 0_u64;
    while router.counts().dropped < 20 {
        for identity in [b"lazy", b"good"] {
            router.reply_frames(identity, &[&sent.to_be_bytes(), &payload]).unwrap();
        }
        assert_eq!(good.frame(), (1, sent.to_be_bytes().to_vec()));
        assert_eq!(good.frame().1.len(), payload.len());
        sent += 1;
    }
    let mut last = None;
    for _ in 0..sent - router.counts().dropped {
        let number = u64::from_be_bytes(lazy.frame().1.try_into().unwrap());
        assert_eq!(lazy.frame(), (0, payload.clone()));
        assert!(last < Some(number));
        last = Some(number);
    }
    assert!(lazy.sync().is_empty());
}

#[test]
fn an_address_is_free_when_the_socket_is_dropped() {
    let context = PublishContext::new();
    let mut router = RouterSocket::bind(&context, "tcp://127.0.0.1:0", 0).unwrap();
    let address = router.last_endpoint().to_owned();
    for life in 0..20 {
        let mut raw = Raw::dealer(&address, b"");
        raw.send(&request(life));
        assert_eq!(router.recv_request(PATIENCE).unwrap().unwrap().start, life);
        drop(router);
        raw.closed();
        router = RouterSocket::bind(&context, &address, 0).unwrap();
    }
}
