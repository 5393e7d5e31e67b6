//! vLLM's framing out again: PUB for what happens, ROUTER for what happened, one pair per rank.
//!
//! Anything that speaks to a vLLM publisher can listen here instead, and join late: a replay from below the
//! window is answered with the whole state, as batches that begin with a clear, and then the tail. Sequences
//! are kvplane's own (epoch << 20 + n); a new epoch opens with a clear.
//!
//! ```text
//! presence.rs   what listeners hold that count no copies, and what they are sent: the usual form
//! encode.rs     events with every copy, and batches of both forms
//! feed.rs       a state and what followed it, for one listener
//! outlet.rs     one rank's sockets
//! ```
//!
//! One thread serves all of them, as an engine's publisher does: between two batches it looks for requests.
//!
//! This crate reads journals. It changes no stream and decides nothing about gaps. Whether an address may be
//! open to others is checked by its caller.

mod encode;
mod feed;
mod outlet;
mod presence;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvplane_ingest::Engine;
use kvplane_socket::{
    Endpoint, PubOptions, PubSocket, PublishContext, ReleasedPorts, RouterSocket, SocketError,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use feed::{Building, Form};
use outlet::Outlet;

/// What a new subscriber is sent before the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Announce {
    /// The newest batch: its number shows a listener that it missed something, so that it asks at once.
    #[default]
    Batch,
    /// A clear, the whole state and what followed, for listeners that cannot ask.
    State,
}

/// Where an engine's events are published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepublishSpec {
    /// The engine.
    pub engine: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// PUB address; rank r is at port + r.
    pub events: String,
    /// ROUTER address; rank r is at port + r.
    pub replay: Option<String>,
    /// Topic of every message.
    pub topic: String,
    /// Every copy of a block is announced, not only the first and the last.
    pub copies: bool,
    /// What a new subscriber is sent before the rest.
    pub announce: Announce,
}

impl RepublishSpec {
    /// Every address that is to be bound; `None` where it cannot be one.
    fn addresses(&self) -> impl Iterator<Item = Option<String>> {
        let configured = [Some(&self.events), self.replay.as_ref()].into_iter().flatten();
        configured.flat_map(|address| (0..self.ranks).map(|rank| at_rank(address, rank)))
    }

    /// Whether every address can be used. Touches nothing.
    pub fn check(&self) -> Result<(), RepublishError> {
        let wrong = |address: &String| (0..self.ranks).any(|rank| at_rank(address, rank).is_none());
        match [Some(&self.events), self.replay.as_ref()].into_iter().flatten().find(|address| wrong(address))
        {
            None => Ok(()),
            Some(address) => {
                Err(RepublishError::Address { engine: self.engine.clone(), address: address.clone() })
            }
        }
    }
}

/// Why republishing cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RepublishError {
    /// An address that cannot be used.
    #[error("republish of {engine:?}: {address:?} is not tcp://host:port")]
    Address {
        /// Whose.
        engine: String,
        /// Which.
        address: String,
    },
    /// A socket could not be opened.
    #[error("republish of {engine:?}: {error}")]
    Socket {
        /// Whose.
        engine: String,
        /// What is wrong.
        error: SocketError,
    },
    /// The thread could not be started.
    #[error("republish: {0}")]
    Thread(std::io::Error),
}

/// Entries published before the next stream gets its turn.
const BURST: usize = 256;
/// How long the thread sleeps when there is nothing to do: briefly at first, longer when it stays quiet.
const NAP: Duration = Duration::from_millis(1);
const LONG_NAP: Duration = Duration::from_millis(5);
const QUIET: Duration = Duration::from_secs(1);
/// Messages held per slow subscriber: as an engine's publisher.
const HIGH_WATER: i32 = 100_000;

/// An engine's sockets: bound, and publishing nothing yet.
pub struct BoundOutlets {
    spec: RepublishSpec,
    outlets: Vec<BoundOutlet>,
}

struct BoundOutlet {
    rank: u32,
    topic: Vec<u8>,
    publisher: PubSocket,
    router: Option<RouterSocket>,
}

impl std::fmt::Debug for BoundOutlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundOutlets").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// Messages to the thread.
enum Command {
    Publish(Vec<Outlet>),
    /// Closes an engine's sockets.
    Close(String),
}

/// Where a rank is published and replayed.
pub type OutletEndpoints = (String, Option<String>);

/// Publishes engines' events again. They come and go while the others are published.
#[derive(Default)]
pub struct Republisher {
    context: PublishContext,
    commands: Arc<Mutex<Vec<Command>>>,
    /// Started with the first engine.
    thread: Mutex<Option<(CancellationToken, JoinHandle<()>)>>,
    endpoints: Mutex<HashMap<(String, u32), OutletEndpoints>>,
    /// The engines that are published, as they were asked for.
    specs: Mutex<HashMap<String, RepublishSpec>>,
    released: Mutex<ReleasedPorts>,
}

