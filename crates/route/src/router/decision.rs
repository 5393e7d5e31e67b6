//! One decision: guards, costs, order, and why.

use kvplane_core::Trust;

use super::Router;
use super::account::Sent;
use crate::booking::BookingId;
use crate::candidate::{Candidate, Role, Skip, Standing};
use crate::load::LoadSource;
use crate::outline::Outline;
use crate::policy::{Context, Policy, Terms, View, terms};
use crate::worker::{Slot, Worker};

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Tokens of the prompt; 0 where they are not known.
    pub prompt: u64,
    /// About how many it has, where they are not known: what is booked of it.
    pub about: u64,
    /// Its prefixes; empty where they are not known.
    pub outline: &'a Outline,
    /// Whose conversation it is.
    pub session: Option<u64>,
    /// What the endpoint is to do.
    pub role: Role,
    /// Tokens that are expected to be generated.
    pub output: u64,
    /// Endpoints in the answer, the best first.
    pub limit: usize,
    /// Book the best.
    pub book: bool,
    /// Another policy than the router's.
    pub policy: Option<Policy>,
    /// Endpoints that are not wanted: those that were tried already.
    pub exclude: &'a [Slot],
}

/// Why the first endpoint is the first, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// It holds the most.
    Cached,
    /// It will hold the most: a prompt with the same prefix is on its way there.
    InFlight,
    /// Another holds more, and costs more.
    Load,
    /// Nobody holds anything.
    NotHeld,
    /// The prompt's tokens are not known.
    NoTokens,
    /// There is nobody to pick.
    Nobody,
}

impl Why {
    /// Every word.
    pub const ALL: [Self; 6] =
        [Self::Cached, Self::InFlight, Self::Load, Self::NotHeld, Self::NoTokens, Self::Nobody];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::InFlight => "in_flight",
            Self::Load => "load",
            Self::NotHeld => "not_held",
            Self::NoTokens => "no_tokens",
            Self::Nobody => "nobody",
        }
    }
}

/// An endpoint in the answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Who.
    pub worker: Slot,
    /// Where it is among the candidates.
    pub at: usize,
    /// What it is expected to report as cached, by its exact state.
    pub cached: u64,
    /// Tokens of a prefix that is on its way there: a prediction.
    pub in_flight: u64,
    /// What `cached` is worth.
    pub trust: Trust,
    /// What its load is known from.
    pub load: LoadSource,
    /// What `work` makes of it, in seconds.
    pub terms: Terms,
    /// By what the policy ordered: lower is better. Of `work`, the sum of the terms.
    pub cost: f64,
}

/// An endpoint that may not be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Who.
    pub worker: Slot,
    /// Where it is among the candidates.
    pub at: usize,
    /// Why not.
    pub why: Skip,
}

/// Where to go.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The best first.
    pub order: Vec<Choice>,
    /// Who may not be picked.
    pub skipped: Vec<Skipped>,
    /// Why the first is the first.
    pub why: Why,
    /// The policy that decided.
    pub policy: Policy,
    /// Tokens that the main group of anybody holds.
    pub best_main: u64,
    /// The most that anybody is expected to report as cached.
    pub best_fleet: u64,
    /// The most among those who may be picked.
    pub best_eligible: u64,
    /// The sum over those who may be picked: divided by their number, what a random pick delivers.
    pub eligible_sum: u64,
    /// Those who may be picked.
    pub eligible: u32,
    /// What was booked.
    pub booking: Option<BookingId>,
}

impl Decision {
    fn nobody(policy: Policy) -> Self {
        Self {
            order: Vec::new(),
            skipped: Vec::new(),
            why: Why::Nobody,
            policy,
            best_main: 0,
            best_fleet: 0,
            best_eligible: 0,
            eligible_sum: 0,
            eligible: 0,
            booking: None,
        }
    }
}

