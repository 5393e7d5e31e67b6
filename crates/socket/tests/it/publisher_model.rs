//! Any order of subscriptions, cancels and messages: each subscriber gets what a naive model says, in order.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use crate::support::peer::frame;
use crate::support::raw::{Raw, cancel, subscribe};
use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};
use proptest::prelude::*;

const SUBSCRIBERS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Subscribe(usize, Vec<u8>, bool),
    Cancel(usize, Vec<u8>, bool),
    Send(Vec<u8>),
    /// Leaves, and comes back with nothing.
    Rejoin(usize),
}

fn topic() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(&b"ab"[..]), 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..SUBSCRIBERS;
    prop_oneof![
        4 => (who.clone(), topic(), any::<bool>()).prop_map(|(who, topic, old)| Step::Subscribe(who, topic, old)),
        2 => (who.clone(), topic(), any::<bool>()).prop_map(|(who, topic, old)| Step::Cancel(who, topic, old)),
        6 => topic().prop_map(Step::Send),
        1 => who.prop_map(Step::Rejoin),
    ]
}

/// A subscriber and what it should have.
struct Subscriber {
    raw: Raw,
    prefixes: BTreeSet<Vec<u8>>,
    expected: Vec<(u8, Vec<u8>)>,
    received: Vec<(u8, Vec<u8>)>,
}

impl Subscriber {
    fn join(address: &str) -> Self {
        let (prefixes, expected, received) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { raw: Raw::subscriber(address), prefixes, expected, received }
    }

    /// Says something, and waits until it was heard.
    fn say(&mut self, bytes: &[u8]) {
        self.raw.send(bytes);
        self.hear();
    }

    fn hear(&mut self) {
        let received = self.raw.sync();
        self.received.extend(received);
    }
}

proptest! {
    #[test]
    fn each_subscriber_gets_what_it_wants_in_order(steps in prop::collection::vec(step(), 1..60)) {
        let options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
        let mut publisher = PubSocket::open(&PublishContext::new(), &options).unwrap();
        let address = publisher.last_endpoint().to_owned();
        let mut subscribers: Vec<_> = (0..SUBSCRIBERS).map(|_| Subscriber::join(&address)).collect();
        for (number, step) in (0_u64..).zip(steps) {
            match step {
                Step::Subscribe(who, topic, old) => {
                    let bytes = if old { frame(0, &[b"\x01", &topic[..]].concat()) } else { subscribe(&topic) };
                    subscribers[who].say(&bytes);
                    subscribers[who].prefixes.insert(topic);
                }
                Step::Cancel(who, topic, old) => {
                    let bytes = if old { frame(0, &[b"\x00", &topic[..]].concat()) } else { cancel(&topic) };
                    subscribers[who].say(&bytes);
                    subscribers[who].prefixes.remove(&topic);
                }
                Step::Send(topic) => {
                    publisher.send_frames(&[&topic, &number.to_be_bytes()]).unwrap();
                    for subscriber in &mut subscribers {
                        if subscriber.prefixes.iter().any(|prefix| topic.starts_with(prefix)) {
                            subscriber.expected.push((1, topic.clone()));
                            subscriber.expected.push((0, number.to_be_bytes().to_vec()));
                        }
                    }
                }
                Step::Rejoin(who) => {
                    subscribers[who].hear();
                    prop_assert_eq!(&subscribers[who].received, &subscribers[who].expected);
                    subscribers[who] = Subscriber::join(&address);
                }
            }
        }
        for subscriber in &mut subscribers {
            subscriber.hear();
            prop_assert_eq!(&subscriber.received, &subscriber.expected);
        }
        prop_assert_eq!(publisher.counts().dropped, 0);
    }
}
