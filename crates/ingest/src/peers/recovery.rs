//! The task that asks peers.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::HeaderValue;
use kvplane_core::StreamId;
use kvplane_stream::{DumpOutcome, PeerDump};
use kvplane_transport::{HttpQuestion, NoAnswer, Sent};
use kvplane_wire::dynamo::IndexerDump;
use tokio::runtime::Handle;
use tracing::{debug, info, warn};

use super::dump::{Name, Unusable, parts_of};
use super::{Pause, Peer, Peers};
use crate::chronicle::{Mood, Said};
use crate::feeder::Feeder;
use crate::plane::Plane;
use crate::stream::Stream;
use crate::token_file::read_token;

/// How often streams are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a dump waits for the batch that it names to be read here, and how often that is looked for.
const WAIT_FOR_BATCH: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(20);
/// Streams that take a dump at the same time.
const AT_ONCE: usize = 16;

/// A stream that lacks its past.
struct Wanting {
    stream: Arc<Stream>,
    name: Name,
}

/// Why a peer gave no dump.
#[derive(Debug, thiserror::Error)]
enum NoDump {
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("the answer is {0}")]
    Status(http::StatusCode),
    #[error("the answer is no dump of an indexer")]
    Malformed,
    #[error("the token cannot be read: {0}")]
    Token(String),
}

/// Asks peers for as long as the plane is there.
pub(crate) async fn recover(peers: Arc<Peers>, plane: Weak<Plane>) {
    let mut pauses: HashMap<StreamId, Pause> = HashMap::new();
    loop {
        if peers.list.lock().is_empty() {
            peers.changed.notified().await;
            pauses.clear();
        } else if tokio::time::timeout(LOOK_EVERY, peers.changed.notified()).await.is_ok() {
            // Another peer may know what the others did not.
            pauses.clear();
        }
        let Some((wanting, runtime)) =
            plane.upgrade().map(|plane| (look(&plane, &mut pauses), plane.runtime().clone()))
        else {
            return;
        };
        if !wanting.is_empty() {
            peers.ask(wanting, &mut pauses, &runtime).await;
        }
    }
}

fn now() -> Duration {
    // Only differences count.
    kvplane_runtime::now().duration_since(*START)
}

static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(kvplane_runtime::now);

/// The streams that lack their past and are due. Each is made ready for a dump.
fn look(plane: &Plane, pauses: &mut HashMap<StreamId, Pause>) -> Vec<Wanting> {
    let now = now();
    let engines = plane.engines();
    let mut wanting = Vec::new();
    let mut lacking: HashMap<StreamId, Pause> = HashMap::new();
    for engine in engines.iter() {
        for stream in &engine.streams {
            let pause = pauses.get(stream.id()).copied().unwrap_or_default();
            let due = pause.is_over(now);
            if due && !stream.expect_dump() {
                continue;
            }
            lacking.insert(stream.id().clone(), pause);
            if due {
                let (model, group) = (engine.spec.model.clone(), engine.spec.routing_group.clone());
                let name = Name { model, group, worker: engine.spec.worker_id, rank: stream.id().rank };
                wanting.push(Wanting { stream: stream.clone(), name });
            }
        }
    }
    *pauses = lacking;
    wanting
}

impl Peers {
    /// Asks one peer after the other, until every stream has taken a dump or no peer is left.
    async fn ask(&self, mut wanting: Vec<Wanting>, pauses: &mut HashMap<StreamId, Pause>, runtime: &Handle) {
        let list = self.list.lock().clone();
        for peer in list.iter().filter(|peer| peer.pause.is_over(now())) {
            if wanting.is_empty() {
                return;
            }
            let names: Vec<Name> = wanting.iter().map(|wanting| wanting.name.clone()).collect();
            let dump = self.fetch(peer, names, runtime).await;
            self.note(peer, &dump);
            let Ok(dump) = dump else { continue };
            let taking = wanting.into_iter().zip(dump).map(async |(wanting, parts)| {
                let taken = match parts {
                    Ok(parts) => self.give(&wanting.stream, &peer.url, &parts, runtime).await,
                    Err(unusable) => {
                        debug!(stream = %wanting.stream.id(), peer = peer.url, reason = unusable.as_str(), "no dump of the stream");
                        false
                    }
                };
                (!taken).then_some(wanting)
            });
            let taken: Vec<_> = futures::stream::iter(taking).buffer_unordered(AT_ONCE).collect().await;
            wanting = taken.into_iter().flatten().collect();
        }
        for wanting in wanting {
            pauses.entry(wanting.stream.id().clone()).or_default().fail(now());
        }
    }

