//! The configured engines, told again: what differs is applied.

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
    /// Engines that could not be added, because a port was taken; they are not there.
    pub failed: usize,
}

impl Fleet {
    /// Makes the configured engines those that `plans` say. Engines that were added by calls stay, also against a
    /// configured one of the same name. Returns an error, and changes nothing, if the plans cannot be.
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
            let same = self.0.fleet.configs.lock().get(&id) == Some(&plan.config);
            if !going.contains(&id) && self.engine(&id).is_some() {
                warn!(engine = %id, "configured, but added by a call before: kept as it is");
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
        for id in &going {
            self.remove_locked(id).await?;
        }
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
            words += &format!(", {failed} could not be added, because a port was taken");
        }
        Said::new("reload", if failed > 0 { Mood::Bad } else { Mood::Plain }, words)
    }
}
