//! What one decision goes by, and what it comes to in names.
//!
//! The answer lists every stream of the model, for each may be chosen. What that takes per stream is a number
//! and a few reads: names are put in for those that the answer tells of.

use std::time::Duration;

use kvplane_catalog::{Answer, Match, Member, age_ms};
use kvplane_core::Trust;
use kvplane_receipts::{CandidateNote, Decided};
use kvplane_route::{Candidate, Choice, Decision, Standing};

use super::books::{Books, candidate};
use super::pick::{Among, Endpoint, MAX_ENDPOINTS, Passed, Picked};

/// Endpoints in a receipt.
const NOTED: usize = 4;

/// Every candidate of a decision, while the answer is there.
pub(super) struct Scene<'a> {
    pub(super) candidates: Vec<Candidate>,
    /// Who each candidate is.
    who: Vec<Who<'a>>,
    trust: Trust,
}

struct Who<'a> {
    member: &'a Member,
    age: Option<Duration>,
    block_size: Option<u32>,
}

/// A decision in names, and the receipt that it may open.
pub(super) struct Outcome {
    pub(super) picked: Picked,
    pub(super) decided: Decided,
}

impl<'a> Scene<'a> {
    pub(super) fn of(books: &mut Books, answer: &'a Answer<'_>, among: Among<'_>) -> Self {
        let count = answer.matches().len() + answer.not_credited().len();
        let (candidates, who) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut scene = Self { candidates, who, trust: answer.trust };
        for found in answer.matches() {
            scene.add(books, &found, true, among);
        }
        for found in answer.not_credited() {
            scene.add(books, &found, false, among);
        }
        scene
    }

    fn add(&mut self, books: &mut Books, found: &Match<'a>, credited: bool, among: Among<'_>) {
        let Some(slot) = books.slot(found.member, found.view.epoch) else { return };
        self.candidates
            .push(Candidate { ready: among(&found.member.id), ..candidate(slot, found, credited) });
        self.who.push(Who { member: found.member, age: found.age, block_size: found.block_size });
    }

    pub(super) fn outcome(&self, decision: &Decision, prompt: u64) -> Outcome {
        let picked = self.picked(decision, prompt);
        let decided = self.decided(decision, &picked);
        Outcome { picked, decided }
    }

    fn picked(&self, decision: &Decision, prompt: u64) -> Picked {
        let endpoint = |choice: &Choice| {
            let who = &self.who[choice.at];
            let &Choice { cached, in_flight, trust, load, terms, cost, .. } = choice;
            let (id, age_ms) = (who.member.id.clone(), who.age.map(age_ms));
            Endpoint { id, cached, in_flight, trust, age_ms, load, cost, terms }
        };
        let passed = |skipped: &kvplane_route::Skipped| Passed {
            id: self.who[skipped.at].member.id.clone(),
            why: skipped.why,
        };
        Picked {
            id: None,
            endpoints: decision.order.iter().map(endpoint).collect(),
            skipped: decision.skipped.iter().take(MAX_ENDPOINTS).map(passed).collect(),
            skipped_count: decision.skipped.len() as u64,
            why: decision.why,
            policy: decision.policy,
            prompt,
            fleet: decision.best_fleet,
            eligible: decision.best_eligible,
            booked: decision.booking.is_some(),
            trust: self.trust,
            tokenized: None,
            without_tokens: None,
        }
    }

    fn decided(&self, decision: &Decision, picked: &Picked) -> Decided {
        let note = |endpoint: &Endpoint| CandidateNote {
            engine: endpoint.id.engine.as_str().into(),
            rank: endpoint.id.rank,
            cached: endpoint.cached,
            in_flight: endpoint.in_flight,
            trust: endpoint.trust,
            cost: endpoint.cost,
        };
        let first = decision.order.first();
        // What is not credited is no prediction, whatever its stream is worth otherwise.
        let credited = first.is_some_and(|first| self.candidates[first.at].standing == Standing::Credited);
        Decided {
            at_ms: kvplane_runtime::unix_ms(),
            model: Box::default(),
            prompt: picked.prompt,
            ceiling: 0,
            fleet_main: decision.best_main,
            fleet: decision.best_fleet,
            eligible: decision.best_eligible,
            random: decision.eligible_sum / u64::from(decision.eligible.max(1)),
            predicted: first.map_or(0, |first| first.cached),
            in_flight: first.map_or(0, |first| first.in_flight),
            trust: first.filter(|_| credited).map_or(Trust::Unsound, |first| first.trust),
            candidates: picked.endpoints.iter().take(NOTED).map(note).collect(),
            why: decision.why.as_str(),
            policy: decision.policy.as_str(),
            without_tokens: None,
            text: None,
            decide_us: 0,
            epoch: 0,
            sequence: 0,
            block_size: first.and_then(|first| self.who[first.at].block_size).unwrap_or(0),
            contents: Box::default(),
            booking: decision.booking.map(|booking| booking.0),
        }
    }
}
