//! The task that asks one engine, as long as the engine is there.
//!
//! It asks at once, then again whenever something is missing, and after every reconnect and restart: an engine may come
//! back with other ranks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_core::{Continuity, EngineId, Epoch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::place::place;
use super::{Asker, Refusal};
use crate::plane::{Engine, Plane};

/// A question that nobody answers is asked again after this, then after twice as long and so on …
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// … up to this: an engine takes minutes to start, and should be heard soon after.
const RETRY_LAST: Duration = Duration::from_secs(5);
/// How often the streams are looked at for reconnects and restarts.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Asks the engine until it is told to stop (by whoever drops this).
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
                    warn!(%engine, trouble = refusal.trouble(), "not known where the engine publishes: {refusal}");
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
    let description = match answer {
        Ok(description) => description,
        Err(refusal) => {
            name(&plane, engine, refusal.trouble());
            return Err(refusal);
        }
    };
    let placed = place(&asker.spec().told, &asker.host(), &description);
    let (id, spec) = (engine.clone(), asker.spec().clone());
    let complaints = placed.complaints.clone();
    // Sockets are opened and closed, and states freed: not a task's business.
    let given = tokio::task::spawn_blocking(move || plane.give_ranks(&id, &spec, placed)).await;
    match given {
        Ok(Ok(changed)) => {
            if changed {
                info!(%engine, "the engine was asked where it publishes");
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
fn name(plane: &Arc<Plane>, engine: &EngineId, trouble: &'static str) {
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

/// What changes when a rank's publisher goes away, comes back, or is another one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lives(Vec<(u64, Epoch)>);

impl Lives {
    fn of(engine: &Engine) -> Self {
        let streams = engine.streams.iter().map(|stream| stream.glance());
        Self(streams.map(|status| (status.counters.disconnects, status.epoch)).collect())
    }
}
