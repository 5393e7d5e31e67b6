//! `trtllm-serve`'s routes as far as they matter here, and `/sim/*` for scenarios.

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvplane_wire::trtllm::encode::{TrtHash, encode_events};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::engine::{TrtHandle, TrtPoolState, TrtRankState};
use super::fault::{TrtAnswer, TrtFaultRequest};
use crate::engine::{CompletionOptions, SimError};
use crate::http::{DEFAULT_TOKENS, Extra, Prompt, completion, error};

/// White space behind a list that is made huge.
const HUGE_BYTES: usize = 10 << 20;

pub(super) fn router(server: TrtHandle) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/health_generate", get(health))
        .route("/version", get(|| async { Json(json!({ "version": "1.2.0" })) }))
        .route("/server_info", get(|| async { Json(json!({ "disaggregated_params": {} })) }))
        .route("/metrics", get(metrics))
        .route("/kv_cache_events", post(kv_cache_events))
        .route("/v1/completions", post(completions))
        .route("/sim/fault", post(fault))
        .route("/sim/state", get(state))
        .with_state(server)
}

async fn health(State(server): State<TrtHandle>) -> StatusCode {
    if server.is_well() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// The drain. A right answer has status 200 and a list, also when there are no events at all.
async fn kv_cache_events(State(server): State<TrtHandle>) -> Response {
    let answer = server.next_answer();
    match answer {
        Some(TrtAnswer::Unavailable) => {
            return (StatusCode::SERVICE_UNAVAILABLE, "upstream connect error").into_response();
        }
        Some(TrtAnswer::Html) => {
            let page = "<html><body><h1>502 Bad Gateway</h1></body></html>";
            return ([(header::CONTENT_TYPE, "text/html")], page).into_response();
        }
        Some(TrtAnswer::Object) => return Json(json!({ "detail": "Not Found" })).into_response(),
        None | Some(TrtAnswer::Truncated | TrtAnswer::Lost | TrtAnswer::Huge) => {}
    }
    let wait = server.config().drain_wait;
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    let mut body = encode_events(&server.drain());
    match answer {
        Some(TrtAnswer::Truncated) => body.truncate(body.len() / 2),
        Some(TrtAnswer::Huge) => body.resize(body.len() + HUGE_BYTES, b' '),
        Some(TrtAnswer::Lost) => std::future::pending().await,
        _ => {}
    }
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Statistics of the last iteration, as JSON.
async fn metrics(State(server): State<TrtHandle>) -> Json<Value> {
    let config = server.config();
    let used = server.used_blocks();
    let most: usize = config.levels.first().map_or(0, |blocks| blocks * config.ranks.max(1) as usize);
    let used = used.first().copied().unwrap_or(0);
    Json(json!([{
        "iter": 1,
        "kvCacheStats": {
            "maxNumBlocks": most,
            "freeNumBlocks": most - used,
            "usedNumBlocks": used,
            "tokensPerBlock": config.block_size,
        },
    }]))
}

#[derive(Deserialize)]
struct CompletionRequest {
    model: Option<String>,
    prompt: Prompt,
    max_tokens: Option<usize>,
    cache_salt: Option<String>,
    lora: Option<String>,
    rank: Option<u32>,
    #[serde(default)]
    extra: Extra,
}

async fn completions(State(server): State<TrtHandle>, Json(request): Json<CompletionRequest>) -> Response {
    let model = &server.config().model;
    if request.model.as_ref().is_some_and(|asked| asked != model) {
        return error(StatusCode::NOT_FOUND, "no such model");
    }
    let prompt = request.prompt.into_tokens();
    if prompt.is_empty() {
        return error(StatusCode::BAD_REQUEST, "the prompt is empty");
    }
    let options = CompletionOptions {
        rank: request.rank,
        cache_salt: request.cache_salt,
        lora: request.lora,
        images: request.extra.images,
        ..CompletionOptions::default()
    };
    match server.complete(&prompt, request.max_tokens.unwrap_or(DEFAULT_TOKENS), &options) {
        Ok(result) => Json(completion(model, prompt.len(), &result)).into_response(),
        Err(cause @ SimError::NoRank(_)) => error(StatusCode::BAD_REQUEST, &cause.to_string()),
        Err(cause) => error(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string()),
    }
}

async fn fault(State(server): State<TrtHandle>, Json(request): Json<TrtFaultRequest>) -> Response {
    let faults = request.faults();
    if faults.is_empty() && request.operations.is_none() {
        return error(StatusCode::BAD_REQUEST, "no fault named");
    }
    if let Some(rank) = request.rank.filter(|rank| *rank >= server.config().ranks.max(1)) {
        return error(StatusCode::BAD_REQUEST, &SimError::NoRank(rank).to_string());
    }
    if let Some(conduct) = request.operations {
        server.conduct(conduct);
    }
    for fault in faults {
        server.fault(request.rank, fault);
    }
    Json(json!({ "success": true })).into_response()
}

async fn state(State(server): State<TrtHandle>) -> Json<Value> {
    let hash = |hash: &TrtHash| match hash {
        TrtHash::Number(bits) => bits.to_string(),
        TrtHash::Digest(digits) => digits.clone(),
    };
    let pool = |pool: &TrtPoolState| {
        let blocks: Map<String, Value> = pool
            .blocks
            .iter()
            .map(|(key, block)| (hash(key), json!({ "level": block.level, "tokens": block.tokens.len() })))
            .collect();
        json!({ "window_size": pool.window_size, "blocks": blocks })
    };
    let rank = |rank: &TrtRankState| {
        json!({
            "rank": rank.rank,
            "next_event_id": rank.next_event_id,
            "waiting_events": rank.waiting_events,
            "forgotten_events": rank.forgotten_events,
            "pools": rank.pools.iter().map(pool).collect::<Vec<_>>(),
        })
    };
    Json(json!({ "ranks": server.state().iter().map(rank).collect::<Vec<_>>() }))
}