impl Router {
    /// Decides. Candidates without a known worker are passed over.
    pub fn pick(&mut self, ask: &Ask<'_>, candidates: &[Candidate], now: f64) -> Decision {
        self.expire(now);
        self.depths.clear();
        self.depths.resize(self.workers.len(), 0);
        self.flights.depths(ask.outline, &mut self.depths);
        let policy = ask.policy.unwrap_or(self.options.policy);
        let deserved = self.demand.arrive(ask.outline, candidates.len(), now);
        let length = if ask.prompt == 0 { ask.about } else { ask.prompt };
        let mut context = Context {
            weights: self.options.weights,
            prompt: length,
            session: ask.session,
            lead: ask.outline.lead(),
            turn: self.turn,
            fresh: None,
            together: 0.0,
        };
        self.turn = self.turn.wrapping_add(1);
        let mut decision = Decision::nobody(policy);
        self.look(ask, candidates, now, &mut decision);
        context.weights.alpha *= self.price_of_a_copy(deserved);
        self.look_at_what_nobody_holds(ask.outline, &mut context);
        for view in &mut self.views {
            view.terms = terms(&context, view);
        }
        let (views, mut costs) = (std::mem::take(&mut self.views), std::mem::take(&mut self.costs));
        policy.costs(&context, &views, &mut costs);
        self.sort(&costs, ask.limit);
        let choice = |&(cost, _, at): &(f64, u64, u32)| {
            let view = &views[at as usize];
            let candidate = &candidates[view.at];
            let &Candidate { worker, cached, trust, standing, .. } = candidate;
            let cached = if standing == Standing::Credited { cached } else { 0 };
            Choice {
                worker,
                at: view.at,
                cached,
                in_flight: view.flight,
                trust,
                load: view.load,
                terms: view.terms,
                cost,
            }
        };
        decision.order.extend(self.order.iter().map(choice));
        if let Some(&(_, _, first)) = self.order.first() {
            let view = views[first as usize];
            let most = views.iter().map(|view| view.held).fold(0.0, f64::max);
            decision.why = why(ask, &view, most);
            let candidate = &candidates[view.at];
            self.note_silence(candidate);
            if ask.book {
                let uncached = (length as f64 - view.held).max(0.0) as u64;
                let sure = ask.prompt > 0 && view.held <= view.credit;
                let sent = Sent { prompt: length, uncached, output: ask.output, sure };
                decision.booking = self.book(candidate.worker, sent, ask.outline, now);
            }
        }
        (self.views, self.costs) = (views, costs);
        decision
    }

    /// Looks at every candidate: who may be picked, and what each holds and has to do.
    fn look(&mut self, ask: &Ask<'_>, candidates: &[Candidate], now: f64, decision: &mut Decision) {
        self.views.clear();
        for (at, candidate) in candidates.iter().enumerate() {
            let Some(Some(worker)) = self.workers.get_mut(candidate.worker.index()) else { continue };
            let silent = candidate.age.is_some_and(|age| age > self.options.silence);
            if !silent {
                worker.silent_picks = 0;
            }
            let known = candidate.standing == Standing::Credited;
            if known {
                decision.best_main = decision.best_main.max(candidate.main);
                decision.best_fleet = decision.best_fleet.max(candidate.cached);
            }
            let caps = (self.options.max_waiting, self.options.max_in_flight);
            if let Some(why) = skip(ask, candidate, worker, (now, caps), silent) {
                decision.skipped.push(Skipped { worker: candidate.worker, at, why });
                continue;
            }
            if known {
                decision.best_eligible = decision.best_eligible.max(candidate.cached);
                decision.eligible_sum += candidate.cached;
            }
            decision.eligible += 1;
            let factor = worker.rate.factor();
            let credit = credit(candidate);
            let flight = self.depths[candidate.worker.index()].min(ask.prompt.saturating_sub(1));
            self.views.push(View {
                at,
                identity: worker.identity,
                credit,
                held: credit.max(flight as f64),
                flight,
                queue: worker.queue(now, self.options.weights.a, factor),
                pending: worker.pending_tokens as f64,
                waiting: f64::from(worker.pending),
                requests: f64::from(worker.in_flight(now)),
                foreign: f64::from(worker.foreign(now)),
                kv_tokens: worker.kv_tokens as f64,
                kv_usage: worker.kv_usage(now, self.options.kv_capacity),
                load: worker.load_source(now),
                factor,
                terms: Terms::default(),
            });
        }
    }

