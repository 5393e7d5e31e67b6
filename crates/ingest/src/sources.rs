//! The sockets of the running streams: opened, shared where engines connect to us, and closed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_core::{EngineId, StreamId, Trouble};
use kvplane_discovery::Asker;
use kvplane_socket::{Endpoint, ReleasedPorts, SocketError, Sockets, Subscription, SubscriptionHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::feeder::Feeder;
use crate::plane::Plane;
use crate::shared_source::SharedSource;
use crate::source::discovery;
use crate::source::kvplane_source::Link;
use crate::zmq_source::{BoundHandler, ConnectedHandler, Driver, Owners};

/// What one stream's messages come over.
enum Attachment {
    /// A socket of its own, which lives as long as this.
    Connected { driver: Driver, _subscription: SubscriptionHandle },
    /// A share of a bound socket.
    Bound { driver: Driver, address: String },
    /// A share of the engine's one source.
    Shared { feeder: Feeder },
    /// None yet: the engine is asked where it publishes.
    Awaited { feeder: Feeder },
}

/// A socket that engines connect to.
struct BoundSocket {
    owners: Arc<Owners>,
    _subscription: SubscriptionHandle,
}

/// Every stream's source.
#[derive(Default)]
pub(crate) struct Sources {
    by_stream: HashMap<StreamId, Attachment>,
    bound: HashMap<String, BoundSocket>,
    shared: HashMap<EngineId, SharedSource>,
    /// Tasks that ask engines where they publish; each ends when this is dropped.
    discoveries: HashMap<EngineId, DropGuard>,
    links: HashMap<EngineId, Link>,
    released: ReleasedPorts,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("streams", &self.by_stream.len()).finish_non_exhaustive()
    }
}

impl Sources {
    /// Listens for one stream. An engine that is not there yet is no error; a port that is taken is.
    pub(crate) fn open(
        &mut self,
        sockets: &Sockets,
        events: Endpoint,
        topic: String,
        driver: Driver,
    ) -> Result<(), SocketError> {
        let stream = driver.stream().id().clone();
        let silence = driver.stream().freshness().max_silence();
        let source = match events {
            Endpoint::Connect(address) => {
                let handler = Box::new(ConnectedHandler::new(driver.clone(), address.clone()));
                let wanted = Subscription::new(Endpoint::Connect(address)).with_topics(vec![topic]);
                let wanted = with_heartbeats(wanted, silence);
                Attachment::Connected { driver, _subscription: sockets.subscribe(wanted, handler)? }
            }
            Endpoint::Bind(address) => {
                if !self.bound.contains_key(&address) {
                    let socket = self.bind(sockets, &address, silence)?;
                    self.bound.insert(address.clone(), socket);
                }
                if let Some(socket) = self.bound.get(&address) {
                    socket.owners.add(topic, &driver);
                }
                Attachment::Bound { driver, address }
            }
        };
        self.by_stream.insert(stream, source);
        Ok(())
    }

    /// Feeds one stream from its engine's one source, which is started with the first.
    pub(crate) fn share(&mut self, feeder: Feeder, start: impl FnOnce(Feeder) -> SharedSource) {
        let stream = feeder.stream().id().clone();
        if let Some(source) = self.shared.get(&stream.engine) {
            source.add(feeder.clone());
        } else {
            self.shared.insert(stream.engine.clone(), start(feeder.clone()));
        }
        self.by_stream.insert(stream, Attachment::Shared { feeder });
    }

    /// A stream is fed by a link.
    pub(crate) fn mirror(&mut self, feeder: Feeder) {
        self.by_stream.insert(feeder.stream().id().clone(), Attachment::Shared { feeder });
    }

    /// Another plane is followed from now on.
    pub(crate) fn link(&mut self, id: EngineId, link: Link) {
        self.links.insert(id, link);
    }

    pub(crate) fn has_link(&self, id: &EngineId) -> bool {
        self.links.contains_key(id)
    }

    /// It is not any more.
    pub(crate) fn unlink(&mut self, id: &EngineId) {
        self.links.remove(id);
    }

