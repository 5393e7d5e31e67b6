//! The engine: requests on caches, batches to publishers, lives.

mod operated;
mod request;
mod running;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use kvplane_socket::SocketError;
use kvplane_wire::OwnedEvent;
use parking_lot::Mutex;

pub use self::request::{CompletionOptions, CompletionResult, RankState};
pub use self::running::Running;
use crate::cache::{Cache, Copies, Moment};
use crate::config::SimConfig;
use crate::fault::{Fault, Restart};
use crate::history::{History, relive};
use crate::operate::{Desk, before_routes};
use crate::pool::PoolError;
use crate::publisher::{Command, PublisherHandle};
use crate::serve::ServerThread;
use crate::service::Service;
use crate::{grpc, http};

/// Starts simulated engines.
#[derive(Debug)]
pub struct SimEngine;

/// A running engine. Cheap to clone; it ends with [`SimHandle::stop`] or with the last clone.
#[derive(Clone)]
pub struct SimHandle {
    pub(crate) engine: Arc<Engine>,
    /// Absent in the handle that the servers themselves hold, so that they do not keep themselves alive.
    servers: Option<Arc<Servers>>,
}

struct Servers {
    http: Option<ServerThread>,
    grpc: Option<ServerThread>,
}

/// Why the engine could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A server could not start.
    #[error("cannot serve: {0}")]
    Http(#[from] std::io::Error),
    /// Options that do not go together.
    #[error("{0}")]
    Config(&'static str),
    /// The cache refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The engine was restarted under a running request.
    #[error("the engine restarted")]
    Restarted,
    /// No such rank.
    #[error("no rank {0}")]
    NoRank(u32),
}

/// What all handles share.
pub(crate) struct Engine {
    pub(crate) config: SimConfig,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) service: Arc<Service>,
    start_time: Mutex<f64>,
    next_rank: AtomicUsize,
}

/// One data-parallel rank.
pub(crate) struct Rank {
    pub(crate) state: Mutex<Life>,
    pub(crate) publisher: PublisherHandle,
}

/// What a rank has in one life.
pub(crate) struct Life {
    number: u64,
    cache: Cache,
    /// Events that are published before those of the next step.
    held_back: Vec<OwnedEvent>,
    history: History,
    running: usize,
    /// How often all running requests lost what they held.
    preemptions: u64,
}

impl SimEngine {
    /// Opens all sockets and starts the threads.
    pub fn start(config: SimConfig) -> Result<SimHandle, SimError> {
        config.check().map_err(SimError::Config)?;
        let config = config.with_ports()?;
        let ranks = (0..config.ranks.max(1)).map(|rank| {
            let rank = Rank {
                state: Mutex::new(Life::new(0, Cache::new(&config), History::default())),
                publisher: PublisherHandle::start(&config, rank)?,
            };
            rank.publish(&mut rank.state.lock(), Moment::Idle);
            // What an engine says when it starts, nobody can have heard.
            rank.publisher.sync();
            Ok(rank)
        });
        let engine = Arc::new(Engine {
            ranks: ranks.collect::<Result<_, SimError>>()?,
            desk: Arc::new(Desk::new(config.conduct.clone())),
            service: Arc::new(Service::new(config.ranks.max(1) as usize)),
            start_time: Mutex::new(now()),
            next_rank: AtomicUsize::new(0),
            config,
        });
        let inner = SimHandle { engine: engine.clone(), servers: None };
        let start = |name, address: Option<SocketAddr>, router: Router| {
            let router = before_routes(router, &engine.desk);
            address.map(|address| ServerThread::start(name, address, router)).transpose()
        };
        let servers = Servers {
            http: start("sim-http", engine.config.http, http::router(inner))?,
            grpc: start(
                "sim-grpc",
                engine.config.grpc,
                grpc::router(engine.service(), engine.clone(), None),
            )?,
        };
        let handle = SimHandle { engine, servers: Some(Arc::new(servers)) };
        let restart = handle.engine.config.faults.iter().find_map(|fault| match fault {
            Fault::Restart(restart) => Some(*restart),
            _ => None,
        });
        if let Some(restart) = restart {
            handle.engine.restart(restart);
        }
        Ok(handle)
    }
}

impl SimHandle {
    /// Runs a request to its end. All its batches are on their way when it returns.
    pub fn complete(
        &self,
        prompt: &[u32],
        max_tokens: usize,
        options: &CompletionOptions,
    ) -> Result<CompletionResult, SimError> {
        let mut running = self.begin(prompt, max_tokens, options)?;
        while running.step()?.is_some() {}
        Ok(running.finish())
    }

    /// Starts a request that holds its blocks until it is finished or dropped.
    pub fn begin(
        &self,
        prompt: &[u32],
        max_tokens: usize,
        options: &CompletionOptions,
    ) -> Result<Running, SimError> {
        let rank = options.rank.unwrap_or_else(|| self.next_rank());
        if rank as usize >= self.engine.ranks.len() {
            return Err(SimError::NoRank(rank));
        }
        Running::begin(self.engine.clone(), rank, prompt, max_tokens, options)
    }

    /// The rank of a request that names none.
    pub(crate) fn next_rank(&self) -> u32 {
        (self.engine.next_rank.fetch_add(1, Ordering::Relaxed) % self.engine.ranks.len()) as u32
    }

    /// How many tokens of a prompt the cache would serve now.
    pub fn would_hit(&self, prompt: &[u32], options: &CompletionOptions) -> usize {
        let rank = self.engine.ranks.get(options.rank.unwrap_or(0) as usize);
        rank.map_or(0, |rank| rank.state.lock().cache.would_hit(prompt, &options.keys()))
    }

