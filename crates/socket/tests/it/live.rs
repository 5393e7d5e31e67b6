//! Subscriptions over real sockets.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use crate::support::libzmq::{PubOptions, PubSocket, PublishContext};
use crate::support::{Heard, Log, PATIENCE, Recorder, publisher, rebind, sockets, subscribe};
use bytes::Bytes;
use kvplane_socket::{Endpoint, SubscriberHandler, Subscription};

fn message(topic: &str, sequence: u64, payload: &[u8]) -> Heard {
    Heard::Message(topic.as_bytes().to_vec(), sequence, payload.to_vec())
}

#[test]
fn batches_come_in_order_with_their_topic_and_after_the_connection() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (_handle, log) = subscribe(&sockets, publisher.last_endpoint());
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    let large = vec![7; 100_000];
    publisher.send(b"", 0, b"first").unwrap();
    publisher.send(b"kv@pod", 1, &large).unwrap();
    publisher.send(b"", u64::MAX - 1, b"").unwrap();
    log.wait_for_message(u64::MAX - 1);
    assert_eq!(
        log.all(),
        [
            Heard::Connected,
            message("", 0, b"first"),
            message("kv@pod", 1, &large),
            message("", u64::MAX - 1, b"")
        ]
    );
    sockets.shutdown();
    assert_eq!(log.all().last(), Some(&Heard::Dropped));
}

#[test]
fn after_a_reconnect_the_events_come_before_any_message_of_the_new_connection() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let address = publisher.last_endpoint().to_owned();
    let (_handle, log) = subscribe(&sockets, &address);
    for life in 0..5 {
        assert!(publisher.wait_for_subscriptions(1, PATIENCE));
        publisher.send(b"", life, b"x").unwrap();
        log.wait_for_message(life);
        drop(publisher);
        publisher = rebind(&context, &address);
    }
    let heard = log.all();
    for life in 0..5u64 {
        let position = heard.iter().position(|h| *h == message("", life, b"x")).unwrap();
        let before = &heard[..position];
        let count = |wanted: &Heard| before.iter().filter(|h| *h == wanted).count() as u64;
        assert_eq!(count(&Heard::Connected), life + 1, "{heard:?}");
        assert_eq!(count(&Heard::Disconnected), life, "{heard:?}");
    }
}

#[test]
fn a_bound_subscription_takes_several_publishers_that_connect() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".into()));
    let handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    let connect = || {
        let endpoint = Endpoint::Connect(handle.last_endpoint().to_owned());
        PubSocket::open(&context, &PubOptions::new(endpoint)).unwrap()
    };
    let (mut first, mut second) = (connect(), connect());
    assert!(first.wait_for_subscriptions(1, PATIENCE) && second.wait_for_subscriptions(1, PATIENCE));
    first.send(b"one", 10, b"a").unwrap();
    second.send(b"two", 20, b"b").unwrap();
    log.wait_for_message(10);
    log.wait_for_message(20);
    drop(first);
    let heard = log.wait_for(&Heard::Disconnected);
    assert_eq!(heard.iter().filter(|h| **h == Heard::Connected).count(), 2);
    second.send(b"two", 21, b"c").unwrap();
    log.wait_for_message(21);

    let again = Subscription::new(Endpoint::Bind(handle.last_endpoint().to_owned()));
    let error = sockets.subscribe(again, Box::new(Recorder(Log::default()))).unwrap_err();
    assert!(error.is_address_in_use(), "{error}");
}

#[test]
fn only_topics_with_a_wanted_prefix_are_received() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let log = Log::default();
    let endpoint = Endpoint::Connect(publisher.last_endpoint().to_owned());
    let subscription = Subscription::new(endpoint).with_topics(["kv@a", "end"]);
    let _handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    for (sequence, topic) in ["kv@a", "kv@b", "", "kv@ab", "end"].into_iter().enumerate() {
        publisher.send(topic.as_bytes(), sequence as u64, b"").unwrap();
    }
    log.wait_for_message(4);
    assert_eq!(log.sequences(), [0, 3, 4]);
}

#[test]
fn messages_that_are_no_batches_are_reported_and_the_stream_goes_on() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (_handle, log) = subscribe(&sockets, publisher.last_endpoint());
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send_frames(&[b"", &[0; 8]]).unwrap();
    publisher.send_frames(&[b"", &[0; 7], b"payload"]).unwrap();
    publisher.send_frames(&[b""]).unwrap();
    publisher.send_frames(&[b"", b"", b"", b"", b"", b""]).unwrap();
    publisher.send(b"", 1, b"good").unwrap();
    log.wait_for_message(1);
    let (count, length) = (Heard::Malformed("frame_count"), Heard::Malformed("sequence_length"));
    assert_eq!(
        log.all(),
        [Heard::Connected, count.clone(), length, count.clone(), count, message("", 1, b"good")]
    );
}

#[test]
fn an_oversize_message_ends_the_connection_and_the_stream_is_dialled_again() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let log = Log::default();
    let mut subscription = Subscription::new(Endpoint::Connect(publisher.last_endpoint().to_owned()));
    subscription.max_message_bytes = 1000;
    let _handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    assert!(publisher.wait_for_subscriptions(1, PATIENCE));
    publisher.send(b"", 0, &[1; 900]).unwrap();
    log.wait_for_message(0);
    publisher.send(b"", 1, &[1; 5000]).unwrap();
    log.wait_for(&Heard::Disconnected);
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    publisher.send(b"", 2, &[1; 900]).unwrap();
    log.wait_for_message(2);
    let kinds: Vec<_> = log.all().into_iter().filter(|h| !matches!(h, Heard::Message(..))).collect();
    assert_eq!(kinds, [Heard::Connected, Heard::Disconnected, Heard::Connected]);
    assert_eq!(log.sequences(), [0, 2]);
}

