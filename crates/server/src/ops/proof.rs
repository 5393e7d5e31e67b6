//! Watching streams for the sign of a flush.
//!
//! Watches begin before an engine is asked and go on by themselves after it answered, in a task for each server: a watch
//! ends with its sign or its timeout, whether anybody still listens or not, so that no stream stays fenced.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kvplane_core::{EngineKind, Reason, Tier};
use kvplane_ingest::{FlushWatch, Stream};
use kvplane_ops::{Backend, Limits, Sent, Verb, ask, dry_run};
use kvplane_stream::FlushOutcome;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::plan::Target;
use super::verdict::Sight;

/// How long a stream may take to show a flush by itself before its engine is nudged.
const NUDGE_AFTER: Duration = Duration::from_secs(1);

/// How long the verdict waits for the stream where the engine did not say yes: a sign that is on its way arrives within this.
const WITHOUT_A_YES: Duration = Duration::from_secs(1);

/// Which rank of an operation: the target's number, and the rank's within it.
pub(super) type At = (usize, usize);

/// A stream that is watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) at: At,
    /// Absent if the stream was removed: then nothing will be shown.
    watch: Option<FlushWatch>,
    seen: Seen,
}

/// What was known of a stream when its watch began.
#[derive(Debug, Clone)]
struct Seen {
    stream: Arc<Stream>,
    kind: EngineKind,
    held: bool,
    doubted: bool,
}

impl Seen {
    fn sight(&self, outcome: FlushOutcome, hint: &Mutex<Option<String>>) -> Sight {
        Sight {
            outcome,
            kind: self.kind,
            continuity: self.stream.status().continuity,
            held: self.held,
            doubted: self.doubted,
            early: false,
            hint: hint.lock().clone(),
        }
    }
}

impl Watched {
    fn begin(at: At, stream: &Arc<Stream>, kind: EngineKind) -> Self {
        let status = stream.status();
        let held = status.blocks[Tier::Device.index()] > 0;
        let doubted = status.trust.active().iter().any(|active| active.reason == Reason::UnprovenFlush);
        let seen = Seen { stream: stream.clone(), kind, held, doubted };
        Self { at, watch: stream.begin_flush().ok(), seen }
    }

    /// Nothing was flushed.
    pub(super) fn refused(self) {
        if let Some(watch) = self.watch {
            watch.refused();
        }
    }

    async fn outcome(self, timeout: Duration, hint: &Mutex<Option<String>>) -> (At, Sight) {
        let outcome = match self.watch {
            Some(watch) => watch.outcome(timeout).await,
            None => FlushOutcome::Lost,
        };
        (self.at, self.seen.sight(outcome, hint))
    }
}

/// What is asked now, and what is watched because of it.
#[derive(Debug, Default)]
pub(super) struct Asking {
    watched: Mutex<HashMap<usize, Vec<Watched>>>,
    begun: Mutex<Vec<usize>>,
    /// Somebody else is being asked.
    pub(super) news: Notify,
}

impl Asking {
    /// These are about to be asked.
    pub(super) fn begin(&self, numbers: &[usize], targets: &[Target], watch: bool) {
        for &number in numbers {
            let Some(target) = targets.get(number).filter(|_| watch) else { continue };
            let ranks = target.watched().enumerate();
            let watched =
                ranks.map(|(rank, at)| Watched::begin((number, rank), &at.stream, target.kind)).collect();
            self.watched.lock().insert(number, watched);
        }
        self.begun.lock().extend(numbers);
        self.news.notify_one();
    }

    /// Who began to be asked since this was asked last.
    pub(super) fn begun(&self) -> Vec<usize> {
        std::mem::take(&mut *self.begun.lock())
    }

    /// The watches over a target's streams.
    pub(super) fn take(&self, number: usize) -> Vec<Watched> {
        self.watched.lock().remove(&number).unwrap_or_default()
    }
}

