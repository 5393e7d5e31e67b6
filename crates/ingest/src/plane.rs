//! Every engine's streams, and the sources that feed them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::{EngineId, StreamId};
use kvplane_socket::{Options as SocketOptions, SocketError, Sockets, SubscriptionHandle};
use kvplane_stream::{JournalOptions, Options as FollowOptions, Recorder};
use tokio::runtime::Handle;

use crate::address::{AddressError, for_rank};
use crate::clock::Clock;
use crate::hint::HintClient;
use crate::spec::{EngineSpec, Events, PlaneOptions};
use crate::stream::Stream;
use crate::zmq_source::{BoundHandler, ConnectedHandler, Driver, subscription};

/// One engine and its streams, by rank.
#[derive(Debug)]
pub struct Engine {
    /// As configured.
    pub spec: EngineSpec,
    /// One per rank.
    pub streams: Vec<Arc<Stream>>,
}

/// Why a plane cannot start. Nothing has been contacted when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two engines with one name.
    #[error("engine id {0:?} is used twice")]
    DuplicateId(EngineId),
    /// An address that cannot be used.
    #[error("engine {engine:?}: {error}")]
    Address {
        /// Whose.
        engine: EngineId,
        /// What is wrong.
        error: AddressError,
    },
    /// Two streams that could not be told apart.
    #[error(
        "engines {first:?} and {second:?} share {address} and topic {topic:?}: their messages cannot be told apart"
    )]
    SharedTopic {
        /// One of them.
        first: EngineId,
        /// The other.
        second: EngineId,
        /// Where.
        address: String,
        /// Under which topic.
        topic: String,
    },
    /// A socket could not be opened.
    #[error("{address}: {error}")]
    Socket {
        /// Which.
        address: String,
        /// What is wrong.
        error: SocketError,
    },
    /// The socket threads could not be started.
    #[error("cannot start the socket threads: {0}")]
    Threads(SocketError),
}

impl StartError {
    /// Whether the specification is wrong, rather than the machine.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::DuplicateId(_) | Self::Address { .. } | Self::SharedTopic { .. })
    }
}

/// Every engine's streams.
#[derive(Debug)]
pub struct Plane {
    engines: Vec<Engine>,
    sockets: Sockets,
    subscriptions: parking_lot::Mutex<Vec<SubscriptionHandle>>,
}

/// A checked stream, before anything is opened.
struct Planned {
    stream: Arc<Stream>,
    events: Events,
    replay: Option<String>,
    topic: String,
    http: Option<String>,
}

impl Plane {
    /// Checks the specification, then opens every socket. Must be called within a tokio runtime.
    pub fn start(specs: Vec<EngineSpec>, options: &PlaneOptions) -> Result<Arc<Self>, StartError> {
        let clock = Clock::start();
        let mut engines = Vec::new();
        let mut planned = Vec::new();
        for spec in specs {
            if engines.iter().any(|engine: &Engine| engine.spec.id == spec.id) {
                return Err(StartError::DuplicateId(spec.id));
            }
            let streams = plan_engine(&spec, options, clock, &mut planned)?;
            engines.push(Engine { spec, streams });
        }
        check_topics(&planned)?;
        let sockets = Sockets::start(&SocketOptions::default()).map_err(StartError::Threads)?;
        let subscriptions = open(planned, options, &sockets)?;
        Ok(Arc::new(Self { engines, sockets, subscriptions: parking_lot::Mutex::new(subscriptions) }))
    }

    /// All engines, in the order of the configuration.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// An engine by its name.
    pub fn engine(&self, id: &str) -> Option<&Engine> {
        self.engines.iter().find(|engine| engine.spec.id.as_str() == id)
    }

    /// Every stream of every engine.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.engines.iter().flat_map(|engine| &engine.streams)
    }

    /// Stops listening. Streams stay readable. Blocks until the socket threads have ended.
    pub fn shutdown(&self) {
        self.subscriptions.lock().clear();
        self.sockets.shutdown();
    }
}