impl std::fmt::Debug for Republisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Republisher").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Republisher {
    /// Binds an engine's sockets: what is wrong with an address, or a port that is taken, is known before
    /// anything else is done. May wait a moment for a port that was just let go of. Must be called within a
    /// tokio runtime.
    pub fn bind(&self, spec: &RepublishSpec) -> Result<BoundOutlets, RepublishError> {
        let outlets = (0..spec.ranks).map(|rank| {
            let (publisher, router) = self.open(spec, rank)?;
            Ok(BoundOutlet { rank, topic: spec.topic.clone().into_bytes(), publisher, router })
        });
        let outlets = outlets.collect::<Result<_, _>>()?;
        self.ensure_running()?;
        Ok(BoundOutlets { spec: spec.clone(), outlets })
    }

    /// Publishes what the engine's streams record.
    pub fn publish(&self, bound: BoundOutlets, engine: &Engine) {
        let id = &bound.spec.engine;
        let mut outlets = Vec::new();
        for BoundOutlet { rank, topic, publisher, router } in bound.outlets {
            let Some(stream) = engine.stream(rank).cloned() else { continue };
            let replay = router.as_ref().map(|router| router.last_endpoint().to_owned());
            let events = publisher.last_endpoint().to_owned();
            info!(stream = %stream.id(), events, replay = replay.as_deref().unwrap_or("off"), "republishing");
            self.endpoints.lock().insert((id.clone(), rank), (events, replay));
            let form = if bound.spec.copies { Form::Copies } else { Form::Presence };
            outlets.push(Outlet::new(stream, (publisher, router), topic, form, bound.spec.announce));
        }
        self.specs.lock().insert(id.clone(), bound.spec);
        self.commands.lock().push(Command::Publish(outlets));
    }

    /// Closes an engine's sockets, once what its streams said last is published; nothing happens if it has
    /// none.
    pub fn close(&self, engine: &str) {
        let Some(spec) = self.specs.lock().remove(engine) else { return };
        self.endpoints.lock().retain(|(of, _), _| of != engine);
        let mut released = self.released.lock();
        for address in spec.addresses().flatten() {
            released.release(address);
        }
        self.commands.lock().push(Command::Close(spec.engine));
    }

    /// Where a rank is published and replayed.
    pub fn endpoints(&self, engine: &str, rank: u32) -> Option<OutletEndpoints> {
        self.endpoints.lock().get(&(engine.to_owned(), rank)).cloned()
    }

    /// Listeners whose connections were refused, or closed for a fault of theirs: how often, by a stable word.
    pub fn refused_listeners(&self) -> BTreeMap<&'static str, u64> {
        self.context.refusals().counts()
    }

    /// Ends the thread and closes the sockets.
    pub fn stop(&self) {
        if let Some((stop, thread)) = self.thread.lock().take() {
            stop.cancel();
            if thread.join().is_err() {
                warn!("the republisher panicked");
            }
        }
    }

    fn ensure_running(&self) -> Result<(), RepublishError> {
        let mut running = self.thread.lock();
        if running.is_none() {
            let stop = CancellationToken::new();
            let (token, runtime, commands) = (stop.clone(), Handle::current(), self.commands.clone());
            let run = move || run(&commands, &token, &runtime);
            let thread = thread::Builder::new().name("kvp-republish".to_owned()).spawn(run);
            *running = Some((stop, thread.map_err(RepublishError::Thread)?));
        }
        Ok(())
    }

    fn open(
        &self,
        spec: &RepublishSpec,
        rank: u32,
    ) -> Result<(PubSocket, Option<RouterSocket>), RepublishError> {
        let address = |configured: &str| {
            at_rank(configured, rank).ok_or_else(|| RepublishError::Address {
                engine: spec.engine.clone(),
                address: configured.to_owned(),
            })
        };
        let failed = |error| RepublishError::Socket { engine: spec.engine.clone(), error };
        let (events, replay) = (address(&spec.events)?, spec.replay.as_deref().map(address).transpose()?);
        let released = self.released.lock();
        let mut options = PubOptions::new(Endpoint::Bind(events.clone()));
        options.send_hwm = HIGH_WATER;
        options.hold_back = spec.announce == Announce::State;
        let publisher =
            released.bind(&events, || PubSocket::open(&self.context, &options)).map_err(failed)?;
        let bind = |replay: &str| {
            released.bind(replay, || RouterSocket::bind(&self.context, replay, HIGH_WATER)).map_err(failed)
        };
        Ok((publisher, replay.as_deref().map(bind).transpose()?))
    }
}

impl Drop for Republisher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The address of a rank: the port counted up, unless the system chooses it.
fn at_rank(address: &str, rank: u32) -> Option<String> {
    let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let port = if port == 0 { 0 } else { u16::try_from(u32::from(port) + rank).ok()? };
    (!host.is_empty()).then(|| format!("tcp://{host}:{port}"))
}

fn run(commands: &Mutex<Vec<Command>>, stop: &CancellationToken, runtime: &Handle) {
    let mut outlets: Vec<Outlet> = Vec::new();
    let building = Building::new(runtime.clone());
    let mut last_work = kvplane_runtime::now();
    while !stop.is_cancelled() {
        for command in std::mem::take(&mut *commands.lock()) {
            match command {
                Command::Publish(more) => outlets.extend(more),
                Command::Close(engine) => {
                    let closing = |outlet: &mut Outlet| outlet.is_of(&engine);
                    for mut outlet in outlets.extract_if(.., closing) {
                        // The last thing that a removed stream says is that nothing is held any more.
                        while outlet.publish(&building) {}
                    }
                }
            }
        }
        let mut worked = false;
        for outlet in &mut outlets {
            worked |= outlet.turn(&building);
        }
        if worked {
            last_work = kvplane_runtime::now();
        } else {
            thread::sleep(if last_work.elapsed() < QUIET { NAP } else { LONG_NAP });
        }
    }
}
