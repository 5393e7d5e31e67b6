//! The router, and which streams its endpoints are.

use std::collections::HashMap;

use kvplane_catalog::Match;
use kvplane_core::{Continuity, Epoch, StreamId, Tier};
use kvplane_ingest::Plane;
use kvplane_route::{Candidate, Options, Role, Router, Slot, Standing};

/// Endpoints that are gone are looked for after this many decisions.
const TIDY_EVERY: u64 = 1_024;

#[derive(Debug)]
pub(super) struct Books {
    pub(super) router: Router,
    known: HashMap<StreamId, (Slot, Epoch)>,
    decisions: u64,
}

impl Books {
    pub(super) fn new(options: Options) -> Self {
        Self { router: Router::new(options), known: HashMap::new(), decisions: 0 }
    }

    /// The endpoint of a stream. One in a new life holds nothing of what was sent to the one before.
    pub(super) fn slot(&mut self, id: &StreamId, epoch: Epoch) -> Option<Slot> {
        if let Some((slot, last)) = self.known.get_mut(id) {
            if *last != epoch {
                *last = epoch;
                let slot = *slot;
                self.router.restart(slot);
                return Some(slot);
            }
            return Some(*slot);
        }
        let slot = self.router.worker(&id.to_string())?;
        self.known.insert(id.clone(), (slot, epoch));
        Some(slot)
    }

    /// The endpoint of a stream that was a candidate before.
    pub(super) fn find(&self, id: &StreamId) -> Option<Slot> {
        self.known.get(id).map(|(slot, _)| *slot)
    }

    /// Forgets engines that were removed, now and then.
    pub(super) fn tidy(&mut self, plane: &Plane) {
        self.decisions += 1;
        if !self.decisions.is_multiple_of(TIDY_EVERY) {
            return;
        }
        let router = &mut self.router;
        self.known.retain(|id, _| {
            let there =
                plane.engine(id.engine.as_str()).is_some_and(|engine| engine.stream(id.rank).is_some());
            if !there {
                router.remove_worker(&id.to_string());
            }
            there
        });
    }
}

/// A stream of an answer as a candidate.
pub(super) fn candidate(slot: Slot, found: &Match<'_>, credited: bool) -> Candidate {
    let cached = found.cached_tokens.unwrap_or_else(|| found.tokens());
    let standing = match (credited, found.view.continuity) {
        (true, _) => Standing::Credited,
        (false, Continuity::Down) => Standing::Down,
        (false, _) => Standing::Unknown,
    };
    Candidate {
        worker: slot,
        cached,
        tiers: [Tier::Device, Tier::Host, Tier::Disk].map(|tier| found.tokens_in(tier)),
        main: found.with_depths(found.main).tokens(),
        trust: found.view.trust,
        standing,
        age: found.age.map(|age| age.as_secs_f64()),
        ready: true,
        role: Role::Both,
    }
}