/// The end of a watch.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) at: At,
    pub(super) sight: Sight,
    pub(super) took: Duration,
}

/// How the streams behind a server are watched after it was asked.
#[derive(Debug)]
pub(super) struct Proving {
    pub(super) watched: Vec<Watched>,
    pub(super) timeout: Duration,
    /// The engine said yes: the verdict waits as long as the streams are watched.
    pub(super) said_yes: bool,
    pub(super) nudge: Nudge,
    /// Has room for every rank of the operation.
    pub(super) told: mpsc::Sender<Proof>,
    /// The operation's place: it is taken until the last stream is settled.
    pub(super) place: Arc<OwnedSemaphorePermit>,
}

/// Whether an idle engine is sent a request, so that it publishes.
#[derive(Debug)]
pub(super) enum Nudge {
    /// It publishes by itself, or cannot be nudged.
    Needless,
    /// It could be.
    Unwanted,
    /// It is, once, if its streams show nothing for a while.
    Wanted { backend: Box<Backend>, verb: Verb, slots: Arc<Semaphore> },
}

impl Nudge {
    pub(super) fn new(backend: &Backend, model: &str, wanted: bool, slots: &Arc<Semaphore>) -> Self {
        let verb = Verb::Nudge { model: model.to_owned() };
        if dry_run(backend, &verb).is_err() {
            return Self::Needless;
        }
        if !wanted {
            return Self::Unwanted;
        }
        Self::Wanted { backend: Box::new(backend.clone()), verb, slots: slots.clone() }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Needless => return None,
            Self::Unwanted => "an idle engine of its kind publishes with its next step: nudge it",
            Self::Wanted { .. } => "it was not nudged in time",
        };
        Some(hint.to_owned())
    }

    /// Waits a while, then sends the request. Never ends where none is wanted.
    async fn send(&self, hint: &Mutex<Option<String>>) {
        let Self::Wanted { backend, verb, slots } = self else { return std::future::pending().await };
        tokio::time::sleep(NUDGE_AFTER).await;
        let Ok(_slot) = slots.acquire().await else { return };
        *hint.lock() = Some("it was nudged, and has not answered".to_owned());
        let answer = ask(backend, verb, &Limits::of(verb), &Sent::default()).await;
        *hint.lock() = Some(format!("it was nudged: {}", answer.why));
    }
}

impl Proving {
    /// Watches until every stream is settled.
    pub(super) async fn run(self) {
        let Self { watched, timeout, said_yes, nudge, told, place } = self;
        let began = Instant::now();
        let hint = Mutex::new(nudge.hint());
        let mut unsettled: HashMap<At, Seen> =
            watched.iter().map(|watched| (watched.at, watched.seen.clone())).collect();
        let mut early = std::pin::pin!(tokio::time::sleep(WITHOUT_A_YES));
        let mut is_early = !said_yes && timeout > WITHOUT_A_YES;
        let mut open: FuturesUnordered<_> =
            watched.into_iter().map(|watched| watched.outcome(timeout, &hint)).collect();
        let mut nudged = std::pin::pin!(nudge.send(&hint));
        let mut is_nudged = false;
        loop {
            tokio::select! {
                settled = open.next() => {
                    let Some((at, sight)) = settled else { break };
                    unsettled.remove(&at);
                    // Whoever asked may have gone.
                    let _ = told.send(Proof { at, sight, took: began.elapsed() }).await;
                }
                () = &mut early, if is_early => {
                    is_early = false;
                    for (&at, seen) in &unsettled {
                        let sight = Sight { early: true, ..seen.sight(FlushOutcome::Unproven, &hint) };
                        let _ = told.send(Proof { at, sight, took: began.elapsed() }).await;
                    }
                }
                // Nobody is sent anything for a caller that has gone.
                () = &mut nudged, if !is_nudged && !told.is_closed() => is_nudged = true,
            }
        }
        drop(place);
    }
}
