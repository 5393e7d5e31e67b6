//! One rank's sockets, and what is sent on them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_core::Cursor;
use kvplane_ingest::Stream;
use kvplane_socket::{Delivery, PubSocket, ReplayRequestIn, ReplyFraming, RouterSocket, SubscriberId};
use kvplane_stream::{Protocol, Transition};
use kvplane_wire::encode::encode_republished;
use tracing::{info, warn};

use crate::feed::{Building, Feed, Form, Loaded, Source, Step};
use crate::presence::Presence;
use crate::{Announce, BURST, encode};

const FRAMING: ReplyFraming = ReplyFraming::WithTopic;
/// Newcomers of one rank that are sent the state at a time; each may hold a state in memory.
const GREETINGS: usize = 4;
/// A newcomer that takes nothing for so long gives its place to the next, and begins anew later.
const STALLED: Duration = Duration::from_secs(30);

/// A rank's sockets.
pub(super) struct Outlet {
    source: Source,
    topic: Vec<u8>,
    publisher: PubSocket,
    router: Option<RouterSocket>,
    announce: Announce,
    /// What listeners by presence hold; none while it is not known, and where copies are published.
    presence: Option<Presence>,
    loading: Option<Receiver<Loaded>>,
    /// The last batch that was published.
    newest: Option<(u64, Bytes)>,
    /// The replay that is being answered. Others wait in the socket, which gives each peer its turn.
    replay: Option<(ReplayRequestIn, Feed)>,
    /// Newcomers that wait for the state.
    newcomers: VecDeque<SubscriberId>,
    greetings: Vec<Greeting>,
}

/// A newcomer that is being sent the state.
struct Greeting {
    id: SubscriberId,
    feed: Feed,
    /// When it last took something.
    moved: Instant,
}

impl Outlet {
    pub(super) fn new(
        stream: Arc<Stream>,
        (publisher, router): (PubSocket, Option<RouterSocket>),
        topic: Vec<u8>,
        form: Form,
        announce: Announce,
    ) -> Self {
        let cursor = stream.reported_cursor();
        Self {
            source: Source { stream, form, published: cursor, encoded_after: cursor },
            topic,
            publisher,
            router,
            announce,
            presence: None,
            loading: None,
            newest: None,
            replay: None,
            newcomers: VecDeque::new(),
            greetings: Vec::new(),
        }
    }

    pub(super) fn is_of(&self, engine: &str) -> bool {
        self.source.stream.id().engine.as_str() == engine
    }

    /// Sends what there is to send, up to a burst of each kind. True if there was something.
    pub(super) fn turn(&mut self, building: &Building) -> bool {
        if !self.is_loaded(building) {
            return false;
        }
        let mut worked = self.publish(building);
        if self.loading.is_none() {
            worked |= match self.announce {
                Announce::Batch => self.greet(),
                Announce::State => self.greet_with_state(building),
            };
            worked |= self.answer(building);
        }
        worked
    }

    /// Whether it is known what listeners hold. Otherwise that is loaded, and nothing is published meanwhile.
    fn is_loaded(&mut self, building: &Building) -> bool {
        if self.source.form == Form::Copies || self.presence.is_some() {
            return true;
        }
        match self.loading.as_ref().map(Receiver::try_recv) {
            Some(Ok(loaded)) => {
                self.begin(loaded);
                true
            }
            Some(Err(TryRecvError::Empty)) => false,
            Some(Err(TryRecvError::Disconnected)) | None => {
                let listened = self.publisher.counts().peers > 0;
                let Source { stream, published, .. } = &self.source;
                self.loading = Some(building.load(stream, *published, listened));
                false
            }
        }
    }

    /// Publishes from a state on. Listeners that are there are sent that state: they see a gap and ask, or
    /// take it as it comes.
    fn begin(&mut self, Loaded { presence, cursor, state }: Loaded) {
        self.presence = Some(presence);
        self.loading = None;
        (self.source.published, self.source.encoded_after) = (cursor, cursor);
        self.newest = None;
        let Some(state) = state else { return };
        if self.announce == Announce::State {
            self.publisher.hold_back();
            return;
        }
        for (sequence, payload) in (state.first..).zip(&state.batches) {
            self.send(sequence, payload);
        }
    }

    fn send(&mut self, sequence: u64, payload: &[u8]) {
        if let Err(error) = self.publisher.send(&self.topic, sequence, payload) {
            warn!(stream = %self.source.stream.id(), %error, "cannot republish");
        }
    }

    /// Publishes what is new. True if there was something.
    pub(super) fn publish(&mut self, building: &Building) -> bool {
        let rank = self.source.stream.id().rank;
        let Ok(entries) = self.source.stream.read_after(self.source.published, BURST) else {
            self.go_elsewhere(building);
            return true;
        };
        for entry in &entries {
            let payload = match (&mut self.presence, self.source.form) {
                (_, Form::Copies) => encode::entry(rank, entry),
                (Some(presence), Form::Presence) => {
                    let events = presence.apply(&entry.transitions);
                    let encode = |_: &_| encode_republished(entry.timestamp, rank, &events).into();
                    entry.encoded(Protocol::VllmPresence, encode)
                }
                (None, Form::Presence) => return false,
            };
            self.send(entry.sequence, &payload);
            self.source.published.sequence = entry.sequence;
            self.newest = Some((entry.sequence, payload));
        }
        !entries.is_empty()
    }