    fn bind(
        &self,
        sockets: &Sockets,
        address: &str,
        silence: Option<Duration>,
    ) -> Result<BoundSocket, SocketError> {
        self.released.bind(address, || {
            let owners = Arc::<Owners>::default();
            let handler = Box::new(BoundHandler::new(owners.clone()));
            // Everything is heard here, so that a topic that nobody owns is noticed.
            let wanted =
                Subscription::new(Endpoint::Bind(address.to_owned())).with_topics(vec![String::new()]);
            let wanted = with_heartbeats(wanted, silence);
            Ok(BoundSocket { owners, _subscription: sockets.subscribe(wanted, handler)? })
        })
    }

    /// One stream has no source until its engine says where it publishes.
    pub(crate) fn await_address(&mut self, feeder: Feeder) {
        feeder.stream().set_discovery_trouble(Some(Trouble::Discovering));
        self.by_stream.insert(feeder.stream().id().clone(), Attachment::Awaited { feeder });
    }

    /// Begins to ask a stream's engine where its ranks publish, unless it is asked already.
    pub(crate) fn discover(&mut self, of: &Feeder, asker: Asker, plane: &Weak<Plane>, every: Duration) {
        let engine = of.stream().id().engine.clone();
        self.discoveries.entry(engine.clone()).or_insert_with(|| {
            let stop = CancellationToken::new();
            let asking = discovery::run(engine, asker, plane.clone(), every);
            kvplane_runtime::spawn_on(
                of.runtime(),
                "discovery",
                stop.clone().run_until_cancelled_owned(asking),
            );
            stop.drop_guard()
        });
    }

    /// An engine is asked no more.
    pub(crate) fn end_discovery(&mut self, engine: &EngineId) {
        self.discoveries.remove(engine);
    }

    /// Stops listening for one stream, and takes it off the plane.
    pub(crate) fn close(&mut self, stream: &StreamId) {
        match self.by_stream.remove(stream) {
            None => {}
            Some(Attachment::Shared { feeder }) => {
                if self.shared.get(&stream.engine).is_some_and(|source| source.remove(stream.rank)) {
                    self.shared.remove(&stream.engine);
                }
                feeder.remove();
            }
            Some(Attachment::Awaited { feeder }) => feeder.remove(),
            Some(Attachment::Connected { driver, .. }) => driver.remove(),
            Some(Attachment::Bound { driver, address }) => {
                self.unbind(stream, address);
                driver.remove();
            }
        }
    }

    /// Stops listening for one stream, which stays: it will be heard elsewhere.
    pub(crate) fn leave(&mut self, stream: &StreamId) {
        match self.by_stream.remove(stream) {
            None | Some(Attachment::Shared { .. } | Attachment::Awaited { .. }) => {}
            Some(Attachment::Connected { driver, .. }) => driver.leave(),
            Some(Attachment::Bound { driver, address }) => {
                self.unbind(stream, address);
                driver.leave();
            }
        }
    }

    /// A stream gives up its share of a bound socket, which is closed after the last.
    fn unbind(&mut self, stream: &StreamId, address: String) {
        if self.bound.get(&address).is_some_and(|socket| socket.owners.remove(stream)) {
            self.bound.remove(&address);
            self.released.release(address);
        }
    }

    /// Closes every socket. Streams stay as they are.
    pub(crate) fn clear(&mut self) {
        self.by_stream.clear();
        self.bound.clear();
        self.shared.clear();
        self.discoveries.clear();
        self.links.clear();
    }
}

/// Pings often enough for a healthy peer never to be stale, also when an answer is late by a whole interval.
/// A connection on which nothing comes is given up well after its streams are stale: it may recover without
/// losing anything.
fn with_heartbeats(mut wanted: Subscription, max_silence: Option<Duration>) -> Subscription {
    if let Some(max_silence) = max_silence {
        wanted.heartbeat_interval = (max_silence * 2 / 5).max(SHORTEST_HEARTBEAT);
        wanted.heartbeat_timeout = max_silence * 3;
    }
    wanted
}

/// What a wish for less silence than a network has may cost.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(20);
