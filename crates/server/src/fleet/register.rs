//! Instances that are registered rank by rank, as indexers of Dynamo's kind have it.
//!
//! An instance is an engine; each of its ranks has an address of its own, and comes and goes by itself.

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{Endpoint, Engine, EngineSpec, Origin, Published, PublishedRank, Source, UnknownMember};
use tracing::info;

use super::{Fleet, FleetError};

/// One rank of an instance.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Names the instance, in answers too.
    pub instance_id: u64,
    /// The rank.
    pub rank: u32,
    /// Its software.
    pub kind: EngineKind,
    /// The model that the instance serves.
    pub model: String,
    /// Among which instances prompts are routed.
    pub routing_group: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Where the rank publishes.
    pub events: String,
    /// Where it can be asked.
    pub replay: Option<String>,
}

impl Fleet {
    /// Adds a rank, and its instance if it is the first.
    pub async fn register(&self, registration: Registration) -> Result<(), FleetError> {
        self.change(|fleet| async move { fleet.register_locked(registration).await }).await
    }

    /// Removes an instance, or one rank of it.
    pub async fn unregister(
        &self,
        instance_id: u64,
        model: String,
        routing_group: Option<String>,
        rank: Option<u32>,
    ) -> Result<(), FleetError> {
        self.change(|fleet| async move {
            let id = engine_id(instance_id);
            let engine = fleet.engine(&id).filter(|engine| {
                engine.origin == Origin::Register
                    && engine.spec.model == model
                    && routing_group.as_ref().is_none_or(|group| *group == engine.spec.routing_group)
            });
            if engine.is_none() {
                return Err(UnknownMember::Engine(id).into());
            }
            let Some(rank) = rank else { return fleet.remove_locked(&id).await };
            let name = id.clone();
            fleet.off_the_runtime(move |inner| Ok(inner.plane.remove_rank(&name, rank)?)).await?;
            info!(engine = %id, rank, "rank removed");
            Ok(())
        })
        .await
    }

    async fn register_locked(&self, registration: Registration) -> Result<(), FleetError> {
        let Registration { instance_id, rank, kind, model, routing_group, block_size, events, replay } =
            registration;
        if block_size == 0 {
            return Err(FleetError::Invalid("block_size must not be 0"));
        }
        let at = PublishedRank::at(rank, &Endpoint::Connect(events), replay.as_deref())?;
        let id = engine_id(instance_id);
        let source = Source::Published(Published { ranks: vec![at.clone()] });
        let spec = EngineSpec {
            routing_group,
            block_size: Some(block_size),
            worker_id: instance_id,
            ..EngineSpec::new(EngineId::new(&id), kind, &model, source)
        };
        for engine in self.0.plane.engines().iter() {
            contradiction(engine, &spec).map_or(Ok(()), |message| Err(FleetError::Conflict(message)))?;
        }
        let known = self.engine(&id).is_some();
        let name = id.clone();
        self.off_the_runtime(move |inner| {
            let plane = &inner.plane;
            if known { plane.add_rank(&name, at) } else { plane.add(vec![spec], Origin::Register) }?;
            Ok(())
        })
        .await?;
        info!(engine = %id, rank, added_by = Origin::Register.as_str(), "rank added");
        Ok(())
    }
}

fn engine_id(instance_id: u64) -> String {
    format!("instance-{instance_id}")
}

/// What an instance cannot be beside an engine that is there.
fn contradiction(engine: &Engine, new: &EngineSpec) -> Option<String> {
    let there = &engine.spec;
    if there.id == new.id {
        if engine.origin != Origin::Register {
            return Some(format!(
                "engine {} is there already, added by {}",
                there.id,
                engine.origin.as_str()
            ));
        }
        if (&there.model, &there.routing_group) != (&new.model, &new.routing_group) {
            let (model, group) = (&there.model, &there.routing_group);
            return Some(format!("instance {} serves model {model:?} in group {group:?}", new.worker_id));
        }
    } else if there.worker_id == new.worker_id {
        return Some(format!("engine {} has worker id {} already", there.id, new.worker_id));
    }
    // One table of prefixes has one block size: answers by model and group could not say which.
    let same_table = there.model == new.model && there.routing_group == new.routing_group;
    if same_table && there.block_size.is_some() && there.block_size != new.block_size {
        let (known, size) = (there.block_size.unwrap_or_default(), new.block_size.unwrap_or_default());
        return Some(format!("block_size {size} contradicts {known} of engine {}", there.id));
    }
    None
}
