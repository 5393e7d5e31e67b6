//! What heartbeats of idle streams cost: opens subscriptions to publishers, lets them idle, and prints the
//! CPU time of the threads that serve the subscriptions (and of `kvp-pub`, which answers, beside it).
//!
//! ```text
//! cargo run --release -p kvplane-socket --example idle_heartbeats [STREAMS] [SECONDS]
//! ```
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a measurement fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_socket::{
    Endpoint, Options, PubOptions, PubSocket, PublishContext, Sockets, SubscriberHandler, Subscription,
};

#[derive(Clone, Default)]
struct Counts {
    proofs: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl SubscriberHandler for Counts {
    fn connected(&mut self) {}
    fn disconnected(&mut self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
    fn message(&mut self, _topic: &[u8], _sequence: u64, _payload: Bytes) {}
    fn malformed(&mut self, _reason: &'static str) {}
    fn proven(&mut self, _connection: u64, _at: Instant) {
        self.proofs.fetch_add(1, Ordering::Relaxed);
    }
    fn tick(&mut self, _now: Instant) {}
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let streams = arguments.next().unwrap_or(300);
    let seconds = arguments.next().unwrap_or(20);
    let context = PublishContext::new();
    let mut publishers: Vec<_> = (0..streams)
        .map(|_| {
            let endpoint = Endpoint::Bind("tcp://127.0.0.1:0".to_owned());
            PubSocket::open(&context, &PubOptions::new(endpoint)).unwrap()
        })
        .collect();
    let sockets = Sockets::start(&Options::default()).unwrap();
    let counts = Counts::default();
    let handles: Vec<_> = publishers
        .iter()
        .map(|publisher| {
            let endpoint = Endpoint::Connect(publisher.last_endpoint().to_owned());
            sockets.subscribe(Subscription::new(endpoint), Box::new(counts.clone())).unwrap()
        })
        .collect();
    for publisher in &mut publishers {
        assert!(publisher.wait_for_subscriptions(1, Duration::from_secs(30)));
    }
    // Past the handshakes.
    thread::sleep(Duration::from_secs(2));
    let (before, proofs, start) = (cpu(), counts.proofs.load(Ordering::Relaxed), Instant::now());
    thread::sleep(Duration::from_secs(seconds));
    let elapsed = start.elapsed().as_secs_f64();
    let after = cpu();
    let mut total = 0.0;
    for (name, used) in &after {
        let share = (used - before.get(name).unwrap_or(&0.0)) / elapsed;
        total += if name == "kvp-pub" { 0.0 } else { share };
        println!("{name:<12} {:6.3} % of a core", share * 100.0);
    }
    let rate = (counts.proofs.load(Ordering::Relaxed) - proofs) as f64 / elapsed;
    println!("{:<12} {:6.3} % of a core", "total", total * 100.0);
    println!("{streams} streams, {rate:.0} proofs/s, {} lost", counts.lost.load(Ordering::Relaxed));
    drop(handles);
}

/// CPU seconds of our threads, by name, from the scheduler's own account.
fn cpu() -> BTreeMap<String, f64> {
    let mut used = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let nanos = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let nanos = nanos.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default();
        if name.starts_with("kvp-") {
            *used.entry(name.trim().to_owned()).or_default() += nanos / 1e9;
        }
    }
    used
}
