//! An engine whose one source brings the events of all its ranks, and the ranks that it feeds.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_core::EngineId;
use parking_lot::RwLock;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use crate::feeder::Feeder;
use crate::plane::Plane;
use crate::source::Opening;

/// More ranks than any engine has; a source that speaks of more is not believed.
const MAX_RANKS: u32 = 1024;

/// The ranks that a source feeds. They come and go while it runs: one that it hears of is added to the plane.
#[derive(Debug)]
pub(crate) struct Ranks {
    engine: EngineId,
    plane: Weak<Plane>,
    feeders: RwLock<BTreeMap<u32, Feeder>>,
}

impl Ranks {
    /// Whose they are.
    pub(crate) fn engine(&self) -> &EngineId {
        &self.engine
    }

    /// The ranks that there are now.
    pub(crate) fn all(&self) -> Vec<Feeder> {
        self.feeders.read().values().cloned().collect()
    }

    /// The feeder of a rank, added to the plane if it is not there. `None` if it cannot be.
    pub(crate) fn feeder(&self, rank: u32) -> Option<Feeder> {
        if let Some(feeder) = self.feeders.read().get(&rank) {
            return Some(feeder.clone());
        }
        if rank >= MAX_RANKS {
            return None;
        }
        info!(engine = %self.engine, rank, "new rank discovered");
        if let Err(error) = self.plane.upgrade()?.add_shared_rank(self.engine.as_str(), rank) {
            warn!(engine = %self.engine, rank, %error, "the rank cannot be added");
        }
        self.feeders.read().get(&rank).cloned()
    }
}

/// A running source. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SharedSource {
    ranks: Arc<Ranks>,
    _stop: DropGuard,
}

impl SharedSource {
    /// Starts the source of an engine, for its first rank.
    fn start<F>(
        plane: Weak<Plane>,
        first: Feeder,
        name: &'static str,
        run: impl FnOnce(Arc<Ranks>, Duration) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let max_silence = first.stream().freshness().max_silence().unwrap_or_default();
        let runtime = first.runtime().clone();
        let ranks = Arc::new(Ranks {
            engine: first.stream().id().engine.clone(),
            plane,
            feeders: RwLock::new(BTreeMap::from([(first.stream().id().rank, first)])),
        });
        let running = run(ranks.clone(), max_silence);
        kvplane_runtime::spawn_on(&runtime, name, stop.clone().run_until_cancelled_owned(running));
        Self { ranks, _stop: stop.drop_guard() }
    }

    pub(crate) fn add(&self, feeder: Feeder) {
        self.ranks.feeders.write().insert(feeder.stream().id().rank, feeder);
    }

    /// The source no longer feeds a rank. True if no other is left.
    pub(crate) fn remove(&self, rank: u32) -> bool {
        let mut feeders = self.ranks.feeders.write();
        feeders.remove(&rank);
        feeders.is_empty()
    }
}

/// Feeds one stream from its engine's one source, which is started with the first: `run`, a task called
/// `name`.
pub(crate) fn share<F>(opening: Opening<'_>, name: &'static str, run: impl FnOnce(Arc<Ranks>, Duration) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let Opening { plane, sources, stream, .. } = opening;
    let feeder = Feeder::new(stream.clone(), plane.runtime().clone());
    let start = |first| SharedSource::start(plane.weak(), first, name, run);
    sources.share(feeder, start);
}
