//! Watching streams for the sign of a flush.
//!
//! Watches begin before an engine is asked and go on by themselves after it answered, in a task for each
//! server: a watch ends with its sign or its timeout, whether anybody still listens or not, so that no stream
//! stays fenced.

use std::collections::{BTreeMap, HashMap};
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

/// How long the verdict waits for the stream where the engine did not say yes: a sign that is on its way
/// arrives within this.
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
    /// Its rank, as its engine counts them.
    fn rank(&self) -> u32 {
        self.stream.id().rank
    }

    fn sight(&self, outcome: FlushOutcome, hint: Option<String>) -> Sight {
        Sight {
            outcome,
            kind: self.kind,
            continuity: self.stream.status().continuity,
            held: self.held,
            doubted: self.doubted,
            early: false,
            hint,
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

    async fn outcome(self, timeout: Duration, silent: &Silent) -> (At, Sight) {
        let outcome = match self.watch {
            Some(watch) => watch.outcome(timeout).await,
            None => FlushOutcome::Lost,
        };
        let hint = silent.settle(self.seen.rank());
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

    /// These are about to be asked once more: what their streams have shown since the last time does not show
    /// the flush that is to come.
    pub(super) fn begin_again(&self, numbers: &[usize]) {
        let mut all = self.watched.lock();
        for number in numbers {
            for watched in all.get_mut(number).into_iter().flatten() {
                // The old watch ends first: two would wait for a clear each.
                if let Some(watch) = watched.watch.take() {
                    watch.refused();
                }
                *watched = Watched::begin(watched.at, &watched.seen.stream, watched.seen.kind);
            }
        }
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
    pub(super) sender: mpsc::Sender<Proof>,
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
    /// It is, once for each rank whose stream shows nothing for a while.
    Wanted { backend: Box<Backend>, model: String, slots: Arc<Semaphore> },
}

impl Nudge {
    pub(super) fn new(backend: &Backend, model: &str, wanted: bool, slots: &Arc<Semaphore>) -> Self {
        let model = model.to_owned();
        if dry_run(backend, &Verb::Nudge { model: model.clone(), rank: None }).is_err() {
            return Self::Needless;
        }
        if !wanted {
            return Self::Unwanted;
        }
        Self::Wanted { backend: Box::new(backend.clone()), model, slots: slots.clone() }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Needless => return None,
            Self::Unwanted => "an idle engine of its kind publishes with its next step: use nudge",
            Self::Wanted { .. } => "it was not nudged in time",
        };
        Some(hint.to_owned())
    }

    /// Waits a while, then sends a request to every rank that has shown nothing.
    async fn send(&self, silent: &Silent) {
        let Self::Wanted { backend, model, slots } = self else { return };
        tokio::time::sleep(NUDGE_AFTER).await;
        let nudges = silent.ranks().into_iter().map(async |rank| {
            let Ok(_slot) = slots.acquire().await else { return };
            if !silent.hint(rank, "it was nudged, and has not answered") {
                return;
            }
            // A server with one rank does not have to choose.
            let verb = Verb::Nudge { model: model.clone(), rank: silent.several.then_some(rank) };
            let answer = ask(backend, &verb, &Limits::of(&verb), &Sent::default()).await;
            silent.hint(rank, &format!("it was nudged: {}", answer.why));
        });
        futures::future::join_all(nudges).await;
    }
}

/// The ranks behind a server whose streams have shown nothing yet.
struct Silent {
    /// By rank: how many streams, and what is to be said of a nudge.
    ranks: Mutex<BTreeMap<u32, (usize, Option<String>)>>,
    /// The server has several ranks.
    several: bool,
}

impl Silent {
    fn new(watched: &[Watched], hint: Option<&String>) -> Self {
        let mut ranks = BTreeMap::new();
        for watched in watched {
            ranks.entry(watched.seen.rank()).or_insert_with(|| (0, hint.cloned())).0 += 1;
        }
        Self { several: ranks.len() > 1, ranks: Mutex::new(ranks) }
    }

    fn ranks(&self) -> Vec<u32> {
        self.ranks.lock().keys().copied().collect()
    }

    /// Sets what is to be said of the nudge of a rank; `false` if that is settled.
    fn hint(&self, rank: u32, hint: &str) -> bool {
        let mut ranks = self.ranks.lock();
        let silent = ranks.get_mut(&rank);
        silent.map(|(_, shown)| *shown = Some(hint.to_owned())).is_some()
    }

    /// What is to be said of the nudge of a rank.
    fn said(&self, rank: u32) -> Option<String> {
        self.ranks.lock().get(&rank)?.1.clone()
    }

    /// A stream of the rank is settled. Returns what is to be said of the rank's nudge.
    fn settle(&self, rank: u32) -> Option<String> {
        let mut ranks = self.ranks.lock();
        let (streams, hint) = ranks.get_mut(&rank)?;
        *streams -= 1;
        let (settled, hint) = (*streams == 0, hint.clone());
        if settled {
            ranks.remove(&rank);
        }
        hint
    }
}

impl Proving {
    /// Watches until every stream is settled.
    pub(super) async fn run(self) {
        let Self { watched, timeout, said_yes, nudge, sender, place } = self;
        let began = Instant::now();
        let silent = Silent::new(&watched, nudge.hint().as_ref());
        let mut unsettled: HashMap<At, Seen> =
            watched.iter().map(|watched| (watched.at, watched.seen.clone())).collect();
        let mut early = std::pin::pin!(tokio::time::sleep(WITHOUT_A_YES));
        let mut is_early = !said_yes && timeout > WITHOUT_A_YES;
        let mut open: FuturesUnordered<_> =
            watched.into_iter().map(|watched| watched.outcome(timeout, &silent)).collect();
        let nudged = async {
            tokio::select! {
                biased;
                // Nobody is sent anything for a caller that has gone.
                () = sender.closed() => {}
                () = nudge.send(&silent) => {}
            }
        };
        let mut nudged = std::pin::pin!(nudged);
        let mut is_nudged = false;
        loop {
            tokio::select! {
                settled = open.next() => {
                    let Some((at, sight)) = settled else { break };
                    unsettled.remove(&at);
                    // The caller may have gone.
                    let _ = sender.send(Proof { at, sight, took: began.elapsed() }).await;
                }
                () = &mut early, if is_early => {
                    is_early = false;
                    for (&at, seen) in &unsettled {
                        let hint = silent.said(seen.rank());
                        let sight = Sight { early: true, ..seen.sight(FlushOutcome::Unproven, hint) };
                        let _ = sender.send(Proof { at, sight, took: began.elapsed() }).await;
                    }
                }
                () = &mut nudged, if !is_nudged => is_nudged = true,
            }
        }
        drop(place);
    }
}
