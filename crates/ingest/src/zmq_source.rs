//! The `ZeroMQ` source: carries what sockets say to a stream's recorder, and the recorder's questions to
//! sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_core::{StreamId, Trouble};
use kvplane_socket::{
    Alarm, ReplayEnd, ReplayHandle, ReplayHandler, ReplayRequest, Sockets, SubscriberHandler,
};
use kvplane_stream::{Ask, Now, Recorder};
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use crate::claims::Claims;
use crate::feeder::Feeder;
use crate::hint::HintSource;
use crate::questions::Questions;
use crate::spec::PlaneOptions;
use crate::stream::Stream;
use kvplane_transport::HttpClient;

/// Drives one stream from its sockets. Cheap to clone: every socket callback and every answer holds one.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    feeder: Feeder,
    sockets: Sockets,
    replay: Option<String>,
    replay_idle: Duration,
    replay_deadline: Duration,
    hints: HintSource,
    client: HttpClient,
    questions: Mutex<Questions<ReplayHandle>>,
}

impl Driver {
    pub(crate) fn new(
        feeder: Feeder,
        sockets: Sockets,
        options: &PlaneOptions,
        replay: Option<String>,
        hints: HintSource,
        client: HttpClient,
    ) -> Self {
        Self(Arc::new(Inner {
            feeder,
            sockets,
            replay,
            replay_idle: options.replay_idle,
            replay_deadline: options.replay_deadline,
            hints,
            client,
            questions: Mutex::default(),
        }))
    }

    fn feed(&self, input: impl FnOnce(&mut Recorder, Now)) {
        self.ask(self.0.feeder.feed(input));
    }

    /// The engine was there at `at`, and all that it had published by then has been fed.
    fn prove(&self, at: Instant) {
        self.ask(self.0.feeder.prove(at));
        self.stream().announce();
    }

    fn ask(&self, asks: Vec<Ask>) {
        for ask in asks {
            match ask {
                Ask::Replay { id, from } => self.ask_replay(id, from),
                Ask::Hint { id } => self.ask_hint(id),
                Ask::Resubscribe => {} // only relays are subscribed to by a call
            }
        }
    }

    /// Feeds a single input: waiting readers are woken at once.
    fn tell(&self, input: impl FnOnce(&mut Recorder, Now)) {
        self.feed(input);
        self.stream().announce();
    }

    fn tick(&self, now: Instant) {
        if self.stream().needs_tick(now) {
            self.tell(Recorder::tick);
        }
    }

    fn ask_replay(&self, id: u64, from: u64) {
        let Some(endpoint) = &self.0.replay else { return };
        let mut request = ReplayRequest::new(endpoint.clone(), from);
        request.idle_timeout = self.0.replay_idle;
        request.deadline = self.0.replay_deadline;
        let answer = Answer { driver: self.clone(), id, batches: 0 };
        let ask = || self.0.sockets.replay(request, Box::new(answer));
        // One at a time: it runs on the engine's publisher thread.
        let asked = self.0.questions.lock().ask(id, |void| void.cancel(), ask);
        if let Err(error) = asked {
            warn!(stream = %self.stream().id(), %error, "replay cannot be asked");
        }
    }

    fn ask_hint(&self, id: u64) {
        let driver = self.clone();
        kvplane_runtime::spawn_on(self.0.feeder.runtime(), "engine hint", async move {
            let hint = driver.0.hints.fetch(&driver.0.client).await;
            // The recorder decodes and applies what waited for this: not a task's business.
            let _ = tokio::task::spawn_blocking(move || {
                driver.tell(|recorder, now| recorder.hint(now, id, hint.start_time_ms, hint.usable_blocks));
            })
            .await;
        });
    }

    /// Which stream it drives.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        self.0.feeder.stream()
    }

    /// A bound socket has at least one peer.
    pub(crate) fn recheck(&self) {
        self.tell(Recorder::recheck);
    }

    /// Takes the stream off the plane. Its source may still speak; it is not recorded.
    pub(crate) fn remove(&self) {
        self.0.feeder.remove();
        self.cancel();
    }

    /// The stream will be heard elsewhere.
    pub(crate) fn leave(&self) {
        self.cancel();
        self.tell(Recorder::disconnected);
        self.stream().set_trouble(None);
    }

    fn cancel(&self) {
        if let Some(void) = self.0.questions.lock().take() {
            void.cancel();
        }
    }
}

