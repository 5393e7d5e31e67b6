//! vLLM's framing out again: PUB for what happens, ROUTER for what happened, one pair per rank.
//!
//! Anything that speaks to a vLLM publisher can listen here instead, and join late: a replay from below the window is
//! answered with the whole state, as batches that begin with a clear, and then the tail. Sequences are kvplane's own
//! (epoch << 20 + n); a new epoch opens with a clear.
//!
//! One thread serves all of them, as an engine's publisher does: between two batches it looks for requests.

mod encode;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_core::Cursor;
use kvplane_ingest::{Plane, Stream};
use kvplane_socket::{
    Endpoint, PubOptions, PubSocket, PublishContext, ReplyFraming, RouterSocket, SocketError,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

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

struct Outlet {
    stream: Arc<Stream>,
    topic: Vec<u8>,
    publisher: PubSocket,
    router: Option<RouterSocket>,
    cursor: Cursor,
}

/// Sockets that are bound and publish nothing yet.
pub struct BoundRepublisher {
    outlets: Vec<BoundOutlet>,
}

struct BoundOutlet {
    engine: String,
    rank: u32,
    topic: Vec<u8>,
    publisher: PubSocket,
    router: Option<RouterSocket>,
}

impl std::fmt::Debug for BoundRepublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundRepublisher").field("outlets", &self.outlets.len()).finish()
    }
}

impl BoundRepublisher {
    /// Binds every socket: what is wrong with an address, or a port that is taken, is known before anything else starts.
    pub fn bind(specs: &[RepublishSpec]) -> Result<Self, RepublishError> {
        let context = PublishContext::new();
        let mut outlets = Vec::new();
        for spec in specs {
            for rank in 0..spec.ranks {
                let (publisher, router) = open(&context, spec, rank)?;
                let (engine, topic) = (spec.engine.clone(), spec.topic.clone().into_bytes());
                outlets.push(BoundOutlet { engine, rank, topic, publisher, router });
            }
        }
        Ok(Self { outlets })
    }

    /// Starts publishing what the plane records. Must be called within a tokio runtime.
    pub fn start(self, plane: &Plane) -> Result<Republisher, RepublishError> {
        let mut outlets = Vec::new();
        let mut endpoints = HashMap::new();
        for BoundOutlet { engine, rank, topic, publisher, router } in self.outlets {
            let Some(stream) = plane.engine(&engine).and_then(|engine| engine.stream(rank).cloned()) else {
                continue;
            };
            let replay = router.as_ref().map(|router| router.last_endpoint().to_owned());
            let events = publisher.last_endpoint().to_owned();
            info!(stream = %stream.id(), events, replay = replay.as_deref().unwrap_or("off"), "republishing");
            endpoints.insert((engine, rank), (events, replay));
            outlets.push(Outlet { cursor: stream.cursor(), stream, topic, publisher, router });
        }
        let stop = CancellationToken::new();
        let (token, runtime) = (stop.clone(), Handle::current());
        let run = move || run(outlets, &token, &runtime);
        let thread = thread::Builder::new().name("kvp-republish".to_owned()).spawn(run);
        Ok(Republisher { stop, thread: Some(thread.map_err(RepublishError::Thread)?), endpoints })
    }
}

/// The running republisher.
#[derive(Debug)]
pub struct Republisher {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    /// Where each outlet publishes and replays, by engine and rank.
    endpoints: HashMap<(String, u32), (String, Option<String>)>,
}

impl Republisher {
    /// Where a rank is published and replayed.
    pub fn endpoints(&self, engine: &str, rank: u32) -> Option<&(String, Option<String>)> {
        self.endpoints.get(&(engine.to_owned(), rank))
    }

    /// Ends the thread and closes the sockets.
    pub fn stop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the republisher panicked");
        }
    }
}

