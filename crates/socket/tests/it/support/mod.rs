//! A handler that writes down what it hears, and lets a test wait for it.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod libzmq;
pub mod peer;
pub mod raw;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_socket::{
    Endpoint, Options, ReplayEnd, ReplayHandler, Sockets, SubscriberHandler, Subscription, SubscriptionHandle,
};
use libzmq::{PubOptions, PubSocket, PublishContext};
use parking_lot::{Condvar, Mutex};

/// Far above what anything here takes, so that only a defect reaches it.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Connected,
    Disconnected,
    Message(Vec<u8>, u64, Vec<u8>),
    Malformed(&'static str),
    Batch(u64, Vec<u8>),
    Finished(ReplayEnd),
    Dropped,
    Proven(u64, Instant),
    ProtocolError(&'static str),
}

#[derive(Clone, Default)]
pub struct Log(Arc<(Mutex<Vec<Heard>>, Condvar)>);

impl Log {
    pub fn push(&self, heard: Heard) {
        self.0.0.lock().push(heard);
        self.0.1.notify_all();
    }

    pub fn all(&self) -> Vec<Heard> {
        self.0.0.lock().clone()
    }

    /// Waits until `met` holds for all that was heard so far; gives it back.
    pub fn wait(&self, what: &str, met: impl Fn(&[Heard]) -> bool) -> Vec<Heard> {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.0.0.lock();
        while !met(&heard) {
            let late = self.0.1.wait_until(&mut heard, deadline).timed_out();
            assert!(!late || met(&heard), "waited in vain for {what}; heard {:?}", summary(&heard));
        }
        heard.clone()
    }

    pub fn wait_for(&self, wanted: &Heard) -> Vec<Heard> {
        self.wait(&format!("{wanted:?}"), |heard| heard.contains(wanted))
    }

    pub fn wait_for_message(&self, sequence: u64) -> Vec<Heard> {
        self.wait(&format!("message {sequence}"), |heard| {
            heard.iter().any(|h| matches!(h, Heard::Message(_, s, _) if *s == sequence))
        })
    }

    pub fn wait_for_end(&self) -> ReplayEnd {
        let end = |heard: &[Heard]| {
            heard.iter().find_map(|h| if let Heard::Finished(end) = h { Some(*end) } else { None })
        };
        let heard = self.wait("the end of a replay", |heard| end(heard).is_some());
        end(&heard).unwrap()
    }

    pub fn sequences(&self) -> Vec<u64> {
        let sequence = |h: &Heard| match h {
            Heard::Message(_, sequence, _) | Heard::Batch(sequence, _) => Some(*sequence),
            _ => None,
        };
        self.all().iter().filter_map(sequence).collect()
    }
}

fn summary(heard: &[Heard]) -> &[Heard] {
    &heard[heard.len().saturating_sub(12)..]
}

/// Writes everything into a log, ticks aside.
pub struct Recorder(pub Log);

impl SubscriberHandler for Recorder {
    fn connected(&mut self) {
        self.0.push(Heard::Connected);
    }

    fn disconnected(&mut self) {
        self.0.push(Heard::Disconnected);
    }

    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes) {
        self.0.push(Heard::Message(topic.to_vec(), sequence, payload.to_vec()));
    }

    fn malformed(&mut self, reason: &'static str) {
        self.0.push(Heard::Malformed(reason));
    }

    fn tick(&mut self, _now: Instant) {}
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.0.push(Heard::Dropped);
    }
}

/// Writes everything into a log, proofs and faults of peers too.
pub struct Witness(pub Log);

impl SubscriberHandler for Witness {
    fn connected(&mut self) {
        self.0.push(Heard::Connected);
    }

    fn disconnected(&mut self) {
        self.0.push(Heard::Disconnected);
    }

    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes) {
        self.0.push(Heard::Message(topic.to_vec(), sequence, payload.to_vec()));
    }

    fn malformed(&mut self, reason: &'static str) {
        self.0.push(Heard::Malformed(reason));
    }

    fn proven(&mut self, connection: u64, at: Instant) {
        self.0.push(Heard::Proven(connection, at));
    }

    fn protocol_error(&mut self, reason: &'static str) {
        self.0.push(Heard::ProtocolError(reason));
    }

    fn tick(&mut self, _now: Instant) {}
}

/// Writes a replay into a log.
pub struct ReplayRecorder(pub Log);

impl ReplayHandler for ReplayRecorder {
    fn batch(&mut self, sequence: u64, payload: Bytes) {
        self.0.push(Heard::Batch(sequence, payload.to_vec()));
    }

    fn finished(self: Box<Self>, end: ReplayEnd) {
        self.0.push(Heard::Finished(end));
    }
}

pub fn sockets() -> Sockets {
    Sockets::start(&Options::default()).unwrap()
}

pub fn publisher(context: &PublishContext, address: &str) -> PubSocket {
    PubSocket::open(context, &PubOptions::new(Endpoint::Bind(address.to_owned()))).unwrap()
}

/// Opens again on an address that was just given up; libzmq closes in the background.
pub fn rebind(context: &PublishContext, address: &str) -> PubSocket {
    let options = PubOptions::new(Endpoint::Bind(address.to_owned()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match PubSocket::open(context, &options) {
            Err(zmq::Error::EADDRINUSE) if Instant::now() < deadline => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

pub fn subscribe(sockets: &Sockets, address: &str) -> (SubscriptionHandle, Log) {
    let log = Log::default();
    let subscription = Subscription::new(Endpoint::Connect(address.to_owned()));
    let handle = sockets.subscribe(subscription, Box::new(Recorder(log.clone()))).unwrap();
    (handle, log)
}