/// Hears the answer to one replay question.
struct Answer {
    driver: Driver,
    id: u64,
    batches: usize,
}

/// A replay wakes subscribers once per this many batches.
const REPLAY_BURST: usize = 64;

impl ReplayHandler for Answer {
    fn batch(&mut self, sequence: u64, payload: Bytes) {
        self.driver.feed(|recorder, now| recorder.replayed(now, self.id, sequence, payload));
        self.batches += 1;
        if self.batches.is_multiple_of(REPLAY_BURST) {
            self.driver.stream().announce();
        }
    }

    fn finished(self: Box<Self>, end: ReplayEnd) {
        if end == ReplayEnd::Cancelled {
            return;
        }
        if end != ReplayEnd::Complete {
            let endpoint = self.driver.0.replay.as_deref().unwrap_or_default();
            warn!(stream = %self.driver.stream().id(), endpoint, ?end, "replay failed");
        }
        self.driver.tell(|recorder, now| recorder.replay_ended(now, self.id, end == ReplayEnd::Complete));
    }
}

/// A socket that connects to one publisher.
pub(crate) struct ConnectedHandler {
    driver: Driver,
    address: String,
    silence: Silence,
}

/// An engine that is starting up takes its time; after this the operator should know.
const UNREACHED_AFTER: Duration = Duration::from_secs(5);

/// How long nobody has been connected.
#[derive(Debug, Default)]
struct Silence {
    /// `None` while somebody is connected, and once it has been said.
    since: Option<Instant>,
}

impl Silence {
    fn begin(&mut self) {
        self.since = Some(kvplane_runtime::now());
    }

    fn end(&mut self) {
        self.since = None;
    }

    /// When it has lasted for too long.
    fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + UNREACHED_AFTER)
    }

    /// True once, when it has lasted for too long.
    fn is_too_long(&mut self, now: Instant) -> bool {
        let since = self.since.take_if(|since| now.saturating_duration_since(*since) >= UNREACHED_AFTER);
        since.is_some()
    }
}

impl ConnectedHandler {
    pub(crate) fn new(driver: Driver, address: String) -> Self {
        let mut silence = Silence::default();
        silence.begin();
        Self { driver, address, silence }
    }
}

impl SubscriberHandler for ConnectedHandler {
    fn connected(&mut self) {
        self.silence.end();
        self.driver.stream().set_trouble(None);
        self.driver.tell(Recorder::connected);
    }

    fn disconnected(&mut self) {
        self.silence.begin();
        self.driver.tell(Recorder::disconnected);
    }

    fn message(&mut self, _topic: &[u8], sequence: u64, payload: Bytes) {
        self.driver.feed(|recorder, now| recorder.live(now, sequence, payload));
    }

    fn proven(&mut self, _connection: u64, at: Instant) {
        self.driver.prove(at);
    }

    fn malformed(&mut self, reason: &'static str) {
        self.driver.stream().count_malformed_frame();
        warn!(stream = %self.driver.stream().id(), reason, "malformed frame");
    }

    fn drained(&mut self) {
        self.driver.stream().announce();
    }

    fn tick(&mut self, now: Instant) {
        if self.silence.is_too_long(now) {
            self.driver.stream().set_trouble(Some(Trouble::Unreached));
            warn!(stream = %self.driver.stream().id(), address = self.address, "no engine answers here");
        }
        self.driver.tick(now);
    }

    fn begun(&mut self, alarm: Alarm) {
        self.driver.stream().set_alarm(alarm);
    }

    fn next_tick(&self, _now: Instant) -> Option<Instant> {
        self.driver.stream().next_tick().into_iter().chain(self.silence.due()).min()
    }
}

/// The streams of one bound socket, by topic. They come and go while the socket lives.
#[derive(Default)]
pub(crate) struct Owners {
    /// Longest topic first, so that a prefix of another topic does not take its messages.
    by_topic: RwLock<Arc<[(String, Driver)]>>,
    /// Publishers that are connected.
    peers: AtomicUsize,
}

