//! The router, and which streams its endpoints are.

use std::collections::HashMap;

use kvplane_catalog::{Match, Member};
use kvplane_core::{Continuity, Epoch, StreamId, Tier};
use kvplane_ingest::Plane;
use kvplane_route::{Candidate, Options, Role, Router, Slot, Standing};
use rustc_hash::FxHashMap;

use super::peers::Peers;

/// Endpoints that are gone are looked for after this many decisions.
const TIDY_EVERY: u64 = 1_024;

#[derive(Debug)]
pub(super) struct Books {
    pub(super) router: Router,
    /// Every endpoint, and the life that its bookings are of.
    known: HashMap<StreamId, (Slot, Epoch)>,
    /// The same by the stream's number in the catalog: what most decisions need.
    seen: FxHashMap<u64, Seen>,
    /// The streams of the endpoints.
    names: FxHashMap<Slot, StreamId>,
    decisions: u64,
    pub(super) peers: Peers,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    slot: Slot,
    epoch: Epoch,
    /// Part of a decision since they were last tidied.
    used: bool,
}

impl Books {
    pub(super) fn new(options: Options) -> Self {
        Self {
            router: Router::new(options),
            known: HashMap::new(),
            seen: FxHashMap::default(),
            names: FxHashMap::default(),
            decisions: 0,
            peers: Peers::default(),
        }
    }

    /// Requests at each endpoint, and their tokens that are still to be computed.
    pub(super) fn live(&self) -> Vec<(StreamId, u32, u64)> {
        let booked = |(slot, id): (&Slot, &StreamId)| {
            let (requests, tokens) = self.router.booked(*slot)?;
            Some((id.clone(), requests, tokens))
        };
        let mut live: Vec<_> = self.names.iter().filter_map(booked).collect();
        live.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        live
    }

    /// The endpoint of a stream. One in a new life holds nothing of what was sent to the one before.
    pub(super) fn slot(&mut self, member: &Member, epoch: Epoch) -> Option<Slot> {
        if let Some(seen) = self.seen.get_mut(&member.serial)
            && seen.epoch == epoch
        {
            seen.used = true;
            return Some(seen.slot);
        }
        let slot = self.meet(&member.id, epoch)?;
        self.seen.insert(member.serial, Seen { slot, epoch, used: true });
        Some(slot)
    }

    /// The endpoint of a stream that is new, or in a new life.
    pub(super) fn meet(&mut self, id: &StreamId, epoch: Epoch) -> Option<Slot> {
        if let Some((slot, last)) = self.known.get_mut(id) {
            let slot = *slot;
            // A question from before the new epoch may come later.
            if *last < epoch {
                *last = epoch;
                self.router.restart(slot);
            }
            return Some(slot);
        }
        let slot = self.router.worker(&id.to_string())?;
        self.known.insert(id.clone(), (slot, epoch));
        self.names.insert(slot, id.clone());
        Some(slot)
    }

    /// The endpoint of a stream that was a candidate before.
    pub(super) fn find(&self, id: &StreamId) -> Option<Slot> {
        self.known.get(id).map(|(slot, _)| *slot)
    }

    /// The stream of an endpoint.
    pub(super) fn name(&self, slot: Slot) -> Option<&StreamId> {
        self.names.get(&slot)
    }

    /// Forgets engines that were removed, now and then.
    pub(super) fn tidy(&mut self, plane: &Plane) {
        self.decisions += 1;
        if !self.decisions.is_multiple_of(TIDY_EVERY) {
            return;
        }
        let (router, seen, names) = (&mut self.router, &mut self.seen, &mut self.names);
        self.known.retain(|id, (slot, _)| {
            let there =
                plane.engine(id.engine.as_str()).is_some_and(|engine| engine.stream(id.rank).is_some());
            if !there {
                router.remove_worker(&id.to_string());
                seen.retain(|_, seen| seen.slot != *slot);
                names.remove(slot);
            }
            there
        });
        seen.retain(|_, seen| std::mem::take(&mut seen.used));
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
