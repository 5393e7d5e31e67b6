//! An engine whose one source brings the events of all its ranks, and the ranks that it feeds.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kvplane_core::EngineId;
use parking_lot::RwLock;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use crate::drain;
use crate::feeder::Feeder;
use crate::grpc_source;
use crate::plane::Plane;
use crate::spec::{EngineSpec, Feed, RankSpec};

/// More ranks than any engine has; a source that speaks of more is not believed.
const MAX_RANKS: u32 = 1024;

/// The ranks that a source feeds. They come and go while it runs: one that it hears of is added to the plane.
#[derive(Debug)]
pub(crate) struct Ranks {
    engine: EngineId,
    address: String,
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
        info!(engine = %self.engine, rank, "heard of another rank");
        let spec = RankSpec::shared(rank, &self.address);
        if let Err(error) = self.plane.upgrade()?.add_rank(self.engine.as_str(), spec) {
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
    /// Starts the source of an engine, which feeds nobody yet.
    pub(crate) fn start(spec: &EngineSpec, plane: Weak<Plane>, first: Feeder) -> Self {
        let stop = CancellationToken::new();
        let max_silence = first.stream().freshness().max_silence().unwrap_or_default();
        let runtime = first.runtime().clone();
        let ranks = Arc::new(Ranks {
            engine: spec.id.clone(),
            address: spec.ranks.first().map(|rank| rank.events.address().to_owned()).unwrap_or_default(),
            plane,
            feeders: RwLock::new(BTreeMap::from([(first.stream().id().rank, first)])),
        });
        match &spec.feed {
            Feed::Subscribed(grpc) => {
                let run = grpc_source::run(grpc.clone(), ranks.clone(), max_silence);
                kvplane_runtime::spawn_on(&runtime, "relay", stop.clone().run_until_cancelled_owned(run));
            }
            Feed::Published | Feed::Discovered(_) | Feed::Linked(_) | Feed::Mirrored(_) => {}
            Feed::Drained(drain) => {
                let run = drain::run(drain.clone(), ranks.clone());
                kvplane_runtime::spawn_on(
                    &runtime,
                    "link to a plane",
                    stop.clone().run_until_cancelled_owned(run),
                );
            }
        }
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
