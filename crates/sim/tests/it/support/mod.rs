//! A consumer that counts copies, over real sockets.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod client;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_sim::load::Workload;
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};
use kvplane_socket::{
    Endpoint, Options, ReplayEnd, ReplayHandler, ReplayRequest, Sockets, SubscriberHandler, Subscription,
    SubscriptionHandle,
};
use kvplane_wire::{Decoder, Event, Removed, Stored};
use parking_lot::{Condvar, Mutex};

/// Far above what anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Default)]
pub struct Heard {
    pub connected: usize,
    pub disconnected: usize,
    pub messages: Vec<(u64, Bytes)>,
    pub topics: Vec<String>,
    pub end: Option<ReplayEnd>,
}

impl Heard {
    pub fn sequences(&self) -> Vec<u64> {
        self.messages.iter().map(|(sequence, _)| *sequence).collect()
    }
}

#[derive(Clone, Default)]
pub struct Log(Arc<(Mutex<Heard>, Condvar)>);

impl Log {
    fn write(&self, write: impl FnOnce(&mut Heard)) {
        write(&mut self.0.0.lock());
        self.0.1.notify_all();
    }

    pub fn wait(&self, what: &str, met: impl Fn(&Heard) -> bool) -> Heard {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.0.0.lock();
        while !met(&heard) {
            let late = self.0.1.wait_until(&mut heard, deadline).timed_out();
            assert!(!late || met(&heard), "waited in vain for {what}: {:?}", heard.sequences());
        }
        heard.clone()
    }

    pub fn wait_for(&self, sequence: u64) -> Heard {
        self.wait(&format!("sequence {sequence}"), |heard| heard.messages.iter().any(|(s, _)| *s == sequence))
    }
}

impl SubscriberHandler for Log {
    fn connected(&mut self) {
        self.write(|heard| heard.connected += 1);
    }

    fn disconnected(&mut self) {
        self.write(|heard| heard.disconnected += 1);
    }

    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes) {
        self.write(|heard| {
            heard.messages.push((sequence, payload));
            heard.topics.push(String::from_utf8_lossy(topic).into_owned());
        });
    }

    fn malformed(&mut self, reason: &'static str) {
        panic!("{reason}");
    }

    fn tick(&mut self, _now: Instant) {}
}

impl ReplayHandler for Log {
    fn batch(&mut self, sequence: u64, payload: Bytes) {
        self.write(|heard| heard.messages.push((sequence, payload)));
    }

    fn finished(self: Box<Self>, end: ReplayEnd) {
        self.write(|heard| heard.end = Some(end));
    }
}

/// An engine and a subscription to each of its ranks, connected.
pub struct Scene {
    pub engine: SimHandle,
    pub logs: Vec<Log>,
    pub sockets: Sockets,
    _subscriptions: Vec<SubscriptionHandle>,
}

impl Scene {
    /// Runs the next request of a load, which finds what was to be expected. How many tokens that is.
    pub fn next_request(&self, load: &mut Workload) -> usize {
        let turn = load.next_turn();
        let options = CompletionOptions::default();
        let predicted = self.engine.would_hit(&turn.prompt, &options);
        let result = self.engine.complete(&turn.prompt, turn.max_tokens, &options).unwrap();
        assert_eq!(result.cached_tokens, predicted);
        load.replied(turn.conversation, &result.output);
        predicted
    }

    pub fn start(config: SimConfig) -> Self {
        let engine = SimEngine::start(config).unwrap();
        let sockets = Sockets::start(&Options::default()).unwrap();
        let mut logs = Vec::new();
        let mut subscriptions = Vec::new();
        for (rank, endpoint) in engine.event_endpoints().into_iter().enumerate() {
            let log = Log::default();
            let subscription = Subscription::new(Endpoint::Connect(endpoint));
            subscriptions.push(sockets.subscribe(subscription, Box::new(log.clone())).unwrap());
            assert!(engine.wait_for_subscriptions(rank as u32, 1, PATIENCE));
            logs.push(log);
        }
        Self { engine, logs, sockets, _subscriptions: subscriptions }
    }

    /// Everything that a rank published so far.
    pub fn heard(&self, rank: usize) -> Heard {
        match self.engine.state()[rank].next_sequence {
            0 => Heard::default(),
            next => self.logs[rank].wait_for(next - 1),
        }
    }

    pub fn replay(&self, rank: usize, from: u64) -> Heard {
        // The publisher has a thread of its own: everything before is in its ring then.
        self.engine.next_sequence(rank as u32);
        let endpoint = self.engine.replay_endpoints()[rank].clone().unwrap();
        self.replay_with(ReplayRequest { deadline: PATIENCE, ..ReplayRequest::new(endpoint, from) })
    }

    pub fn replay_with(&self, request: ReplayRequest) -> Heard {
        let log = Log::default();
        self.sockets.replay(request, Box::new(log.clone())).unwrap();
        log.wait("the end of a replay", |heard| heard.end.is_some())
    }
}

/// What messages say the device holds: copies by hash.
pub fn residency(messages: &[(u64, Bytes)]) -> BTreeMap<u64, usize> {
    residency_on(messages, "GPU")
}

/// The same for a medium. An engine that names none has the device only.
pub fn residency_on(messages: &[(u64, Bytes)], medium: &str) -> BTreeMap<u64, usize> {
    let mut all = BTreeMap::new();
    for ((_, hash), copies) in group_residency(messages, medium) {
        *all.entry(hash).or_default() += copies;
    }
    all
}

/// The same, by group and hash. An engine that names no group has one.
pub fn group_residency(messages: &[(u64, Bytes)], medium: &str) -> BTreeMap<(u32, u64), usize> {
    let mut copies: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    let elsewhere = |named: Option<&str>| named.unwrap_or("GPU") != medium;
    let mut decoder = Decoder::default();
    for (_, payload) in messages {
        let batch = decoder.decode(payload).unwrap();
        for event in &batch.events {
            match event {
                Event::Stored(Stored { medium, .. }) | Event::Removed(Removed { medium, .. })
                    if elsewhere(*medium) => {}
                Event::Stored(stored) => {
                    let group = stored.group.unwrap_or(0);
                    let hashes = batch.stored_hashes(stored).iter();
                    hashes.for_each(|hash| *copies.entry((group, hash.bits)).or_default() += 1);
                }
                Event::Removed(removed) => {
                    let group = removed.group.unwrap_or(0);
                    for hash in batch.removed_hashes(removed) {
                        *copies.get_mut(&(group, hash.bits)).expect("stored before") -= 1;
                    }
                }
                Event::Cleared { .. } => copies.clear(),
                other => panic!("{other:?}"),
            }
        }
    }
    copies.retain(|_, copies| *copies > 0);
    copies
}

pub fn timestamps(messages: &[(u64, Bytes)]) -> Vec<f64> {
    let mut decoder = Decoder::default();
    messages.iter().map(|(_, payload)| decoder.decode(payload).unwrap().timestamp).collect()
}
