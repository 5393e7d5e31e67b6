//! A subscription to all streams: it goes on over engines that come and go.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream as FutureStream, StreamExt as _, stream};
use kvplane_core::{PlaneId, StreamId};
use kvplane_ingest::{Engines, Plane, Stream};
use kvplane_proto::Encoded;
use tonic::Status;

use super::encode;
use super::follow::{Begin, Follower};

/// What a part of the subscription says.
enum Part {
    /// The follower of this number has a message.
    Message(u64, Result<Encoded, Status>),
    /// The plane has other engines.
    Changed(Engines),
}

/// What a subscriber of everything wants of each stream.
pub(super) struct Wanted {
    /// Where streams begin ...
    pub(super) begin: Begin,
    /// ... but for those of which it has something already.
    pub(super) resume: HashMap<StreamId, Begin>,
    /// The plane that asks, if one does: what came through it is left out.
    pub(super) asker: Option<PlaneId>,
}

impl Wanted {
    fn includes(&self, stream: &Stream) -> bool {
        self.asker.as_ref().is_none_or(|asker| !stream.via().contains(asker))
    }

    /// A cursor is good once: a stream that comes back under its name is a new stream.
    fn begin(&mut self, stream: &StreamId) -> Begin {
        self.resume.remove(stream).unwrap_or(self.begin)
    }
}

struct Everything {
    parts: SelectAll<BoxStream<'static, Part>>,
    /// The streams of the plane as last looked at, with their follower's number.
    followed: HashMap<StreamId, (u64, Arc<Stream>)>,
    /// The numbers of these followers.
    numbers: HashSet<u64>,
    next_number: u64,
    wanted: Wanted,
    /// What is to be sent before anything else.
    ready: VecDeque<Encoded>,
}

/// The messages of all streams that are there, and of those that come.
pub(super) fn everything(
    plane: &Plane,
    wanted: Wanted,
) -> impl FutureStream<Item = Result<Encoded, Status>> + use<> {
    let mut watched = plane.watch();
    let engines = watched.borrow_and_update().clone();
    let changes = stream::unfold(watched, async |mut watched| {
        watched.changed().await.ok()?;
        let engines = watched.borrow_and_update().clone();
        Some((Part::Changed(engines), watched))
    });
    let mut all = Everything {
        parts: SelectAll::new(),
        followed: HashMap::new(),
        numbers: HashSet::new(),
        next_number: 0,
        wanted,
        ready: VecDeque::new(),
    };
    all.parts.push(changes.boxed());
    all.reconcile(&engines);
    // Of what is not there now, nothing is known when it comes.
    all.wanted.resume.clear();
    stream::unfold(all, async |mut all| {
        let message = all.next().await?;
        Some((message, all))
    })
}

impl Everything {
    async fn next(&mut self) -> Option<Result<Encoded, Status>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(Ok(message));
            }
            match self.parts.next().await? {
                Part::Changed(engines) => self.reconcile(&engines),
                // What a stream still had after its end was sent is dropped.
                Part::Message(number, message) if self.numbers.contains(&number) => return Some(message),
                Part::Message(..) => {}
            }
        }
    }

    /// Tells of streams that are gone, and begins with those that are new; in this order, as a stream may be
    /// both.
    fn reconcile(&mut self, engines: &Engines) {
        let streams = engines.iter().flat_map(|engine| &engine.streams);
        let streams = streams.filter(|stream| self.wanted.includes(stream));
        let now: HashMap<&StreamId, &Arc<Stream>> = streams.map(|stream| (stream.id(), stream)).collect();
        self.followed.retain(|id, (number, stream)| {
            let stays = now.get(id).is_some_and(|now| Arc::ptr_eq(now, stream));
            if !stays {
                self.numbers.remove(number);
                self.ready.push_back(Encoded(encode::gone(id, stream.cursor())));
            }
            stays
        });
        for (id, stream) in now {
            if self.followed.contains_key(id) {
                continue;
            }
            let number = self.next_number;
            self.next_number += 1;
            self.numbers.insert(number);
            self.followed.insert(id.clone(), (number, stream.clone()));
            let begin = self.wanted.begin(id);
            let messages = Follower::new(stream.clone(), begin).into_stream();
            let removed = stream.removed().clone().cancelled_owned();
            let messages = messages.take_until(removed);
            self.parts.push(messages.map(move |message| Part::Message(number, message)).boxed());
        }
    }
}