fn plan_engine(
    spec: &EngineSpec,
    options: &PlaneOptions,
    clock: Clock,
    planned: &mut Vec<Planned>,
) -> Result<Vec<Arc<Stream>>, StartError> {
    let address_error = |error| StartError::Address { engine: spec.id.clone(), error };
    let mut streams = Vec::new();
    for rank in 0..spec.ranks {
        let events = match &spec.events {
            Events::Connect(address) => {
                Events::Connect(for_rank(address, rank, true).map_err(address_error)?)
            }
            Events::Bind(address) => Events::Bind(for_rank(address, rank, false).map_err(address_error)?),
        };
        let replay = spec.replay.as_deref().map(|address| for_rank(address, rank, true)).transpose();
        let replay = replay.map_err(address_error)?;
        let follow = FollowOptions {
            replay: replay.is_some(),
            on_gap: options.on_gap,
            down_after: options.down_after,
            ..FollowOptions::default()
        };
        let keep = JournalOptions {
            max_batches: options.max_batches,
            max_bytes: options.max_bytes,
            state: options.state,
            duplicates: spec.duplicates,
            block_size: spec.block_size,
        };
        let recorder = Recorder::new(follow, keep, rank, clock.now());
        let stream = Arc::new(Stream::new(StreamId::new(spec.id.clone(), rank), clock, recorder));
        streams.push(stream.clone());
        let (topic, http) = (spec.topic.clone(), spec.http.clone());
        planned.push(Planned { stream, events, replay, topic, http });
    }
    Ok(streams)
}

/// Streams that share a bound socket are told apart by topic alone.
fn check_topics(planned: &[Planned]) -> Result<(), StartError> {
    for (at, one) in planned.iter().enumerate() {
        for other in &planned[at + 1..] {
            if matches!(one.events, Events::Bind(_)) && one.events == other.events && one.topic == other.topic
            {
                return Err(StartError::SharedTopic {
                    first: one.stream.id().engine.clone(),
                    second: other.stream.id().engine.clone(),
                    address: one.events.address().to_owned(),
                    topic: one.topic.clone(),
                });
            }
        }
    }
    Ok(())
}

fn open(
    planned: Vec<Planned>,
    options: &PlaneOptions,
    sockets: &Sockets,
) -> Result<Vec<SubscriptionHandle>, StartError> {
    let hints = HintClient::new();
    let runtime = Handle::current();
    let mut bound: BTreeMap<String, Vec<(String, Driver)>> = BTreeMap::new();
    let mut connected = Vec::new();
    for Planned { stream, events, replay, topic, http } in planned {
        let driver =
            Driver::new(stream, sockets.clone(), runtime.clone(), options, replay, http, hints.clone());
        match events {
            Events::Connect(address) => connected.push((address, topic, driver)),
            Events::Bind(address) => bound.entry(address).or_default().push((topic, driver)),
        }
    }
    let mut handles = Vec::new();
    let mut subscribe = |endpoint, topics: Vec<String>, handler| {
        let subscription = subscription(endpoint, topics);
        let address = subscription.endpoint.address().to_owned();
        let handle = sockets.subscribe(subscription, handler);
        handles.push(handle.map_err(|error| StartError::Socket { address, error })?);
        Ok(())
    };
    // Bound sockets first: a taken port must end the start before any engine is contacted.
    for (address, owners) in bound {
        // Everything is heard here, so that a topic that nobody owns is noticed.
        subscribe(Events::Bind(address), vec![String::new()], Box::new(BoundHandler::new(owners)))?;
    }
    for (address, topic, driver) in connected {
        let handler = Box::new(ConnectedHandler::new(driver, address.clone()));
        subscribe(Events::Connect(address), vec![topic], handler)?;
    }
    Ok(handles)
}