    /// What follows the last batch is not there: another life, or we were too slow.
    fn go_elsewhere(&mut self, building: &Building) {
        let Source { stream, form, published, .. } = &self.source;
        let first = stream.first_cursor().filter(|first| first.epoch != published.epoch);
        let opens_with_clear = |first: &Cursor| {
            let entries = stream.read_after(*first, 1).unwrap_or_default();
            entries.first().is_some_and(|entry| entry.transitions.first() == Some(&Transition::Cleared))
        };
        if let Some(whole) = first.filter(opens_with_clear) {
            (self.source.published, self.source.encoded_after) = (whole, whole);
            return;
        }
        info!(stream = %stream.id(), "republishing resumed from a later state");
        match form {
            Form::Copies => {
                // Listeners see a hole in the numbers, and ask.
                let next = first.unwrap_or_else(|| stream.reported_cursor());
                (self.source.published, self.source.encoded_after) = (next, next);
                if self.announce == Announce::State {
                    self.publisher.hold_back();
                }
            }
            Form::Presence => {
                self.presence = None;
                self.is_loaded(building);
            }
        }
    }

    /// Sends newcomers the newest batch once more: its number shows them that they missed something, and they
    /// ask at once. Listeners that have it already know it by its number.
    fn greet(&mut self) -> bool {
        let newcomers = self.publisher.newcomers(&self.topic);
        if newcomers.is_empty() {
            return false;
        }
        let (sequence, payload) = self.newest();
        for id in newcomers {
            // One that takes nothing more has lost the stream; it asks when it sees the next batch.
            if let Err(error) = self.publisher.send_to(id, &self.topic, sequence, &payload) {
                warn!(stream = %self.source.stream.id(), %error, "cannot republish");
            }
        }
        true
    }

    /// The newest batch; an empty one where there is none.
    fn newest(&self) -> (u64, Bytes) {
        if let Some(newest) = &self.newest {
            return newest.clone();
        }
        let Source { stream, form, published, .. } = &self.source;
        let rank = stream.id().rank;
        let before = published.sequence.checked_sub(1).and_then(|before| stream.cursor_at(before).ok());
        let entry = before.and_then(|before| stream.read_after(before, 1).ok()?.pop());
        let entry = entry.filter(|entry| *form == Form::Copies && entry.sequence == published.sequence);
        let empty = || encode_republished(0.0, rank, &[]).into();
        (published.sequence, entry.map_or_else(empty, |entry| encode::entry(rank, &entry)))
    }

    /// Sends newcomers a clear, the state and what followed; then they get what is published, like the
    /// others.
    fn greet_with_state(&mut self, building: &Building) -> bool {
        for id in self.publisher.newcomers(&self.topic) {
            let known =
                self.greetings.iter().any(|greeting| greeting.id == id) || self.newcomers.contains(&id);
            if !known {
                self.newcomers.push_back(id);
            }
        }
        while self.greetings.len() < GREETINGS {
            let Some(id) = self.newcomers.pop_front() else { break };
            let feed = Feed::from(&self.source, 0, building);
            self.greetings.push(Greeting { id, feed, moved: kvplane_runtime::now() });
        }
        let mut worked = false;
        for mut greeting in std::mem::take(&mut self.greetings) {
            match self.greet_one(&mut greeting) {
                Progress::All => worked = true,
                Progress::Gone => {}
                Progress::Part => {
                    worked = true;
                    self.greetings.push(greeting);
                }
                Progress::Waits if greeting.moved.elapsed() < STALLED => self.greetings.push(greeting),
                Progress::Waits | Progress::Broken => self.newcomers.push_back(greeting.id),
            }
        }
        worked
    }

    fn greet_one(&mut self, greeting: &mut Greeting) -> Progress {
        let Self { source, publisher, topic, .. } = self;
        let mut gone = false;
        let step = greeting.feed.step(source, |sequence, payload| {
            let delivery = publisher.send_to(greeting.id, topic, sequence, payload).unwrap_or(Delivery::Gone);
            gone |= delivery == Delivery::Gone;
            delivery
        });
        match step {
            Step::CaughtUp => {
                publisher.admit(greeting.id);
                Progress::All
            }
            Step::GoesOn => {
                greeting.moved = kvplane_runtime::now();
                Progress::Part
            }
            Step::Waits => Progress::Waits,
            Step::Broken if gone => Progress::Gone,
            Step::Broken => Progress::Broken,
        }
    }

    /// Answers a part of a replay request, if there is one. A whole state is taken and encoded elsewhere:
    /// publishing goes on.
    fn answer(&mut self, building: &Building) -> bool {
        let Some(router) = &self.router else { return false };
        let stream = self.source.stream.id();
        if self.replay.is_none() {
            match router.recv_request(Duration::ZERO) {
                Ok(Some(request)) => {
                    let feed = Feed::from(&self.source, request.start, building);
                    self.replay = Some((request, feed));
                }
                Ok(None) => return false,
                Err(error) => {
                    warn!(%stream, %error, "replay request cannot be read");
                    return false;
                }
            }
        }
        let Some((request, feed)) = &mut self.replay else { return false };
        let step = feed.step(&self.source, |sequence, payload| {
            match router.reply_batch(&request.identity, FRAMING, &self.topic, sequence, payload) {
                Ok(()) => Delivery::Queued,
                Err(_) => Delivery::Gone,
            }
        });
        match step {
            Step::Waits => return false,
            Step::GoesOn => return true,
            // Without the end marker the listener asks again.
            Step::Broken => {}
            Step::CaughtUp => {
                if let Err(error) = router.reply_end(&request.identity, FRAMING) {
                    warn!(%stream, %error, "replay cannot be ended");
                }
            }
        }
        self.replay = None;
        true
    }
}

/// How far a newcomer is.
enum Progress {
    All,
    Part,
    Waits,
    /// It cannot be finished, and begins anew.
    Broken,
    Gone,
}
