//! One request on its way to an engine: decided, sent, and where that fails, sent to the next best.

mod disaggregated;
mod send;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use kvplane_inference::{Allowed, Ask, Chosen, NoTokens, PickError, Tokens};
use kvplane_route::Role;
use kvplane_transport::edge::InFlight;

pub(crate) use self::disaggregated::Pair;
use self::send::Sent;
use crate::api::Api;
use crate::call::Call;
use crate::fleet::{Fleet, Member, Served, TakesIds};
use crate::gateway::Shared;
use crate::headers::{RECEIPT, SESSION};
use crate::health::Standing;
use crate::options::Forward;
use crate::refusal::Refusal;
use crate::retry::{Attempts, Failure, Step, is_retried};
use crate::stats::Decision;
use crate::ticket::{Booking, Ticket};
use crate::tokenize::Read;
use crate::trace::Spans;

/// A request, and what is known of it.
pub(crate) struct Turn<'s> {
    pub(super) shared: &'s Arc<Shared>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) api: Api,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    pub(super) call: Call,
    pub(super) served: Served,
    pub(super) salt: Option<String>,
    pub(super) busy: Option<InFlight>,
    /// The receipt of its first decision.
    pub(super) first: Option<String>,
}

/// Where it goes.
pub(super) struct Target {
    pub(super) place: usize,
    pub(super) rank: Option<u32>,
    pub(super) booking: Booking,
    pub(super) decision: Decision,
    /// Its ids go in the place of its text.
    pub(super) ids: bool,
    /// Tokens of the prompt that it is expected to hold.
    pub(super) cached: u64,
}

