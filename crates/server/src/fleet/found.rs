//! Engines that somebody found: added, changed and removed as the cluster has them.

use std::sync::Arc;

use kvplane_core::EngineId;
use kvplane_discovery::{DiscoverySpec, FoundRank, Overrides, Usual};
use kvplane_ingest::{
    Discovered, Endpoint, EngineSpec, Finding, Origin, Provenance, Published, PublishedRank, Source,
};
use kvplane_kubernetes::{RankAt, Wanted, Where};
use tracing::info;

use super::{Fleet, FleetError};

/// An engine as it was found last, and by whom.
#[derive(Debug)]
pub(super) struct Found {
    source: String,
    wanted: Wanted,
}

impl Fleet {
    /// Makes engines what `source` found: each as it is wanted now, or gone. Returns those that cannot be,
    /// and why; the others are applied.
    pub async fn change_found(
        &self,
        source: &str,
        changes: Vec<(String, Option<Wanted>)>,
    ) -> Vec<(String, String)> {
        let ids: Vec<String> = changes.iter().map(|(id, _)| id.clone()).collect();
        let source = source.to_owned();
        let changed = self.change(|fleet| async move {
            let mut refused = Vec::new();
            for (id, wanted) in changes {
                let applied = match wanted {
                    Some(wanted) => fleet.find_locked(&source, wanted).await,
                    None => fleet.lose_locked(&source, &id).await,
                };
                refused.extend(applied.err().map(|error| (id, error.to_string())));
            }
            Ok(refused)
        });
        changed.await.unwrap_or_else(|error| ids.into_iter().map(|id| (id, error.to_string())).collect())
    }

    async fn lose_locked(&self, source: &str, id: &str) -> Result<(), FleetError> {
        let mine = self.0.found.lock().get(id).is_some_and(|found| found.source == source);
        if !mine {
            return Ok(());
        }
        self.0.found.lock().remove(id);
        match self.engine(id) {
            Some(engine) if engine.origin == Origin::Kubernetes => self.remove_locked(id).await,
            // Somebody removed it by a call.
            _ => Ok(()),
        }
    }

    async fn find_locked(&self, source: &str, wanted: Wanted) -> Result<(), FleetError> {
        let id = wanted.id.clone();
        let before = self.0.found.lock().remove(&id);
        if let Some(other) = before.as_ref().filter(|found| found.source != source) {
            let message = format!("{} found it already: its selectors overlap", other.source);
            self.0.found.lock().extend(before.map(|found| (id, found)));
            return Err(FleetError::Conflict(message));
        }
        let engine = self.engine(&id);
        if let Some(engine) = engine.as_ref().filter(|engine| engine.origin != Origin::Kubernetes) {
            let by = engine.origin.as_str();
            return Err(FleetError::Conflict(format!("engine {id} is there already, added by {by}")));
        }
        match (&engine, &before) {
            (Some(engine), Some(found))
                if found.wanted.is_same(&wanted) && keeps_a_rank(&found.wanted, &wanted) =>
            {
                if let Some(provenance) = &engine.spec.provenance {
                    provenance.set(finding(source, &wanted));
                }
                self.move_ranks(&id, &found.wanted, &wanted).await?;
            }
            _ => {
                let spec = spec(source, &wanted)?;
                if engine.is_some() {
                    self.remove_locked(&id).await?;
                }
                self.off_the_runtime(move |inner| Ok(inner.plane.add(vec![spec], Origin::Kubernetes)?))
                    .await?;
                info!(engine = %id, added_by = Origin::Kubernetes.as_str(), source, "engine added");
            }
        }
        let found = Found { source: source.to_owned(), wanted };
        self.0.found.lock().insert(id, found);
        Ok(())
    }

    /// Adds and removes ranks of a group; those that stay do not notice.
    async fn move_ranks(&self, id: &str, before: &Wanted, now: &Wanted) -> Result<(), FleetError> {
        let (before, now) = (known(before).to_vec(), known(now).to_vec());
        let name = id.to_owned();
        self.off_the_runtime(move |inner| {
            for rank in before.iter().filter(|rank| !now.contains(rank)) {
                inner.plane.remove_rank(&name, rank.rank)?;
            }
            for rank in now.iter().filter(|rank| !before.contains(rank)) {
                inner.plane.add_rank(&name, published(rank)?)?;
            }
            Ok(())
        })
        .await
    }
}

/// Whether some rank stays where it is: an engine without any is another one. Those that are asked keep theirs.
fn keeps_a_rank(before: &Wanted, now: &Wanted) -> bool {
    let (before, now) = (known(before), known(now));
    before == now || before.iter().any(|rank| now.contains(rank))
}

fn known(wanted: &Wanted) -> &[RankAt] {
    match &wanted.at {
        Where::Known(ranks) => ranks,
        Where::Asked { .. } => &[],
    }
}

fn published(rank: &RankAt) -> Result<PublishedRank, FleetError> {
    Ok(PublishedRank::at(rank.rank, &Endpoint::Connect(rank.events.clone()), rank.replay.as_deref())?)
}

/// The engine, as a plane takes it.
fn spec(source: &str, wanted: &Wanted) -> Result<EngineSpec, FleetError> {
    let ranks = match &wanted.at {
        Where::Known(ranks) => {
            let ranks = ranks.iter().map(published).collect::<Result<_, _>>()?;
            Source::Published(Published { ranks })
        }
        Where::Asked { events, replay, ranks, usual_events, usual_replay } => {
            let count = ranks.unwrap_or(1);
            let found = match events {
                Some(events) => {
                    let events = Endpoint::Connect(events.clone());
                    let known = Published::at_ports(&events, replay.as_deref(), count)?;
                    known.ranks.into_iter().map(FoundRank::from).collect()
                }
                None => (0..count).map(FoundRank::unknown).collect(),
            };
            let overrides = Overrides {
                events: events.clone(),
                replay: replay.clone(),
                topic: wanted.topic.clone(),
                ranks: *ranks,
            };
            let usual = Usual { events: usual_events.clone(), replay: usual_replay.clone() };
            let spec = DiscoverySpec { http: wanted.http.clone(), grpc: None, overrides, usual: Some(usual) };
            Source::Discovered(Discovered { spec, ranks: found })
        }
    };
    let provenance = Provenance::default();
    provenance.set(finding(source, wanted));
    Ok(EngineSpec {
        topic: wanted.topic.clone().unwrap_or_default(),
        http: wanted.http.clone(),
        provenance: Some(Arc::new(provenance)),
        ..EngineSpec::new(EngineId::new(&wanted.id), wanted.kind, &wanted.model, ranks)
    })
}

fn finding(source: &str, wanted: &Wanted) -> Finding {
    let decided = wanted.decided.iter().map(|one| (one.key, one.value.clone(), one.rule.clone()));
    Finding {
        source: source.to_owned(),
        places: wanted.pods.iter().map(|pod| pod.pod.clone()).collect(),
        decided: decided.collect(),
        remarks: wanted.remarks.iter().map(|remark| remark.text.clone()).collect(),
        started_ms: wanted.started_ms,
    }
}
