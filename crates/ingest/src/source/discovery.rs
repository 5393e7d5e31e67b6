//! The task that asks one engine, as long as the engine is there.
//!
//! It asks at once, then again whenever something is missing, and after every reconnect and restart: an
//! engine may come back with other ranks. An unusable answer becomes a trouble of the streams that wait for a
//! better one; it never touches a stream that is followed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_core::{Continuity, EngineId, Epoch, Trouble};
use kvplane_discovery::{AddressError, Asker, DiscoverySpec, FoundRank, Refusal};
use kvplane_socket::Endpoint;
use kvplane_stream::{JournalOptions, Now, Options, Recorder};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::check::AddError;
use crate::feeder::Feeder;
use crate::plane::{Engine, Plane};
use crate::source::published::{PublishedRank, subscribed};
use crate::source::{Events, Opening, RankSpec, SourceKind};
use crate::spec::PlaneOptions;

/// A question that nobody answers is asked again after this, then after twice as long and so on …
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// … up to this: an engine takes minutes to start, and should be heard soon after.
const RETRY_LAST: Duration = Duration::from_secs(5);
/// How often the streams are looked at for reconnects and restarts.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Ranks that publish on sockets, at addresses that the engine is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    /// Whom to ask, and what the operator configured.
    pub spec: DiscoverySpec,
    /// Its ranks, as far as they are known.
    pub ranks: Vec<FoundRank>,
}

impl SourceKind for Discovered {
    fn ranks(&self) -> Vec<RankSpec> {
        self.ranks.iter().cloned().map(RankSpec::from).collect()
    }

    fn check(&self) -> Result<(), AddressError> {
        self.ranks.iter().filter_map(published).try_for_each(|PublishedRank { rank, events, replay }| {
            PublishedRank::at(rank, &events, replay.as_deref()).map(|_| ())
        })
    }

    fn remove_rank(&mut self, rank: u32) {
        self.ranks.retain(|known| known.rank != rank);
    }

    fn follow(&self, options: &PlaneOptions, rank: u32) -> Option<Options> {
        let known = self.ranks.iter().find(|known| known.rank == rank);
        Some(subscribed(known.is_some_and(|known| known.replay.is_some()), options, rank))
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        Recorder::new(self.follow(options, rank).unwrap_or_default(), keep, rank, now)
    }

    fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let Opening { plane, sources, spec, stream } = opening;
        let feeder = Feeder::new(stream.clone(), plane.runtime().clone());
        let asker = Asker::new(spec.kind, self.spec.clone(), plane.http().clone());
        sources.discover(&feeder, asker, &plane.weak(), plane.options().discover_every);
        let known = self.ranks.iter().find(|known| known.rank == stream.id().rank);
        if let Some(rank) = known.and_then(published) {
            return rank.open(Opening { plane, sources, spec, stream });
        }
        sources.await_address(feeder);
        Ok(())
    }
}

/// A rank whose address is known.
fn published(found: &FoundRank) -> Option<PublishedRank> {
    let FoundRank { rank, events, replay } = found.clone();
    Some(PublishedRank { rank, events: Endpoint::Connect(events?), replay })
}

impl From<PublishedRank> for FoundRank {
    fn from(PublishedRank { rank, events, replay }: PublishedRank) -> Self {
        Self { rank, events: Some(events.address().to_owned()), replay }
    }
}

impl From<FoundRank> for RankSpec {
    fn from(FoundRank { rank, events, replay }: FoundRank) -> Self {
        Self { rank, events: events.map_or(Events::Awaited, Events::Connect), replay }
    }
}

/// Asks the engine until this is dropped.
pub(crate) async fn run(engine: EngineId, asker: Asker, plane: Weak<Plane>, every: Duration) {
    let mut said = None;
    let mut lives = Lives::default();
    let mut failures = 0;
    let mut due = Some(Instant::now());
    loop {
        if let Some(engine) = plane.upgrade().and_then(|plane| plane.engine(engine.as_str())) {
            let now = Lives::of(&engine);
            if now != lives {
                lives = now;
                failures = 0;
                due = Some(Instant::now());
            }
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            let refusal = ask(&engine, &asker, &plane).await.err();
            let missing = refusal.is_some() || !all_heard(&engine, &plane);
            let pause = match &refusal {
                Some(Refusal::Silent(_)) => (RETRY_FIRST * 2_u32.pow(failures)).min(RETRY_LAST).min(every),
                _ => every,
            };
            failures = (failures + 1).min(5);
            due = missing.then(|| Instant::now() + pause);
            if said != refusal {
                if let Some(refusal) = &refusal {
                    warn!(%engine, trouble = %refusal.trouble(), "discovery failed: {refusal}");
                }
                said = refusal;
            }
        }
        let look = Instant::now() + LOOK_EVERY;
        tokio::time::sleep_until(due.map_or(look, |due| due.min(look))).await;
    }
}

/// Asks once, and applies the answer.
async fn ask(engine: &EngineId, asker: &Asker, plane: &Weak<Plane>) -> Result<(), Refusal> {
    let answer = asker.ask().await;
    let Some(plane) = plane.upgrade() else { return Ok(()) };
    let found = match answer {
        Ok(found) => found,
        Err(refusal) => {
            name(&plane, engine, refusal.trouble());
            return Err(refusal);
        }
    };
    let (id, spec) = (engine.clone(), asker.spec().clone());
    let complaints = found.complaints.clone();
    // Sockets are opened and closed, and states freed: not a task's business.
    let given = tokio::task::spawn_blocking(move || plane.give_ranks(&id, &spec, found)).await;
    match given {
        Ok(Ok(changed)) => {
            if changed {
                info!(%engine, "discovery succeeded");
                for complaint in complaints {
                    warn!(%engine, "{complaint}");
                }
            }
            Ok(())
        }
        Ok(Err(error)) => Err(Refusal::Bad(error.to_string())),
        Err(_) => Err(Refusal::Bad("the ranks could not be changed".to_owned())),
    }
}

/// Names why the ranks that wait for an address have none. The others have theirs from an earlier answer.
fn name(plane: &Arc<Plane>, engine: &EngineId, trouble: Trouble) {
    let Some(engine) = plane.engine(engine.as_str()) else { return };
    for stream in engine.awaited() {
        stream.set_discovery_trouble(Some(trouble));
    }
}

fn all_heard(engine: &EngineId, plane: &Weak<Plane>) -> bool {
    let engine = plane.upgrade().and_then(|plane| plane.engine(engine.as_str()));
    engine.is_some_and(|engine| {
        engine.streams.iter().all(|stream| stream.glance().continuity == Continuity::Live)
    })
}

/// What changes when a rank's publisher goes away, comes back, or is replaced.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lives(Vec<(u64, Epoch)>);

impl Lives {
    fn of(engine: &Engine) -> Self {
        let streams = engine.streams.iter().map(|stream| stream.glance());
        Self(streams.map(|status| (status.counters.disconnects, status.epoch)).collect())
    }
}