impl Turn<'_> {
    /// Sends it until somebody answers, or nobody is left to ask.
    pub(crate) async fn run(mut self, ticket: &mut Option<Ticket>) -> Result<Response<Body>, Refusal> {
        let shared = self.shared;
        shared.budget.lock().request(shared.stats.in_flight.load(Ordering::Relaxed));
        let arrived = kvplane_runtime::now();
        let read = self.tokens().await?;
        if let Some(spans) = spans(ticket) {
            spans.tokenize = Some((arrived, kvplane_runtime::now()));
        }
        let mut attempts = Attempts::new(shared.options.attempts);
        let (mut tried, mut skip): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        loop {
            let places = self.candidates(Role::Both, &tried);
            if places.is_empty() {
                return Err(Refusal::unavailable(
                    "no engine of this model accepts requests: GET /v1/status shows their state",
                ));
            }
            let asked = kvplane_runtime::now();
            let target = self.pick(&read, places)?;
            let place = target.place;
            if self.first.is_none() {
                self.first = target.booking.receipt().map(str::to_owned);
            }
            if let Some(spans) = spans(ticket) {
                let now = kvplane_runtime::now();
                (spans.decide, spans.sent) = (Some((asked, now)), Some(now));
                spans.predicted = Some(target.cached).filter(|_| target.decision == Decision::Tokens);
            }
            if attempts.made() == 1 {
                let begun = ticket.as_ref().map(|ticket| ticket.begun);
                shared.stats.queue.record(begun.map_or_else(Default::default, |begun| begun.elapsed()));
                let without = if target.decision == Decision::Tokens { None } else { read.without };
                shared.stats.decided(target.decision, without);
            }
            tried.push(place);
            let prefiller = self.prefiller(&read, &target, &skip)?;
            let sent = self.send(target, prefiller, &read, &mut attempts, (&tried, &mut skip)).await;
            match sent {
                Sent::Answered(answer) => return Ok(self.respond(*answer, attempts.made(), ticket)),
                Sent::Retry(failure) => {
                    shared.stats.retried(failure.as_str());
                    tracing::debug!(
                        engine = self.fleet.members[place].upstream.endpoint.engine,
                        reason = failure.as_str(),
                        "sent to another engine"
                    );
                }
                Sent::PrefillFailed(failure) => {
                    shared.stats.retried(failure.as_str());
                    // The engine that decodes is as good as before.
                    tried.pop();
                }
                Sent::Failed(failure) => return Err(gave_up(failure)),
            }
        }
    }

    /// The ids of its prompt, with the adapter that is asked for.
    async fn tokens(&self) -> Result<Read, Refusal> {
        let shared = self.shared;
        let read = shared
            .tokenizers
            .read(&shared.plane, &shared.options, self.api, &self.served.base, &self.body)
            .await?;
        Ok(match read.tokens {
            Some(tokens) if self.served.adapter.is_some() => {
                Read { tokens: Some(Tokens { adapter: self.served.adapter.clone(), ..tokens }), ..read }
            }
            _ => read,
        })
    }

    /// Endpoints that may be asked now. Where none seems well, those that are not: somebody may be wrong about them.
    fn candidates(&self, role: Role, tried: &[usize]) -> Vec<usize> {
        let now = self.shared.now();
        let left = |place: &&usize| {
            !tried.contains(place)
                && self.fleet.members.get(**place).is_some_and(|member| member.upstream.endpoint.serves(role))
        };
        let well = |place: &&usize| {
            let standing = self.fleet.members[**place].state.standing(now);
            matches!(standing, Standing::Up | Standing::Trial)
        };
        let all = self.served.places.iter().filter(left);
        let mut places: Vec<usize> = all.clone().filter(well).copied().collect();
        if places.is_empty() {
            places = all.copied().collect();
        }
        places.sort_unstable();
        places
    }

    pub(super) fn ask(
        &self,
        known: Result<&Tokens, NoTokens>,
        allowed: &Allowed,
        role: Role,
    ) -> Result<Chosen, PickError> {
        self.shared.plane.pick(&Ask {
            model: &self.served.base,
            tokens: known,
            cache_salt: self.salt.as_deref(),
            session: self.head.headers.get(SESSION).and_then(|value| value.to_str().ok()),
            output: self.call.output,
            pool: &self.fleet.pool,
            allowed,
            role,
            limit: 1,
            with: self.first.as_deref(),
        })
    }

    fn pick(&self, read: &Read, places: Vec<usize>) -> Result<Target, Refusal> {
        let mut known = read.known();
        let allowed = Allowed::Some(places);
        let mut chosen = self.ask(known, &allowed, Role::Both);
        if let (Err(PickError::Invalid(_)), Ok(_)) = (&chosen, known) {
            known = Err(NoTokens::NotRendered);
            chosen = self.ask(known, &allowed, Role::Both);
        }
        let Allowed::Some(places) = allowed else { return Err(Refusal::unavailable("no endpoint")) };
        let (place, rank, receipt, decision, cached) = match chosen {
            Ok(Chosen { endpoints, receipt }) => {
                let found =
                    endpoints.first().ok_or_else(|| Refusal::unavailable("no endpoint was picked"))?;
                let decision = if known.is_ok() { Decision::Tokens } else { Decision::Load };
                (found.place, found.rank, Some(receipt), decision, found.cached)
            }
            Err(PickError::Saturated(why)) => return Err(Refusal::saturated(why)),
            // Nothing is known of their streams: that says nothing about their servers.
            Err(PickError::UnknownModel | PickError::Invalid(_) | PickError::Nobody(_)) => {
                let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
                (places[turn % places.len()], None, None, Decision::InTurn, 0)
            }
        };
        let Member { upstream, state } = &self.fleet.members[place];
        state.with_health(|health| health.sent(self.shared.now()));
        let address = upstream.endpoint.address.to_string();
        let booking = Booking::new(self.shared.plane.clone(), state.clone(), receipt, address);
        let ids = self.sends_ids(read, &self.fleet.members[place]);
        Ok(Target { place, rank, booking, decision, ids, cached })
    }

    /// Whether an engine is sent the ids.
    fn sends_ids(&self, read: &Read, member: &Member) -> bool {
        let Some(tokens) = read.tokens.as_ref().filter(|_| read.plain) else { return false };
        match (self.shared.options.forward, member.state.takes_ids()) {
            (Forward::Text, _) | (_, TakesIds::No) => false,
            (Forward::Ids, _) => true,
            (Forward::Auto, takes) => tokens.proven && takes == TakesIds::Yes,
        }
    }

    /// Whether the client wants to know the receipt's name.
    pub(super) fn wants_receipt(&self) -> bool {
        self.head.headers.get(RECEIPT).is_some_and(|value| value.as_bytes() == b"1")
    }

    /// What came of an answer or its absence: whether the request goes elsewhere.
    pub(super) fn next(&self, attempts: &mut Attempts, failure: Failure, others: bool) -> Step {
        let step = attempts.failed(failure, others, &mut self.shared.budget.lock());
        if step == Step::GiveUp && others && attempts.made() < self.shared.options.attempts {
            self.shared.stats.unretried.fetch_add(1, Ordering::Relaxed);
        }
        step
    }

    /// Whether another engine may do better.
    pub(super) fn is_retried(status: StatusCode) -> bool {
        is_retried(status.as_u16())
    }
}

fn spans(ticket: &mut Option<Ticket>) -> Option<&mut Spans> {
    ticket.as_mut()?.spans.as_deref_mut()
}

fn gave_up(failure: Failure) -> Refusal {
    match failure {
        Failure::Connect => Refusal::unavailable("no engine of this model could be reached: retry later"),
        Failure::Timeout => {
            let message = "the engine did not answer in time: retry later";
            Refusal::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message)
        }
        Failure::Stale | Failure::Died | Failure::Status(_) => {
            let message = "the engine closed the connection before answering: retry";
            Refusal::new(StatusCode::BAD_GATEWAY, "engine_lost", message)
        }
    }
}
