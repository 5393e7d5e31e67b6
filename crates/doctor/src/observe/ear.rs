//! Listening to what is published, and summing it up on the socket's own thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_socket::{Endpoint, SocketError, Sockets, SubscriberHandler, Subscription, SubscriptionHandle};
use kvplane_wire::Decoder;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Heard;

/// Topics that are distinguished; an address with more has one publisher that makes them up.
const MAX_TOPICS: usize = 8;

/// An open subscription to everything that is published at one place.
pub(crate) struct Ear {
    caught: Arc<Caught>,
    _subscription: SubscriptionHandle,
}

#[derive(Default)]
struct Caught {
    sounds: Mutex<Sounds>,
    changed: Notify,
}

#[derive(Default)]
struct Sounds {
    /// By the topic that somebody wants.
    wanted: BTreeMap<String, Heard>,
    /// Topics that nobody wants.
    others: BTreeMap<String, u64>,
    /// Publishers that connected.
    connected: u64,
}

/// What was caught for one topic.
pub(crate) struct Catch {
    pub(crate) heard: Heard,
    pub(crate) others: BTreeMap<String, u64>,
    pub(crate) connected: bool,
}

struct Handler {
    caught: Arc<Caught>,
    decoder: Decoder,
}

impl Ear {
    /// Begins to listen to these topics.
    pub(crate) fn open(
        sockets: &Sockets,
        endpoint: Endpoint,
        topics: impl IntoIterator<Item = String>,
    ) -> Result<Self, SocketError> {
        let wanted = topics.into_iter().map(|topic| (topic, Heard::default())).collect();
        let sounds = Mutex::new(Sounds { wanted, ..Sounds::default() });
        let caught = Arc::new(Caught { sounds, changed: Notify::new() });
        let handler = Handler { caught: caught.clone(), decoder: Decoder::default() };
        let subscription = sockets.subscribe(Subscription::new(endpoint), Box::new(handler))?;
        Ok(Self { caught, _subscription: subscription })
    }

    /// What was caught for a topic so far.
    pub(crate) fn caught(&self, topic: &str) -> Catch {
        let sounds = self.caught.sounds.lock();
        Catch {
            heard: sounds.wanted.get(topic).cloned().unwrap_or_default(),
            others: sounds.others.clone(),
            connected: sounds.connected > 0,
        }
    }

    /// Waits until `enough` of a topic was caught; at most so long.
    pub(crate) async fn listen(
        &self,
        topic: &str,
        within: Duration,
        enough: impl Fn(&Catch) -> bool,
    ) -> Catch {
        let wait = async {
            loop {
                let changed = self.caught.changed.notified();
                tokio::pin!(changed);
                // Whatever happens after this look wakes us.
                changed.as_mut().enable();
                if enough(&self.caught(topic)) {
                    return;
                }
                changed.await;
            }
        };
        // Either way, what counts is what was caught by now.
        let _ = tokio::time::timeout(within, wait).await;
        self.caught(topic)
    }
}

impl SubscriberHandler for Handler {
    fn connected(&mut self) {
        self.caught.sounds.lock().connected += 1;
        self.caught.changed.notify_waiters();
    }

    fn disconnected(&mut self) {}

    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes) {
        let now = super::now();
        let mut sounds = self.caught.sounds.lock();
        let fits = |wanted: &str| topic.starts_with(wanted.as_bytes());
        let longest = sounds
            .wanted
            .iter_mut()
            .filter(|(wanted, _)| fits(wanted))
            .max_by_key(|(wanted, _)| wanted.len());
        if let Some((_, heard)) = longest {
            heard.note(&mut self.decoder, sequence, &payload, Some(now));
        } else {
            let topic = String::from_utf8_lossy(topic).into_owned();
            if sounds.others.len() < MAX_TOPICS || sounds.others.contains_key(&topic) {
                *sounds.others.entry(topic).or_default() += 1;
            }
        }
    }

    fn malformed(&mut self, reason: &'static str) {
        // It has no topic that could be believed: it is everybody's.
        self.caught.sounds.lock().wanted.values_mut().for_each(|heard| heard.note_malformed(reason));
    }

    fn drained(&mut self) {
        self.caught.changed.notify_waiters();
    }

    fn tick(&mut self, _: Instant) {}
}