impl Drop for Republisher {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open(
    context: &PublishContext,
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
    let mut options = PubOptions::new(Endpoint::Bind(address(&spec.events)?));
    options.send_hwm = HIGH_WATER;
    let publisher = PubSocket::open(context, &options).map_err(failed)?;
    let router = match &spec.replay {
        Some(replay) => Some(RouterSocket::bind(context, &address(replay)?, HIGH_WATER).map_err(failed)?),
        None => None,
    };
    Ok((publisher, router))
}

/// The address of a rank: the port counted up, unless the system chooses it.
fn at_rank(address: &str, rank: u32) -> Option<String> {
    let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let port = if port == 0 { 0 } else { u16::try_from(u32::from(port) + rank).ok()? };
    (!host.is_empty()).then(|| format!("tcp://{host}:{port}"))
}

fn run(mut outlets: Vec<Outlet>, stop: &CancellationToken, runtime: &Handle) {
    let mut last_work = Instant::now();
    while !stop.is_cancelled() {
        let mut worked = false;
        for outlet in &mut outlets {
            worked |= outlet.publish();
            worked |= outlet.answer(runtime);
        }
        if worked {
            last_work = Instant::now();
        } else {
            thread::sleep(if last_work.elapsed() < QUIET { NAP } else { LONG_NAP });
        }
    }
}

impl Outlet {
    /// Publishes what is new. True if there was something.
    fn publish(&mut self) -> bool {
        let Ok(entries) = self.stream.read_after(self.cursor, BURST) else {
            // Another life, or we were too slow. Listeners see a hole in the numbers, and ask.
            self.cursor = match self.stream.first_cursor() {
                Some(first) if first.epoch != self.cursor.epoch => first,
                _ => self.stream.cursor(),
            };
            return true;
        };
        for entry in &entries {
            let payload = encode::entry(self.stream.id().rank, entry);
            if let Err(error) = self.publisher.send(&self.topic, entry.sequence, &payload) {
                warn!(stream = %self.stream.id(), %error, "cannot republish");
            }
            self.cursor.sequence = entry.sequence;
        }
        !entries.is_empty()
    }

    /// Answers one replay request, if there is one.
    fn answer(&mut self, runtime: &Handle) -> bool {
        let Some(router) = &self.router else { return false };
        let request = match router.recv_request(Duration::ZERO) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(error) => {
                warn!(stream = %self.stream.id(), %error, "replay request cannot be read");
                return false;
            }
        };
        let framing = ReplyFraming::WithTopic;
        let send = |sequence: u64, payload: &[u8]| {
            router.reply_batch(&request.identity, framing, &self.topic, sequence, payload)
        };
        let within = request.start.checked_sub(1).and_then(|before| self.stream.cursor_at(before).ok());
        let mut cursor = if let Some(cursor) = within {
            cursor
        } else {
            // Below the window, of another life, or from the beginning: everything.
            let snapshot = runtime.block_on(self.stream.snapshot());
            let room =
                snapshot.cursor.sequence.checked_sub(request.start).map_or(u64::MAX, |below| below + 1);
            let batches: Vec<Bytes> = encode::snapshot(self.stream.id().rank, &snapshot, room);
            let first = snapshot.cursor.sequence + 1 - batches.len() as u64;
            for (sequence, payload) in (first..).zip(&batches) {
                if send(sequence, payload).is_err() {
                    return true;
                }
            }
            snapshot.cursor
        };
        // The tail up to now; what comes later is published.
        while let Ok(entries) = self.stream.read_after(cursor, BURST) {
            let Some(last) = entries.last().map(|entry| entry.sequence) else { break };
            for entry in &entries {
                if send(entry.sequence, &encode::entry(self.stream.id().rank, entry)).is_err() {
                    return true;
                }
            }
            cursor.sequence = last;
        }
        if let Err(error) = router.reply_end(&request.identity, framing) {
            warn!(stream = %self.stream.id(), %error, "replay cannot be ended");
        }
        true
    }
}
