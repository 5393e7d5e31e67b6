//! Which engines there are, while the plane runs: added and removed whole, with their front and what is
//! republished.
//!
//! ```text
//!  file, flags ── start, reload ──┐
//!  POST /v1/engines, DELETE ──────┼──> Fleet ──> Plane (streams), Fronts, Republisher
//!  POST /register, /unregister ───┘
//! ```
//!
//! One change at a time. What is wrong is found before anything is touched: first the description, then
//! ports, and only then is an engine contacted. Nobody else notices a change.

mod config;
mod error;
mod found;
mod fronts;
mod register;
mod reload;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kvplane_ingest::{Engine, Origin, Plane};
use parking_lot::Mutex;
use tracing::info;

pub use config::{AnnounceConfig, DuplicatesName, EngineConfig, EnginePlan, RepublishConfig, WorkerId};
pub use error::{EngineConfigError, FleetError};
pub use register::Registration;
pub use reload::Reloaded;

use config::ReadOnce;
use fronts::Fronts;

use crate::smg::SmgService;
use kvplane_access::{Access, Bounds, Exposed, Listener, Port};
use kvplane_front::{Front, FrontCounters};
use kvplane_republish::Republisher;

/// What fronts are guarded and bounded by.
#[derive(Debug)]
pub(crate) struct FrontLimits {
    pub(crate) access: Arc<Access>,
    pub(crate) bounds: Bounds,
    pub(crate) drain_timeout: Duration,
}

#[derive(Debug)]
struct Inner {
    plane: Arc<Plane>,
    /// What fronts answer themselves.
    events: SmgService,
    limits: FrontLimits,
    fronts: Fronts,
    republisher: Republisher,
    /// How engines were described; not those that registered themselves.
    configs: Mutex<HashMap<String, Described>>,
    /// Engines that were found, as they were wanted last.
    found: Mutex<HashMap<String, found::Found>>,
    changing: tokio::sync::Mutex<()>,
}

/// An engine's description, and the files that it named when it was added.
#[derive(Debug)]
struct Described {
    config: EngineConfig,
    files: ReadOnce,
}

/// The engines of a plane, to be changed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<Inner>);

