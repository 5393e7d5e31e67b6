//! `kvplane.v1.Routing`.

use std::sync::Arc;

use kvplane_access::ApiError;
use kvplane_core::{EngineId, ErrorCode, PublicError, StreamId};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::server::routing_server::Routing;
use kvplane_receipts::{Delivered, Receipt};
use tonic::{Request, Response, Status};

use super::query::{question, text_length, tokenized_note};
use crate::routing::{Endpoint, Passed, Picked, Report, State, Wish};
use crate::service::Shared;

/// Tokens that are hashed at once: some hundred microseconds.
const AT_ONCE: usize = 128 << 10;

/// The service.
#[derive(Debug)]
pub(crate) struct RoutingService(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl Routing for RoutingService {
    async fn pick(
        &self,
        request: Request<proto::PickRequest>,
    ) -> Result<Response<proto::PickResponse>, Status> {
        let (shared, request) = (self.0.clone(), request.into_inner());
        let tokens =
            request.prompt.as_ref().map_or(0, |prompt| prompt.token_ids.len() + 4 * text_length(prompt));
        if tokens <= AT_ONCE {
            return Ok(Response::new(pick(&shared, request).map_err(ApiError)?));
        }
        let picked = tokio::task::spawn_blocking(move || pick(&shared, request)).await;
        Ok(Response::new(picked.map_err(failed).flatten().map_err(ApiError)?))
    }

    async fn report(
        &self,
        request: Request<proto::DeliveryReport>,
    ) -> Result<Response<proto::DeliveryAccount>, Status> {
        let (shared, request) = (self.0.clone(), request.into_inner());
        // The engine's stream may have to be replayed.
        let reported = tokio::task::spawn_blocking(move || report(&shared, request)).await;
        Ok(Response::new(reported.map_err(failed).flatten().map_err(ApiError)?))
    }
}

fn failed(_: tokio::task::JoinError) -> PublicError {
    PublicError::new(ErrorCode::Internal, "the request could not be answered")
}

fn pick(shared: &Shared, request: proto::PickRequest) -> Result<proto::PickResponse, PublicError> {
    let proto::PickRequest { prompt, session, policy, limit, dry_run, output_tokens, exclude } = request;
    let prompt = prompt.ok_or_else(|| PublicError::field("prompt", "is missing"))?;
    let (mut question, tokenized) = question(&shared.asker, prompt)?;
    let mut wish = Wish { dry_run, output: u64::from(output_tokens), ..Wish::default() };
    if let Some(limit) = limit {
        wish.set_limit(limit)?;
    }
    let id = |one: proto::StreamName| StreamId::new(EngineId::new(&one.engine), one.rank);
    wish.set_exclude(exclude.into_iter().map(id))?;
    wish.set_session(session.as_deref())?;
    wish.set_policy(policy.as_deref())?;
    let picked = shared.routing.pick(&shared.asker, &mut question, &wish)?;
    Ok(response(Picked { tokenized, ..picked }))
}

fn response(picked: Picked) -> proto::PickResponse {
    let endpoint = |one: &Endpoint| proto::PickedEndpoint {
        engine: one.id.engine.to_string(),
        rank: one.id.rank,
        cached_tokens: one.cached,
        in_flight_tokens: one.in_flight,
        trust: one.trust.as_str().to_owned(),
        age_ms: one.age_ms,
        load: one.load.as_str().to_owned(),
        cost: one.cost,
        terms: Some(proto::CostTerms {
            queue_s: one.terms.queue,
            prefill_s: one.terms.prefill,
            imposed_s: one.terms.imposed,
            decode_s: one.terms.decode,
            memory_s: one.terms.memory,
        }),
    };
    let skipped = |one: &Passed| proto::SkippedEndpoint {
        engine: one.id.engine.to_string(),
        rank: one.id.rank,
        why: one.why.as_str().to_owned(),
    };
    proto::PickResponse {
        endpoints: picked.endpoints.iter().map(endpoint).collect(),
        why: picked.why.as_str().to_owned(),
        because: picked.because(),
        policy: picked.policy.as_str().to_owned(),
        prompt_tokens: picked.prompt,
        fleet_cached_tokens: picked.fleet,
        eligible_cached_tokens: picked.eligible,
        booked: picked.booked,
        skipped: picked.skipped.iter().map(skipped).collect(),
        skipped_count: picked.skipped_count,
        id: picked.id.unwrap_or_default(),
        tokenized: picked.tokenized.map(tokenized_note),
    }
}

fn report(shared: &Shared, request: proto::DeliveryReport) -> Result<proto::DeliveryAccount, PublicError> {
    let state = match request.state() {
        proto::RequestState::Unspecified => None,
        proto::RequestState::FirstToken => Some(State::FirstToken),
        proto::RequestState::Finish => Some(State::Finish),
        proto::RequestState::Abort => Some(State::Abort),
    };
    let proto::DeliveryReport {
        id,
        cached_tokens,
        prompt_tokens,
        engine,
        rank,
        first_token_ms,
        attempts,
        ..
    } = request;
    if state.is_none() && cached_tokens.is_none() {
        return Err(PublicError::field("state", "is missing, and so is cached_tokens"));
    }
    let delivered = cached_tokens.map(|cached| Delivered {
        cached,
        prompt: prompt_tokens,
        engine: engine.map(Into::into),
        rank,
        first_token_ms,
        attempts: attempts.max(1),
    });
    Ok(account(&shared.routing.report(&shared.plane, &id, Report { state, delivered })?))
}

fn account(receipt: &Receipt) -> proto::DeliveryAccount {
    let predicted_tokens = receipt.decided.predicted;
    let Some((delivered, account)) = &receipt.settled else {
        return proto::DeliveryAccount { predicted_tokens, ..Default::default() };
    };
    proto::DeliveryAccount {
        settled: true,
        predicted_tokens,
        delivered_tokens: delivered.cached,
        gained_tokens: account.gained,
        lost: account.losses.iter().map(|(cause, tokens)| (cause.as_str().to_owned(), tokens)).collect(),
        drift: account.drift.map(|drift| drift.as_str().to_owned()).unwrap_or_default(),
    }
}
