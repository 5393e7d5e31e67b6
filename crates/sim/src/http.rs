//! The engine's HTTP side: each engine's routes as far as they matter here, and `/sim/*` for scenarios.

mod answer;
mod chat;
mod inference;
mod sglang;
mod transfer;
mod trtllm;
mod vllm;

use axum::extract::{Json, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use kvplane_core::EngineKind;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use self::answer::Shape;
pub(crate) use self::inference::DEFAULT_TOKENS;
use self::inference::{Job, infer, wanted_rank};
use self::transfer::Transfer;
use crate::cache::{Copies, GroupState};
use crate::engine::{CompletionOptions, CompletionResult, SimError, SimHandle};
use crate::fault::FaultRequest;
use crate::keys::Image;
use crate::pool::Report;
use crate::serve::Line;

/// Everything that the engine serves.
pub(crate) fn router(engine: SimHandle) -> Router {
    let own = match engine.config().profile.engine() {
        EngineKind::Sglang => sglang::routes(),
        EngineKind::Tokenspeed => sglang::tokenspeed_routes(),
        EngineKind::Trtllm => trtllm::routes(),
        _ => vllm::routes(engine.config().vllm.without),
    };
    own.route("/health", get(health))
        .route("/v1/completions", post(completions))
        .merge(chat::routes())
        .layer(from_fn_with_state(engine.clone(), with_key))
        .route("/sim/fault", post(fault))
        .route("/sim/state", get(state))
        .with_state(engine)
}

/// Lets those through who have the key, where there is one.
async fn with_key(State(engine): State<SimHandle>, request: Request, next: Next) -> Response {
    let config = engine.config();
    let wanted = config.api_key.as_ref().filter(|_| config.asks_for_key(request.uri().path()));
    let shown = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    match wanted {
        Some(key) if shown != Some(format!("Bearer {key}").as_bytes()) => {
            error(StatusCode::UNAUTHORIZED, "Unauthorized")
        }
        _ => next.run(request).await,
    }
}

fn prometheus(body: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], body).into_response()
}

async fn health(State(engine): State<SimHandle>) -> StatusCode {
    if engine.engine.desk.is_well() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[derive(Deserialize)]
struct CompletionRequest {
    model: Option<String>,
    prompt: Prompt,
    max_tokens: Option<usize>,
    cache_salt: Option<String>,
    lora: Option<String>,
    rank: Option<u32>,
    /// What has no name of its own in the engine's API.
    #[serde(default)]
    extra: Extra,
    #[serde(default, alias = "extra_args")]
    vllm_xargs: EngineArguments,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    kv_transfer_params: Option<Transfer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

/// What stands behind tokens of the prompt. A real engine is sent the things themselves.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Extra {
    pub(crate) images: Vec<Image>,
    /// A digest, in hexadecimal digits.
    embeddings: Option<String>,
}

/// Arguments that vLLM passes through to the engine.
#[derive(Default, Deserialize)]
#[serde(default)]
struct EngineArguments {
    kv_cache_report_mode: Report,
}

/// A prompt as clients send it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Tokens(Vec<u32>),
    Text(String),
}

impl Prompt {
    pub(crate) fn into_tokens(self) -> Vec<u32> {
        match self {
            Self::Tokens(tokens) => tokens,
            // There is no tokenizer: a token per byte.
            Self::Text(text) => text.bytes().map(u32::from).collect(),
        }
    }
}

async fn completions(
    State(engine): State<SimHandle>,
    Extension(line): Extension<Line>,
    headers: HeaderMap,
    Json(request): Json<CompletionRequest>,
) -> Response {
    let embeddings = request.extra.embeddings.as_deref().map(from_digits);
    if embeddings == Some(None) {
        return error(StatusCode::BAD_REQUEST, "The embeddings are no hexadecimal digits.");
    }
    let mut transfer = request.kv_transfer_params.unwrap_or_default();
    let ids = transfer.prompt_token_ids.take();
    let job = Job {
        model: request.model,
        prompt: ids.unwrap_or_else(|| request.prompt.into_tokens()),
        options: CompletionOptions {
            rank: request.rank.or_else(|| wanted_rank(&headers)),
            cache_salt: request.cache_salt,
            lora: request.lora,
            images: request.extra.images,
            embeddings: embeddings.flatten(),
            report: request.vllm_xargs.kv_cache_report_mode,
        },
        max_tokens: request.max_tokens,
        stream: request.stream,
        include_usage: request.stream_options.unwrap_or_default().include_usage,
        transfer,
    };
    infer(engine, line, Shape::Text, job).await
}

/// The bytes that hexadecimal digits stand for.
fn from_digits(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.as_bytes().chunks(2).map(byte).collect())?
}

/// A completion as every engine answers it.
pub(crate) fn completion(model: &str, prompt_tokens: usize, result: &CompletionResult) -> Value {
    let created = kvplane_runtime::unix_time().as_secs();
    let words: Vec<String> = result.output.iter().map(u32::to_string).collect();
    json!({
        "id": format!("cmpl-{created}"),
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [{
            "index": 0,
            "text": words.join(" "),
            "token_ids": result.output,
            "finish_reason": "length",
        }],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": result.output.len(),
            "total_tokens": prompt_tokens + result.output.len(),
            "prompt_tokens_details": { "cached_tokens": result.cached_tokens },
        },
    })
}

async fn fault(State(engine): State<SimHandle>, Json(request): Json<FaultRequest>) -> Response {
    let faults = request.faults();
    if faults.is_empty() && request.operations.is_none() && request.service.is_none() {
        return error(StatusCode::BAD_REQUEST, "no fault named");
    }
    if let Some(rank) = request.rank.filter(|rank| *rank >= engine.config().ranks.max(1)) {
        return error(StatusCode::BAD_REQUEST, &SimError::NoRank(rank).to_string());
    }
    if let Some(service) = request.service {
        engine.engine.service.set(service);
    }
    let apply = move || {
        if let Some(conduct) = request.operations {
            engine.conduct(conduct);
        }
        for fault in faults {
            engine.fault(request.rank, fault);
        }
    };
    match spawn_blocking(apply).await {
        Ok(()) => Json(json!({ "success": true })).into_response(),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}

async fn state(State(engine): State<SimHandle>) -> Response {
    let (asked, (profiles, profiling), held) = (engine.asked(), engine.profiles(), inference::held(&engine));
    let Ok(ranks) = spawn_blocking(move || engine.state()).await else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the engine panicked");
    };
    let rank = |rank: crate::engine::RankState| {
        let copies = |copies: Copies| -> Map<String, Value> {
            copies.into_iter().map(|(hash, copies)| (hash.to_string(), copies.into())).collect()
        };
        let group = |group: GroupState| {
            json!({
                "device": copies(group.device),
                "host": copies(group.host),
                "storage": copies(group.storage),
            })
        };
        json!({
            "rank": rank.rank,
            "next_sequence": rank.next_sequence,
            "running": rank.running,
            "blocks": copies(rank.blocks),
            "host_blocks": copies(rank.host_blocks),
            "groups": rank.groups.into_iter().map(group).collect::<Vec<_>>(),
        })
    };
    Json(json!({
        "ranks": ranks.into_iter().map(rank).collect::<Vec<_>>(),
        "held": held,
        "asked": asked,
        "profiles": profiles,
        "profiling": profiling,
    }))
    .into_response()
}

pub(crate) fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": { "message": message, "code": status.as_u16() } }))).into_response()
}