impl Fleet {
    pub(crate) fn new(plane: Arc<Plane>, events: SmgService, limits: FrontLimits) -> Self {
        Self(Arc::new(Inner {
            plane,
            events,
            limits,
            fronts: Fronts::default(),
            republisher: Republisher::default(),
            configs: Mutex::default(),
            found: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }

    /// What listens for engines, in a plane with or without keys.
    pub(crate) fn listeners(&self, has_keys: bool) -> Vec<Listener> {
        let configs = self.0.configs.lock();
        let mut all: Vec<Listener> =
            configs.values().flat_map(|engine| engine.config.listeners(has_keys)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// What each front counts, by engine.
    pub(crate) fn front_counters(&self) -> Vec<(String, Arc<FrontCounters>)> {
        self.0.fronts.counters()
    }

    /// Listeners of republished events whose connections were refused, or closed for a fault of theirs.
    pub(crate) fn refused_listeners(&self) -> BTreeMap<&'static str, u64> {
        self.0.republisher.refused_listeners()
    }

    /// Waits until every front has ended. They end when the plane stops.
    pub(crate) async fn fronts_ended(&self) {
        self.0.fronts.ended().await;
    }

    /// Adds engines, all or none.
    pub async fn add(&self, plans: Vec<EnginePlan>, origin: Origin) -> Result<(), FleetError> {
        let ids: Vec<_> = plans.iter().map(|plan| plan.id().clone()).collect();
        self.change(|fleet| async move { fleet.add_locked(plans, origin).await }).await?;
        // What is configured at the start is in the configuration.
        if origin != Origin::Config {
            for engine in ids {
                info!(%engine, added_by = origin.as_str(), "engine added");
            }
        }
        Ok(())
    }

    /// Checks a description, away from the runtime's workers: it reads the files that the description names.
    pub async fn plan(config: EngineConfig) -> Result<EnginePlan, FleetError> {
        let plan = tokio::task::spawn_blocking(move || config.plan());
        Ok(plan.await.map_err(|_| FleetError::BrokeOff)??)
    }

    /// Removes an engine: its subscriptions end, its sockets close, what it held is freed.
    pub async fn remove(&self, id: &str) -> Result<(), FleetError> {
        let id = id.to_owned();
        self.change(|fleet| async move { fleet.remove_locked(&id).await }).await
    }

    /// Makes one change, alone, and to its end: also when its caller goes away.
    async fn change<T, C>(&self, change: impl FnOnce(Fleet) -> C) -> Result<T, FleetError>
    where
        T: Send + 'static,
        C: Future<Output = Result<T, FleetError>> + Send + 'static,
    {
        let (fleet, change) = (self.clone(), change(self.clone()));
        let task = kvplane_runtime::spawn("change the fleet", async move {
            let _changing = fleet.0.changing.lock().await;
            change.await
        });
        task.await.map_err(|_| FleetError::BrokeOff)?
    }

    /// The engine of that name.
    pub fn engine(&self, id: &str) -> Option<Arc<Engine>> {
        self.0.plane.engine(id)
    }

    /// Ends what this adds to the plane: blocks until the republisher has ended. Fronts end with the servers.
    pub fn shutdown(&self) {
        self.0.republisher.stop();
    }

    async fn add_locked(&self, plans: Vec<EnginePlan>, origin: Origin) -> Result<(), FleetError> {
        let parts = &*self.0;
        self.check_exposure(&plans)?;
        if plans.iter().any(|plan| plan.republish.is_some()) && !parts.plane.keeps_tokens() {
            let message = "needs tokens, and journal.tokens is \"drop\"".to_owned();
            return Err(EngineConfigError::Value { key: "republish", message }.into());
        }
        let specs: Vec<_> = plans.iter().map(|plan| plan.spec.clone()).collect();
        self.0.plane.check(|_| false, &specs)?;
        let (mut configs, mut fronts, mut republished) = (Vec::new(), Vec::new(), Vec::new());
        for EnginePlan { config, files, front, republish, .. } in plans {
            if let Some((address, front)) = front {
                let listener = parts.fronts.bind(address).await;
                let listener = listener.map_err(|error| FleetError::Front { address, error })?;
                fronts.push((config.id.clone(), self.set_up(front, &config), listener));
            }
            republished.extend(republish);
            configs.push((config.id.clone(), Described { config, files }));
        }
        self.off_the_runtime(move |fleet| {
            let republisher = &fleet.republisher;
            let bound = republished.iter().map(|spec| republisher.bind(spec));
            let bound = bound.collect::<Result<Vec<_>, _>>()?;
            fleet.plane.add(specs, origin)?;
            for (spec, outlets) in republished.iter().zip(bound) {
                if let Some(engine) = fleet.plane.engine(&spec.engine) {
                    republisher.publish(outlets, &engine);
                }
            }
            Ok(())
        })
        .await?;
        for (engine, front, listener) in fronts {
            parts.fronts.start(&parts.events, &engine, front, listener);
        }
        parts.configs.lock().extend(configs);
        Ok(())
    }

    /// A front as this plane runs it.
    fn set_up(&self, front: Front, config: &EngineConfig) -> Front {
        let FrontLimits { access, bounds, drain_timeout } = &self.0.limits;
        let front = front.guarded(access.gate(Port::Front)).draining(*drain_timeout);
        let front = front.bounded(bounds.clone());
        if config.front_open { front.opened() } else { front }
    }

    /// Whether nothing of these engines is open to everybody unless somebody said so.
    fn check_exposure(&self, plans: &[EnginePlan]) -> Result<(), Exposed> {
        let access = &self.0.limits.access;
        for EnginePlan { config, front, .. } in plans {
            let id = &config.id;
            if let Some((address, _)) = front.as_ref().filter(|_| !config.front_open) {
                access.check_listener(&format!("front of {id:?}"), Port::Front, *address)?;
            }
            if let Some(address) = config.bound_events() {
                access.check_writable_socket(&format!("events of {id:?}"), address, config.events_open)?;
            }
            if let Some(republish) = &config.republish {
                for address in [Some(&republish.events), republish.replay.as_ref()].into_iter().flatten() {
                    access.check_open_socket(&format!("republish of {id:?}"), address, republish.open)?;
                }
            }
        }
        Ok(())
    }

    async fn remove_locked(&self, id: &str) -> Result<(), FleetError> {
        let engine = self.engine(id);
        if let Some(spec) = engine.as_ref().and_then(|engine| engine.spec.source.mirrored()) {
            return Err(FleetError::Conflict(format!("engine {id} comes over {}: remove that", spec.link)));
        }
        let name = id.to_owned();
        self.off_the_runtime(move |fleet| Ok(fleet.plane.remove(&name).map(drop)?)).await?;
        self.forget(id);
        info!(engine = %id, "engine removed");
        Ok(())
    }

    /// Lets go of what an engine had besides its streams.
    fn forget(&self, id: &str) {
        let parts = &*self.0;
        parts.fronts.stop(id);
        parts.republisher.close(id);
        parts.configs.lock().remove(id);
    }

    /// Does what may wait for a socket, or free a lot of memory.
    async fn off_the_runtime<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, FleetError> + Send + 'static,
    ) -> Result<T, FleetError> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(|_| FleetError::BrokeOff)?
    }
}

#[cfg(test)]
mod tests;
