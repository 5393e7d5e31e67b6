//! `POST /v1/pick`: where a prompt should go; `/v1/receipts`: what came of it.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvplane_access::ApiError;
use kvplane_catalog::Question;
use kvplane_core::{EngineId, ErrorCode, PublicError, StreamId};
use kvplane_prompt::PromptInput;
use kvplane_receipts::{Account, Cause, Delivered, LedgerTotals, Receipt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::fields::{Fields, Malformed};
use super::members::changing;
use super::parameters::{Pairs, Parameters, wrong_body};
use super::query::{on_a_fitting_thread, read_and, read_body, with_question};
use crate::parts::Parts;
use crate::questions::{Asker, TokenizedNote};
use crate::routing::{Endpoint, MAX_ENDPOINTS, Passed, Picked, Report, Routing, State as Stage, Wish};

/// What a pick has beside the fields of a question.
const FIELDS: [&str; 5] = ["session", "policy", "dry_run", "output_tokens", "exclude"];

/// Tokens that are hashed on a thread that serves others: some hundred microseconds.
const AT_ONCE: usize = 128 << 10;

pub(super) fn routes() -> Router<Parts> {
    Router::new()
        .route("/v1/pick", post(pick))
        .route("/v1/receipts", get(ledger))
        .route("/v1/receipts/{id}", get(receipt).merge(changing(post(report))))
}

async fn pick(
    State(asker): State<Arc<Asker>>,
    State(routing): State<Arc<Routing>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = read_body(&asker, request).await?;
    let (here, decides) = (asker.clone(), routing.clone());
    let (mut question, mut wish, text) =
        match on_a_fitting_thread(&asker, body, move |body| by_ids(&here, &decides, body)).await?? {
            Read::Answered(response) => return Ok(response),
            Read::Text { question, wish, text } => (question, wish, text),
        };
    let tokenized = match asker.tokenize_in_time(&mut question, text).await? {
        Ok(note) => {
            wish.text = Some(note.dimensions);
            Some(note)
        }
        Err(without) => {
            wish.without_tokens = Some(without);
            None
        }
    };
    let tokens = question.token_ids.as_ref().map_or(0, Vec::len);
    let decide = move || {
        let mut question = question;
        let picked = routing.pick(&asker, &mut question, &wish)?;
        answered(&Picked { tokenized, ..picked })
    };
    if tokens <= AT_ONCE {
        return Ok(decide()?);
    }
    Ok(off_the_workers(decide).await??)
}

async fn off_the_workers<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> Result<R, ApiError> {
    let failed = |_| ApiError(PublicError::new(ErrorCode::Internal, "the request could not be read"));
    tokio::task::spawn_blocking(run).await.map_err(failed)
}

/// What a body came to.
enum Read {
    Answered(Response),
    /// There are no ids yet.
    Text {
        question: Box<Question>,
        wish: Wish,
        text: PromptInput,
    },
}

/// Answers at once where ids are given.
fn by_ids(asker: &Asker, routing: &Routing, body: &[u8]) -> Result<Read, PublicError> {
    with_question(|question| {
        let mut wish = Wish::default();
        let max = asker.max_tokens;
        let text =
            read_and(body, max, question, &FIELDS, |field, fields| read_wish(field, fields, &mut wish))?;
        let beside = [
            ("groups", question.groups.is_some()),
            ("min_tokens", question.min_tokens.is_some()),
            ("all", question.all.is_some()),
        ];
        if let Some((field, _)) = beside.into_iter().find(|(_, given)| *given) {
            return Err(PublicError::field(field, "is of /v1/query").with_next("leave it out"));
        }
        if let Some(limit) = question.limit {
            wish.set_limit(limit)?;
        }
        if let Some(text) = text {
            return Ok(Read::Text { question: Box::new(std::mem::take(question)), wish, text });
        }
        Ok(Read::Answered(answered(&routing.pick(asker, question, &wish)?)?))
    })
}

fn answered(picked: &Picked) -> Result<Response, PublicError> {
    let json = serde_json::to_vec(&PickedJson::from(picked))
        .map_err(|_| PublicError::new(ErrorCode::Internal, "the answer cannot be written"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn read_wish(field: &'static str, fields: &mut Fields<'_>, wish: &mut Wish) -> Result<(), PublicError> {
    let not = |what: &str| PublicError::field(field, format!("is not {what}"));
    match field {
        "session" => {
            let name: Option<String> = fields.value().map_err(|Malformed(_)| not("text"))?;
            wish.set_session(name.as_deref())?;
        }
        "policy" => {
            let name: Option<String> = fields.value().map_err(|_| not("text"))?;
            wish.set_policy(name.as_deref())?;
        }
        "dry_run" => {
            let dry: Option<bool> = fields.value().map_err(|_| not("true or false"))?;
            wish.dry_run = dry.unwrap_or(false);
        }
        "output_tokens" => {
            let tokens: Option<u32> =
                fields.value().map_err(|_| not("a whole number from 0 to 4294967295"))?;
            wish.output = tokens.map_or(0, u64::from);
        }
        _ => {
            let what = "a list of endpoints with engine and rank";
            let names: Option<Vec<EndpointName>> = fields.value().map_err(|_| not(what))?;
            wish.set_exclude(names.unwrap_or_default().into_iter().map(EndpointName::id))?;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointName {
    engine: String,
    #[serde(default)]
    rank: u32,
}

impl EndpointName {
    fn id(self) -> StreamId {
        StreamId::new(EngineId::new(&self.engine), self.rank)
    }
}

#[derive(Serialize)]
struct PickedJson<'a> {
    id: Option<&'a str>,
    endpoints: Vec<EndpointJson<'a>>,
    why: &'static str,
    because: String,
    policy: &'static str,
    prompt_tokens: u64,
    fleet_cached_tokens: u64,
    eligible_cached_tokens: u64,
    booked: bool,
    trust: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenized: Option<TokenizedNote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    without_tokens: Option<&'static str>,
    skipped: Vec<PassedJson<'a>>,
    skipped_count: u64,
}

#[derive(Serialize)]
struct EndpointJson<'a> {
    engine: &'a str,
    rank: u32,
    cached_tokens: u64,
    in_flight_tokens: u64,
    trust: &'static str,
    age_ms: Option<u64>,
    load: &'static str,
    cost: f64,
    terms: TermsJson,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "all are seconds, and say so")]
struct TermsJson {
    queue_s: f64,
    prefill_s: f64,
    imposed_s: f64,
    decode_s: f64,
    memory_s: f64,
}

#[derive(Serialize)]
struct PassedJson<'a> {
    engine: &'a str,
    rank: u32,
    why: &'static str,
}

impl<'a> From<&'a Picked> for PickedJson<'a> {
    fn from(picked: &'a Picked) -> Self {
        let endpoint = |one: &'a Endpoint| EndpointJson {
            engine: one.id.engine.as_str(),
            rank: one.id.rank,
            cached_tokens: one.cached,
            in_flight_tokens: one.in_flight,
            trust: one.trust.as_str(),
            age_ms: one.age_ms,
            load: one.load.as_str(),
            cost: one.cost,
            terms: TermsJson {
                queue_s: one.terms.queue,
                prefill_s: one.terms.prefill,
                imposed_s: one.terms.imposed,
                decode_s: one.terms.decode,
                memory_s: one.terms.memory,
            },
        };
        let passed = |one: &'a Passed| PassedJson {
            engine: one.id.engine.as_str(),
            rank: one.id.rank,
            why: one.why.as_str(),
        };
        Self {
            id: picked.id.as_deref(),
            endpoints: picked.endpoints.iter().map(endpoint).collect(),
            why: picked.why.as_str(),
            because: picked.because(),
            policy: picked.policy.as_str(),
            prompt_tokens: picked.prompt,
            fleet_cached_tokens: picked.fleet,
            eligible_cached_tokens: picked.eligible,
            booked: picked.booked,
            trust: picked.trust.as_str(),
            tokenized: picked.tokenized,
            without_tokens: picked.without_tokens,
            skipped: picked.skipped.iter().map(passed).collect(),
            skipped_count: picked.skipped_count,
        }
    }
}