    /// What prefilling elsewhere is charged with: less while fewer hold the prompt's prefix than its share of
    /// the traffic deserves.
    fn price_of_a_copy(&self, deserved: f64) -> f64 {
        const INVESTMENT: f64 = 0.25;
        let most = self.views.iter().map(|view| view.held).fold(0.0, f64::max);
        let holders = self.views.iter().filter(|view| view.held > 0.0 && view.held >= most / 2.0).count();
        if deserved.ceil() > holders.max(1) as f64 { INVESTMENT } else { 1.0 }
    }

    /// Routers that do not know of each other's bookings should send what nobody holds to the same endpoint.
    fn look_at_what_nobody_holds(&self, outline: &Outline, context: &mut Context) {
        let most = self.views.iter().map(|view| view.held).fold(0.0, f64::max);
        let points = outline.points();
        let held = points.partition_point(|point| point.depth as f64 <= most);
        context.fresh = points.get(held).map(|point| point.hash);
        let part = 1.0 - (most / (context.prompt as f64).max(1.0)).min(1.0);
        // Before much is seen, it is not known whether others send: one request of each kind per endpoint is assumed.
        let count = self.views.len() as f64;
        let foreign: f64 = self.views.iter().map(|view| view.foreign).sum();
        let all: f64 = self.views.iter().map(|view| view.requests).sum();
        context.together = part * (foreign + count) / (all + 2.0 * count).max(1.0);
    }

    /// The cheapest first; equal ones by chance.
    fn sort(&mut self, costs: &[f64], limit: usize) {
        self.order.clear();
        let rng = &mut self.rng;
        self.order.extend(costs.iter().enumerate().map(|(at, cost)| (*cost, rng.next(), at as u32)));
        let by_cost = |one: &(f64, u64, u32), other: &(f64, u64, u32)| {
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        };
        let limit = limit.max(1);
        if self.order.len() > limit {
            self.order.select_nth_unstable_by(limit - 1, by_cost);
            self.order.truncate(limit);
        }
        self.order.sort_unstable_by(by_cost);
    }

    fn note_silence(&mut self, candidate: &Candidate) {
        if candidate.age.is_some_and(|age| age > self.options.silence)
            && let Some(Some(worker)) = self.workers.get_mut(candidate.worker.index())
        {
            worker.silent_picks += 1;
        }
    }
}

/// Why a candidate may not be picked. Caps are of requests that wait, and of all requests there.
fn skip(
    ask: &Ask<'_>,
    candidate: &Candidate,
    worker: &Worker,
    (now, caps): (f64, (Option<u32>, Option<u32>)),
    silent: bool,
) -> Option<Skip> {
    let over = |count: u32, cap: Option<u32>| cap.is_some_and(|cap| count >= cap);
    let waiting = worker.fresh(now).map_or(0, |reported| reported.load.waiting);
    let reasons = [
        (candidate.standing == Standing::Down, Skip::Down),
        (!candidate.ready, Skip::NotReady),
        (!candidate.role.serves(ask.role), Skip::Role),
        (ask.exclude.contains(&candidate.worker), Skip::Excluded),
        (over(waiting, caps.0) || over(worker.in_flight(now), caps.1), Skip::OverCap),
        (silent && worker.silent_picks > 0, Skip::Silent),
    ];
    reasons.into_iter().find(|(holds, _)| *holds).map(|(_, skip)| skip)
}

/// Tokens that count: whole on the device, less further away, half where they are not verified.
fn credit(candidate: &Candidate) -> f64 {
    const HOST: f64 = 0.75;
    const DISK: f64 = 0.25;
    if candidate.standing != Standing::Credited {
        return 0.0;
    }
    let [device, host, disk] = candidate.tiers.map(|tokens| tokens.min(candidate.cached) as f64);
    let tokens = device + HOST * (host - device).max(0.0) + DISK * (disk - host).max(0.0);
    match candidate.trust {
        Trust::Exact | Trust::Lower => tokens,
        Trust::Unverified => tokens / 2.0,
        Trust::Unsound => 0.0,
    }
}

fn why(ask: &Ask<'_>, chosen: &View, most: f64) -> Why {
    if ask.prompt == 0 {
        Why::NoTokens
    } else if chosen.held < most {
        Why::Load
    } else if most <= 0.0 {
        Why::NotHeld
    } else if chosen.held > chosen.credit {
        Why::InFlight
    } else {
        Why::Cached
    }
}