#[test]
fn a_dropped_handle_ends_the_subscription_in_full_traffic() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let (kept, kept_log) = subscribe(&sockets, publisher.last_endpoint());
    let (dropped, dropped_log) = subscribe(&sockets, publisher.last_endpoint());
    assert!(publisher.wait_for_subscriptions(2, PATIENCE));
    let mut dropped = Some(dropped);
    for sequence in 0..20_000 {
        publisher.send(b"", sequence, b"payload").unwrap();
        if sequence == 10_000 {
            dropped_log.wait_for_message(1);
            dropped.take();
        }
    }
    kept_log.wait_for_message(19_999);
    assert_eq!(kept_log.sequences(), (0..20_000).collect::<Vec<_>>());
    let heard = dropped_log.wait_for(&Heard::Dropped);
    assert_eq!(heard.last(), Some(&Heard::Dropped), "nothing is heard after the end");
    drop(kept);
}

#[test]
fn a_busy_stream_does_not_starve_a_quiet_one() {
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut busy = publisher(&context, "tcp://127.0.0.1:0");
    let mut quiet = publisher(&context, "tcp://127.0.0.1:0");
    let logs: Vec<_> = (0..4).map(|_| subscribe(&sockets, busy.last_endpoint())).collect();
    let (_handle, quiet_log) = subscribe(&sockets, quiet.last_endpoint());
    assert!(busy.wait_for_subscriptions(4, PATIENCE) && quiet.wait_for_subscriptions(1, PATIENCE));
    for sequence in 0..50_000 {
        busy.send(b"", sequence, &[0; 200]).unwrap();
        if sequence % 1000 == 0 {
            quiet.send(b"", sequence, b"").unwrap();
        }
    }
    quiet_log.wait_for_message(49_000);
    assert_eq!(quiet_log.sequences().len(), 50);
    for (_handle, log) in &logs {
        log.wait_for_message(49_999);
        assert_eq!(log.sequences().len(), 50_000);
    }
}

#[test]
fn a_handler_that_panics_ends_its_own_subscription_only() {
    struct Panics(Log);
    impl SubscriberHandler for Panics {
        fn connected(&mut self) {}
        fn disconnected(&mut self) {}
        fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {
            panic!("a defect");
        }
        fn malformed(&mut self, _reason: &'static str) {}
        fn tick(&mut self, _now: Instant) {}
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.push(Heard::Dropped);
        }
    }
    let (context, sockets) = (PublishContext::new(), sockets());
    let mut publisher = publisher(&context, "tcp://127.0.0.1:0");
    let others: Vec<_> = (0..2).map(|_| subscribe(&sockets, publisher.last_endpoint())).collect();
    let broken = Log::default();
    let subscription = Subscription::new(Endpoint::Connect(publisher.last_endpoint().to_owned()));
    let _broken = sockets.subscribe(subscription, Box::new(Panics(broken.clone()))).unwrap();
    assert!(publisher.wait_for_subscriptions(3, PATIENCE));
    publisher.send(b"", 0, b"x").unwrap();
    broken.wait_for(&Heard::Dropped);
    publisher.send(b"", 1, b"x").unwrap();
    for (_handle, log) in &others {
        log.wait_for_message(1);
        assert_eq!(log.sequences(), [0, 1]);
    }
}

#[test]
fn ticks_come_without_any_traffic_and_a_missing_engine_is_no_error() {
    struct Ticks(Log);
    impl SubscriberHandler for Ticks {
        fn connected(&mut self) {}
        fn disconnected(&mut self) {}
        fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}
        fn malformed(&mut self, _reason: &'static str) {}
        fn tick(&mut self, _now: Instant) {
            self.0.push(Heard::Malformed("tick"));
        }
    }
    let sockets = sockets();
    let log = Log::default();
    // Port 1 is reserved and refuses.
    let subscription = Subscription::new(Endpoint::Connect("tcp://127.0.0.1:1".into()));
    let _handle = sockets.subscribe(subscription, Box::new(Ticks(log.clone()))).unwrap();
    log.wait("three ticks", |heard| heard.len() >= 3);
}

#[test]
fn a_handler_that_does_not_come_back_is_seen_from_outside() {
    struct Stuck(std::sync::mpsc::Receiver<()>);
    impl SubscriberHandler for Stuck {
        fn connected(&mut self) {}
        fn disconnected(&mut self) {}
        fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}
        fn malformed(&mut self, _reason: &'static str) {}
        fn tick(&mut self, _now: Instant) {
            // Held until the other end is dropped.
            let _ = self.0.recv();
        }
    }
    // Longer than any thread sleeps.
    const LONG: Duration = Duration::from_secs(2);
    let sockets = sockets();
    let wait_until = |what: &str, met: &dyn Fn(Duration) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !met(sockets.longest_round()) {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (let_go, held) = std::sync::mpsc::sync_channel(1);
    let subscription = Subscription::new(Endpoint::Connect("tcp://127.0.0.1:1".into()));
    let _handle = sockets.subscribe(subscription, Box::new(Stuck(held))).unwrap();
    wait_until("it is stuck", &|round| round > LONG);
    drop(let_go);
    wait_until("it goes round again", &|round| round < LONG);
}