impl Owners {
    fn now(&self) -> Arc<[(String, Driver)]> {
        self.by_topic.read().clone()
    }

    /// From now on messages under `topic` are the driver's.
    pub(crate) fn add(&self, topic: String, driver: &Driver) {
        {
            let mut by_topic = self.by_topic.write();
            let mut owners = by_topic.to_vec();
            owners.push((topic, driver.clone()));
            owners.sort_by_key(|(topic, _)| std::cmp::Reverse(topic.len()));
            *by_topic = owners.into();
        }
        // Peers that are connected came before this stream, which would not hear of them. One that connects
        // meanwhile finds it in the list.
        if self.peers.load(Ordering::Acquire) > 0 {
            driver.recheck();
        }
    }

    /// Messages of a stream have no owner any more. True if nobody else is left.
    pub(crate) fn remove(&self, stream: &StreamId) -> bool {
        let mut by_topic = self.by_topic.write();
        let left = by_topic.iter().filter(|(_, driver)| driver.stream().id() != stream);
        *by_topic = left.cloned().collect();
        by_topic.is_empty()
    }
}

/// A socket that engines connect to: several publishers, distinguished by topic.
pub(crate) struct BoundHandler {
    owners: Arc<Owners>,
    /// The connection that the present calls are about.
    connection: u64,
    claims: Claims<StreamId>,
    unknown_topics: u64,
    silence: Silence,
    /// Nobody has been connected for so long that it is said of every owner.
    unreached: bool,
}

impl BoundHandler {
    pub(crate) fn new(owners: Arc<Owners>) -> Self {
        let mut silence = Silence::default();
        silence.begin();
        Self {
            owners,
            connection: 0,
            claims: Claims::default(),
            unknown_topics: 0,
            silence,
            unreached: false,
        }
    }

    /// The monitor cannot say which peer came or went: everybody is checked.
    fn recheck(&self) {
        for (_, driver) in &*self.owners.now() {
            driver.recheck();
        }
    }
}

impl SubscriberHandler for BoundHandler {
    fn connection(&mut self, id: u64) {
        self.connection = id;
    }

    fn connected(&mut self) {
        self.claims.connected(self.connection);
        self.owners.peers.fetch_add(1, Ordering::AcqRel);
        self.silence.end();
        self.unreached = false;
        for (_, driver) in &*self.owners.now() {
            driver.stream().set_trouble(None);
        }
        self.recheck();
    }

    fn disconnected(&mut self) {
        self.claims.disconnected(self.connection);
        if self.owners.peers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.silence.begin();
        }
        self.recheck();
    }

    fn message(&mut self, topic: &[u8], sequence: u64, payload: Bytes) {
        let owners = self.owners.now();
        let owner = owners.iter().find(|(prefix, _)| topic.starts_with(prefix.as_bytes()));
        if let Some((_, driver)) = owner {
            self.claims.heard(driver.stream().id(), self.connection);
            driver.feed(|recorder, now| recorder.live(now, sequence, payload));
        } else {
            self.unknown_topics += 1;
            if self.unknown_topics.is_power_of_two() {
                let topic = String::from_utf8_lossy(topic);
                warn!(%topic, count = self.unknown_topics, "no engine is configured for this topic");
            }
        }
    }

    fn proven(&mut self, connection: u64, at: Instant) {
        // Its streams hear of it with the next tick: telling all of them now would cost connections times
        // streams.
        self.claims.proven(connection, at);
    }

    fn malformed(&mut self, reason: &'static str) {
        for (_, driver) in &*self.owners.now() {
            driver.stream().count_malformed_frame();
        }
        warn!(reason, "malformed frame on a bound socket");
    }

    fn drained(&mut self) {
        for (_, driver) in &*self.owners.now() {
            driver.stream().announce();
        }
    }

    fn tick(&mut self, now: Instant) {
        self.unreached |= self.silence.is_too_long(now);
        let unclaimed = self.claims.unclaimed();
        for (_, driver) in &*self.owners.now() {
            if self.unreached {
                driver.stream().set_trouble(Some(Trouble::Unreached));
            }
            if let Some(at) = self.claims.proof_of(driver.stream().id(), unclaimed) {
                driver.prove(at);
            }
            driver.tick(now);
        }
    }
}
