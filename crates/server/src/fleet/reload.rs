//! The configured engines, read again: what differs is applied.

use std::collections::HashSet;

use kvplane_ingest::{Mood, Origin, Said};
use tracing::{error, info, warn};

use super::{EnginePlan, Fleet, FleetError};

/// What a reload did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Engines that are new.
    pub added: usize,
    /// Engines that are not configured any more.
    pub removed: usize,
    /// Engines that are configured otherwise: removed, and added again.
    pub changed: usize,
    /// Engines as before.
    pub unchanged: usize,
    /// Engines that could not be added, because a port was taken, or could not be removed. The log names
    /// them.
    pub failed: usize,
}

impl Fleet {
    /// Makes the configured engines those that `plans` say. Engines that were added by calls stay, also
    /// against a configured one of the same name. An engine that cannot be added or removed is counted in
    /// `failed`, and the others are applied. Returns an error if the plans cannot be applied as a whole;
    /// nothing has changed then, unless the error is [`FleetError::BrokeOff`].
    pub async fn reload(&self, plans: Vec<EnginePlan>) -> Result<Reloaded, FleetError> {
        self.change(|fleet| async move { fleet.reload_locked(plans).await }).await
    }

    async fn reload_locked(&self, plans: Vec<EnginePlan>) -> Result<Reloaded, FleetError> {
        let mut reloaded = Reloaded::default();
        let engines = self.0.plane.engines();
        let mut going: HashSet<String> = engines
            .iter()
            .filter(|engine| engine.origin == Origin::Config)
            .map(|engine| engine.spec.id.to_string())
            .collect();
        let mut coming = Vec::new();
        for plan in plans {
            let id = plan.id().to_string();
            let same =
                self.0.configs.lock().get(&id).is_some_and(|described| {
                    (&described.config, described.files) == (&plan.config, plan.files)
                });
            if !going.contains(&id) && self.engine(&id).is_some() {
                warn!(engine = %id, "engine was already added through the API; config entry ignored");
                reloaded.unchanged += 1;
            } else if same && going.remove(&id) {
                reloaded.unchanged += 1;
            } else {
                coming.push(plan);
            }
        }
        self.check_exposure(&coming)?;
        let specs: Vec<_> = coming.iter().map(|plan| plan.spec.clone()).collect();
        self.0.plane.check(|engine| going.contains(engine.spec.id.as_str()), &specs)?;
        let mut kept = HashSet::new();
        for id in &going {
            if let Err(error) = self.remove_locked(id).await {
                error!(engine = %id, %error, "engine cannot be removed");
                reloaded.failed += 1;
                kept.insert(id.clone());
            }
        }
        going.retain(|id| !kept.contains(id));
        coming.retain(|plan| !kept.contains(plan.id().as_str()));
        for plan in coming {
            let id = plan.id().to_string();
            let changed = going.remove(&id);
            match self.add_locked(vec![plan], Origin::Config).await {
                Ok(()) => {
                    info!(engine = %id, added_by = Origin::Config.as_str(), "engine added");
                    if changed { reloaded.changed += 1 } else { reloaded.added += 1 }
                }
                Err(error) => {
                    error!(engine = %id, %error, "engine cannot be added");
                    reloaded.failed += 1;
                }
            }
        }
        reloaded.removed = going.len();
        self.0.plane.remark(reloaded.said());
        Ok(reloaded)
    }
}

impl Reloaded {
    fn said(self) -> Said {
        let Self { added, removed, changed, unchanged, failed } = self;
        let mut words = format!(
            "configuration reloaded: {added} added, {removed} removed, {changed} changed, {unchanged} as before"
        );
        if failed > 0 {
            words += &format!(", {failed} failed, see the log");
        }
        Said::new("reload", if failed > 0 { Mood::Bad } else { Mood::Plain }, words)
    }
}