    /// What a peer has of each stream.
    async fn fetch(
        &self,
        peer: &Peer,
        names: Vec<Name>,
        runtime: &Handle,
    ) -> Result<Vec<Result<Vec<PeerDump>, Unusable>>, NoDump> {
        let authorization = self.authorization(peer)?;
        let question = HttpQuestion { authorization, ..HttpQuestion::get(&peer.url, "/dump") };
        let (max, deadline) = (self.options.max_dump, self.options.deadline);
        let (status, body) = self.options.client.ask(question, max, deadline, &Sent::default()).await?;
        if !status.is_success() {
            return Err(NoDump::Status(status));
        }
        let read = runtime.spawn_blocking(move || read(&body, &names));
        read.await.map_err(|_| NoDump::Malformed)?
    }

    /// What a peer is shown. Only those that are configured: anybody may name the others.
    fn authorization(&self, peer: &Peer) -> Result<Option<HeaderValue>, NoDump> {
        let Some(path) = self.options.token_file.as_ref().filter(|_| peer.configured) else {
            return Ok(None);
        };
        let token = read_token(path).map_err(|error| NoDump::Token(error.to_string()))?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| NoDump::Token("it is no token".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Counts and logs what a peer answered. Of one that fails, the first time is logged, and ever fewer.
    fn note<T>(&self, peer: &Peer, dump: &Result<T, NoDump>) {
        let mut list = self.list.lock();
        let Some(known) = list.iter_mut().find(|known| known.url == peer.url) else { return };
        match dump {
            Ok(_) => {
                known.pause = Pause::default();
                self.dumps.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                known.pause.fail(now());
                let failures = known.pause.failures;
                self.failures.fetch_add(1, Ordering::Relaxed);
                if failures.is_power_of_two() {
                    warn!(peer = peer.url, %error, failures, "no dump from a peer");
                }
            }
        }
    }

    /// Gives a stream what a peer dumped of it. True if nothing more is to be asked for it.
    async fn give(&self, stream: &Arc<Stream>, peer: &str, parts: &[PeerDump], runtime: &Handle) -> bool {
        let feeder = Feeder::new(stream.clone(), runtime.clone());
        let deadline = now() + WAIT_FOR_BATCH;
        let (mut at, mut blocks) = (0, 0);
        while let Some(part) = parts.get(at) {
            let mut outcome = DumpOutcome::NotWanted("the stream was removed");
            feeder.tell(|recorder, now| outcome = recorder.take_dump(now, part));
            match outcome {
                DumpOutcome::Taken(taken) => {
                    (at, blocks) = (at + 1, blocks + taken);
                    tokio::task::yield_now().await;
                }
                DumpOutcome::Early(_) if at == 0 && now() < deadline => tokio::time::sleep(WAIT_STEP).await,
                DumpOutcome::NotWanted(_) => return true,
                DumpOutcome::Early(reason) | DumpOutcome::Stale(reason) => {
                    self.unfit.fetch_add(1, Ordering::Relaxed);
                    debug!(stream = %stream.id(), peer, reason, "a peer's dump cannot be used");
                    return false;
                }
            }
        }
        feeder.tell(|recorder, _| recorder.finish_dump());
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        self.blocks.fetch_add(blocks as u64, Ordering::Relaxed);
        let proven = parts.first().is_some_and(|part| part.position.is_some());
        info!(stream = %stream.id(), peer, blocks, proven, "blocks recovered from a peer");
        stream.remark(Said::new("peer", Mood::Good, format!("{blocks} blocks recovered from a peer")));
        true
    }
}

fn read(body: &Bytes, names: &[Name]) -> Result<Vec<Result<Vec<PeerDump>, Unusable>>, NoDump> {
    let dump: IndexerDump = serde_json::from_slice(body).map_err(|_| NoDump::Malformed)?;
    Ok(parts_of(&dump, names))
}