/// What is reported of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportJson {
    /// How far it is.
    state: Option<StageJson>,
    /// What the engine reported as cached.
    cached_tokens: Option<u64>,
    prompt_tokens: Option<u64>,
    engine: Option<Box<str>>,
    rank: Option<u32>,
    first_token_ms: Option<f64>,
    attempts: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum StageJson {
    FirstToken,
    Finish,
    Abort,
}

async fn report(
    State(asker): State<Arc<Asker>>,
    State(routing): State<Arc<Routing>>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<ReportJson>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| PublicError::field("id", rejection.body_text()))?;
    let Json(body) = body.map_err(|rejection| match std::error::Error::source(&rejection) {
        Some(why) => wrong_body(why),
        None => wrong_body(rejection.body_text()),
    })?;
    let ReportJson { state, cached_tokens, prompt_tokens, engine, rank, first_token_ms, attempts } = body;
    if state.is_none() && cached_tokens.is_none() {
        return Err(PublicError::field("body", "has neither state nor cached_tokens").into());
    }
    let state = state.map(|state| match state {
        StageJson::FirstToken => Stage::FirstToken,
        StageJson::Finish => Stage::Finish,
        StageJson::Abort => Stage::Abort,
    });
    let delivered = cached_tokens.map(|cached| Delivered {
        cached,
        prompt: prompt_tokens,
        engine,
        rank,
        first_token_ms,
        attempts: attempts.unwrap_or(1),
    });
    let report = Report { state, delivered, ..Report::default() };
    if report.delivered.is_none() {
        let receipt = routing.report(&asker, &id, report)?;
        return Ok(Json(receipt_json(&id, &receipt)));
    }
    // The engine's stream may have to be replayed.
    let receipt = off_the_workers(move || {
        let receipt = routing.report(&asker, &id, report)?;
        Ok::<_, PublicError>(receipt_json(&id, &receipt))
    });
    Ok(Json(receipt.await??))
}

