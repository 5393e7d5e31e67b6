//! `kvplane.v1.Routing`.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use kvplane_access::bounds::key;
use kvplane_access::{ApiError, Peer};
use kvplane_catalog::Question;
use kvplane_core::{EngineId, ErrorCode, PublicError, StreamId};
use kvplane_prompt::PromptInput;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::server::routing_server::Routing as RoutingRpc;
use kvplane_receipts::{Delivered, Receipt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::query::{question, tokenized_note};
use crate::questions::{Asker, TokenizedNote};
use crate::routing::links::{Guard, messages};
use crate::routing::peers::Way;
use crate::routing::{Endpoint, Passed, Picked, Report, Routing, State, Wish};

/// Tokens that are hashed at once: some hundred microseconds.
const AT_ONCE: usize = 128 << 10;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct RoutingService {
    pub(crate) asker: Arc<Asker>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) stop: CancellationToken,
}

impl RoutingService {
    fn decide(
        &self,
        mut question: Question,
        wish: &Wish,
        tokenized: Option<TokenizedNote>,
    ) -> Result<proto::PickResponse, PublicError> {
        let picked = self.routing.pick(&self.asker, &mut question, wish)?;
        Ok(response(Picked { tokenized, ..picked }))
    }

    fn settle(&self, request: proto::DeliveryReport) -> Result<proto::DeliveryAccount, PublicError> {
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
        Ok(account(&self.routing.report(
            &self.asker,
            &id,
            Report { state, delivered, ..Report::default() },
        )?))
    }
}

#[tonic::async_trait]
impl RoutingRpc for RoutingService {
    async fn pick(
        &self,
        request: Request<proto::PickRequest>,
    ) -> Result<Response<proto::PickResponse>, Status> {
        let here = self.clone();
        let (mut question, mut wish, text) = read(request.into_inner()).map_err(ApiError)?;
        let mut tokenized = None;
        if let Some(text) = text {
            match here.asker.tokenize_in_time(&mut question, text).await.map_err(ApiError)? {
                Ok(note) => {
                    wish.text = Some(note.dimensions);
                    tokenized = Some(note);
                }
                Err(without) => wish.without_tokens = Some(without),
            }
        }
        if question.token_ids.as_ref().map_or(0, Vec::len) <= AT_ONCE {
            return Ok(Response::new(here.decide(question, &wish, tokenized).map_err(ApiError)?));
        }
        let picked = tokio::task::spawn_blocking(move || here.decide(question, &wish, tokenized)).await;
        Ok(Response::new(picked.map_err(failed).flatten().map_err(ApiError)?))
    }

    async fn report(
        &self,
        request: Request<proto::DeliveryReport>,
    ) -> Result<Response<proto::DeliveryAccount>, Status> {
        let (here, request) = (self.clone(), request.into_inner());
        // The engine's stream may have to be replayed.
        let reported = tokio::task::spawn_blocking(move || here.settle(request)).await;
        Ok(Response::new(reported.map_err(failed).flatten().map_err(ApiError)?))
    }

    type ShareBookingsStream = Pin<Box<dyn Stream<Item = Result<proto::BookingBatch, Status>> + Send>>;

    async fn share_bookings(
        &self,
        request: Request<Streaming<proto::BookingBatch>>,
    ) -> Result<Response<Self::ShareBookingsStream>, Status> {
        let Self { asker, routing, stop } = self.clone();
        let plane = asker.plane.clone();
        let from = key(request.extensions().get::<Peer>());
        let Some(joined) = routing.join(&plane, Way::Follows(from)) else {
            let error =
                PublicError::new(ErrorCode::LimitReached, "too many planes share bookings with this one");
            return Err(ApiError(error.with_next("try again later")).into());
        };
        let guard = Guard::new(plane.clone(), routing.clone(), joined.number);
        let mut heard = request.into_inner();
        kvplane_runtime::spawn("shared bookings", async move {
            let reading = async {
                while let Ok(Some(batch)) = heard.message().await {
                    if !routing.take(&plane, guard.number, &batch.updates) {
                        break;
                    }
                }
            };
            stop.run_until_cancelled(reading).await;
            // What it is sent ends with it.
            drop(guard);
        });
        Ok(Response::new(Box::pin(messages(joined).map(Ok))))
    }
}

fn failed(_: tokio::task::JoinError) -> PublicError {
    PublicError::new(ErrorCode::Internal, "the request could not be answered")
}

/// What is asked, and the text that has no ids yet.
fn read(request: proto::PickRequest) -> Result<(Question, Wish, Option<PromptInput>), PublicError> {
    let proto::PickRequest { prompt, session, policy, limit, dry_run, output_tokens, exclude } = request;
    let prompt = prompt.ok_or_else(|| PublicError::field("prompt", "is missing"))?;
    let (question, text) = question(prompt)?;
    let mut wish = Wish { dry_run, output: u64::from(output_tokens), ..Wish::default() };
    if let Some(limit) = limit {
        wish.set_limit(limit)?;
    }
    let id = |one: proto::StreamName| StreamId::new(EngineId::new(&one.engine), one.rank);
    wish.set_exclude(exclude.into_iter().map(id))?;
    wish.set_session(session.as_deref())?;
    wish.set_policy(policy.as_deref())?;
    Ok((question, wish, text))
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
        without_tokens: picked.without_tokens.map(str::to_owned),
    }
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
