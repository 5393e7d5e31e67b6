use std::time::Instant;

use bytes::Bytes;
use kvplane_socket::{Options, SubscriberHandler, Subscription};
use kvplane_wire::Profile;

use super::*;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Passes on the numbers of what it hears.
struct Numbers(SyncSender<u64>);

impl SubscriberHandler for Numbers {
    fn connected(&mut self) {}
    fn disconnected(&mut self) {}
    fn message(&mut self, _topic: &[u8], sequence: u64, _payload: Bytes) {
        let _ = self.0.send(sequence);
    }
    fn malformed(&mut self, reason: &'static str) {
        panic!("{reason}");
    }
    fn tick(&mut self, _now: Instant) {}
}

#[test]
fn tensorrt_llm_loses_what_finds_no_room_and_its_numbers() {
    let config = SimConfig { profile: Profile::TrtllmZmq, queue: 3, ..SimConfig::default() };
    let publisher = PublisherHandle::start(&config, 0).unwrap();
    // Until somebody subscribes, the thread takes nothing from its queue.
    let (answer, answered) = sync_channel(1);
    publisher.send(Command::WaitForSubscriptions(1, PATIENCE, answer));
    for _ in 0..6 {
        publisher.publish(vec![OwnedEvent::Cleared]);
    }
    let (numbers, heard) = sync_channel(16);
    let sockets = kvplane_socket::Sockets::start(&Options::default()).unwrap();
    let endpoint = Endpoint::Connect(publisher.events.clone());
    let _subscription = sockets.subscribe(Subscription::new(endpoint), Box::new(Numbers(numbers))).unwrap();
    assert_eq!(answered.recv_timeout(PATIENCE), Ok(true));
    assert_eq!(publisher.sync(), Some(6), "numbers are given when a batch is queued");
    publisher.publish(vec![OwnedEvent::Cleared]);
    let mut sequences = Vec::new();
    while sequences.last() != Some(&6) {
        sequences.push(heard.recv_timeout(PATIENCE).unwrap());
    }
    assert!(sequences.is_sorted() && (2..6).contains(&sequences.len()), "{sequences:?}");
}