async fn receipt(
    State(routing): State<Arc<Routing>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| PublicError::field("id", rejection.body_text()))?;
    Ok(Json(receipt_json(&id, &routing.receipt(&id)?)))
}

/// Totals by cause, and the receipts that lost the most.
async fn ledger(State(routing): State<Arc<Routing>>, query: Pairs) -> Result<Json<Value>, ApiError> {
    const USUAL: u32 = 10;
    let mut given = Parameters::read(query, &[])?;
    let worst = given.number("worst")?.unwrap_or(USUAL);
    given.finish()?;
    if worst as usize > MAX_ENDPOINTS {
        return Err(PublicError::field("worst", format!("is not 0 to {MAX_ENDPOINTS}")).into());
    }
    let json = off_the_workers(move || {
        let worst = routing.worst(worst as usize);
        let worst: Vec<Value> = worst.iter().map(|(name, receipt)| receipt_json(name, receipt)).collect();
        let mut json = totals_json(&routing.totals());
        json["worst"] = worst.into();
        json["engines"] = live_json(&routing);
        json
    });
    Ok(Json(json.await?))
}

fn live_json(routing: &Routing) -> Value {
    let live = routing.live();
    let row = |(id, requests, tokens): &(kvplane_core::StreamId, u32, u64)| json!({"engine": id.engine.as_str(), "rank": id.rank, "requests": requests, "uncached_tokens": tokens});
    live.iter().map(row).collect()
}

fn totals_json(totals: &LedgerTotals) -> Value {
    let lost: Map<String, Value> =
        Cause::ALL.iter().map(|cause| (cause.as_str().to_owned(), totals.losses.of(*cause).into())).collect();
    let [not_reported, aborted] = totals.unledgered;
    json!({
        "receipts": {
            "decided": totals.decided, "settled": totals.settled, "equal": totals.equal,
            "not_reported": not_reported, "aborted": aborted, "drifts": totals.drifts,
        },
        "tokens": {
            "prompt": totals.prompt, "seen_before": totals.ceiling, "fleet": totals.fleet, "eligible": totals.eligible,
            "predicted": totals.predicted, "delivered": totals.delivered, "gained": totals.gained,
            "random": totals.random,
        },
        "lost": lost,
    })
}

fn receipt_json(id: &str, receipt: &Receipt) -> Value {
    let decided = &receipt.decided;
    let candidates: Vec<Value> = decided
        .candidates
        .iter()
        .map(|note| {
            json!({
                "engine": &*note.engine, "rank": note.rank, "cached_tokens": note.cached,
                "in_flight_tokens": note.in_flight, "trust": note.trust.as_str(), "cost": note.cost,
            })
        })
        .collect();
    let account =
        receipt.settled.as_ref().map_or_else(|| Account::at_decision(decided), |(_, account)| *account);
    let lost: Map<String, Value> =
        account.losses.iter().map(|(cause, tokens)| (cause.as_str().to_owned(), tokens.into())).collect();
    let delivered = receipt.settled.as_ref().map(|(delivered, _)| {
        json!({
            "cached_tokens": delivered.cached, "prompt_tokens": delivered.prompt, "engine": delivered.engine.as_deref(),
            "rank": delivered.rank, "first_token_ms": delivered.first_token_ms, "attempts": delivered.attempts,
        })
    });
    let state = match (&receipt.settled, receipt.aborted) {
        (Some(_), _) => "settled",
        (None, true) => "aborted",
        (None, false) => "open",
    };
    json!({
        "id": id, "state": state, "at_ms": decided.at_ms, "model": &*decided.model, "policy": decided.policy,
        "why": decided.why, "without_tokens": decided.without_tokens, "decide_us": decided.decide_us, "trust": decided.trust.as_str(),
        "prompt_tokens": decided.prompt, "seen_before_tokens": decided.ceiling, "fleet_tokens": decided.fleet,
        "eligible_tokens": decided.eligible, "predicted_tokens": decided.predicted,
        "in_flight_tokens": decided.in_flight, "random_tokens": decided.random, "candidates": candidates,
        "delivered": delivered, "workload_tokens": account.workload, "lost": lost, "gained_tokens": account.gained,
        "drift": account.drift.map(|drift| json!({"kind": drift.as_str(), "block": drift.block()})),
    })
}