    /// Makes something go wrong, on one rank or on all. Armed when this returns.
    pub fn fault(&self, rank: Option<u32>, fault: Fault) {
        if let Fault::Restart(restart) = fault {
            self.engine.restart(restart);
            return;
        }
        for publisher in self.publishers(rank) {
            publisher.send(Command::Fault(fault));
            publisher.sync();
        }
    }

    /// Publishes bytes as a payload of rank 0: under the next sequence, or out of order under a given one
    /// (then replay does not know it).
    pub fn publish_raw(&self, sequence: Option<u64>, payload: &[u8]) {
        for publisher in self.publishers(Some(0)) {
            publisher.send(Command::Raw(sequence, payload.to_vec()));
        }
    }

    /// Waits until `count` subscriptions were made on a rank's socket since it was opened. Keeps the rank's
    /// publisher from doing anything else: for tests.
    pub fn wait_for_subscriptions(&self, rank: u32, count: u64, timeout: Duration) -> bool {
        self.publishers(Some(rank)).all(|publisher| publisher.wait_for_subscriptions(count, timeout))
    }

    /// The truth, once everything before is published.
    pub fn state(&self) -> Vec<RankState> {
        let state = |(index, rank): (usize, &Rank)| {
            let life = rank.state.lock();
            let next_sequence = rank.publisher.sync().unwrap_or(0);
            let groups = life.cache.groups();
            RankState {
                rank: index as u32,
                next_sequence,
                blocks: sum(groups.iter().map(|group| &group.device)),
                host_blocks: sum(groups.iter().map(|group| &group.host)),
                groups,
                running: life.running,
            }
        };
        self.engine.ranks.iter().enumerate().map(state).collect()
    }

    /// The sequence of a rank's next batch, once everything before is published; 0 for a rank that there is not.
    pub fn next_sequence(&self, rank: u32) -> u64 {
        self.publishers(Some(rank)).find_map(PublisherHandle::sync).unwrap_or(0)
    }

    /// Where each rank publishes.
    pub fn event_endpoints(&self) -> Vec<String> {
        self.engine.ranks.iter().map(|rank| rank.publisher.events.clone()).collect()
    }

    /// Where each rank serves replay, if it does.
    pub fn replay_endpoints(&self) -> Vec<Option<String>> {
        self.engine.ranks.iter().map(|rank| rank.publisher.replay.clone()).collect()
    }

    /// Where HTTP is served, if it is.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.servers.as_ref()?.http.as_ref().map(ServerThread::address)
    }

    /// Where SMG's service is served, if it is.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.servers.as_ref()?.grpc.as_ref().map(ServerThread::address)
    }

    /// When this life began, in seconds since 1970.
    pub fn start_time(&self) -> f64 {
        *self.engine.start_time.lock()
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &SimConfig {
        &self.engine.config
    }

    /// Ends all threads and closes all sockets, even where others hold a handle.
    pub fn stop(&self) {
        for server in self.servers.iter().flat_map(|servers| [&servers.http, &servers.grpc]).flatten() {
            server.stop();
        }
        for rank in &self.engine.ranks {
            rank.publisher.stop();
        }
    }

    fn publishers(&self, rank: Option<u32>) -> impl Iterator<Item = &PublisherHandle> {
        let wanted = move |index: usize| rank.is_none_or(|rank| rank as usize == index);
        self.engine
            .ranks
            .iter()
            .enumerate()
            .filter(move |(index, _)| wanted(*index))
            .map(|(_, rank)| &rank.publisher)
    }
}

impl std::fmt::Debug for SimHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHandle").field("events", &self.event_endpoints()).finish_non_exhaustive()
    }
}

impl Rank {
    /// Sends what the cache did, if it did anything. Under the lock, so that batches keep the cache's order.
    fn publish(&self, life: &mut Life, moment: Moment) {
        let events = life.cache.take_events(moment);
        // What was held back leaves with whatever is next: an idle engine does not step.
        if events.is_empty() && (moment == Moment::Idle || life.held_back.is_empty()) {
            return;
        }
        let mut all = std::mem::take(&mut life.held_back);
        all.extend(events);
        self.publisher.publish(all);
    }
}

impl Life {
    fn new(number: u64, cache: Cache, history: History) -> Self {
        Self { number, cache, held_back: Vec::new(), history, running: 0, preemptions: 0 }
    }
}

impl Engine {
    fn restart(&self, restart: Restart) {
        const LEAST_STEP: f64 = 0.01;
        for rank in &self.ranks {
            let mut life = rank.state.lock();
            let mut cache = Cache::new(&self.config);
            let number = life.number + 1;
            let (history, batches) = relive(&mut cache, &self.config, &life.history, restart, number);
            *life = Life::new(number, cache, history);
            rank.publisher.send(Command::Restart(batches));
            rank.publish(&mut life, Moment::Idle);
            rank.publisher.sync();
        }
        self.desk.restarted();
        let mut start_time = self.start_time.lock();
        *start_time = now().max(*start_time + LEAST_STEP);
    }
}

fn sum<'a>(groups: impl Iterator<Item = &'a Copies>) -> Copies {
    let mut all = Copies::new();
    groups.flatten().for_each(|(hash, copies)| *all.entry(*hash).or_default() += copies);
    all
}

fn now() -> f64 {
    kvplane_runtime::unix_time().as_secs_f64()
}
