//! vLLM's routes.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvplane_wire::Profile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{error, prometheus};
use crate::config::Without;
use crate::engine::SimHandle;
use crate::operate::{Operated as _, Reset, flush_once};

pub(super) fn routes(without: Without) -> Router<SimHandle> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/load", get(load))
        .merge(if without.dev_mode { Router::new() } else { dev_routes() })
        .merge(if without.profiler { Router::new() } else { profiler_routes() })
}

fn dev_routes() -> Router<SimHandle> {
    Router::new()
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/server_info", get(server_info))
}

fn profiler_routes() -> Router<SimHandle> {
    Router::new().route("/start_profile", post(start_profile)).route("/stop_profile", post(stop_profile))
}

async fn metrics(State(engine): State<SimHandle>) -> Response {
    let config = engine.config();
    let mut body = format!(
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n\
         # TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1.0\n",
        config.block_size,
        // vLLM counts the null block, which never holds anything.
        config.blocks + 1,
    );
    for load in engine.engine.loads() {
        let (rank, running) = (load.rank, load.running);
        body.push_str(&format!("vllm:num_requests_running{{engine=\"{rank}\"}} {running}.0\n"));
        body.push_str(&format!("vllm:num_requests_waiting{{engine=\"{rank}\"}} 0.0\n"));
    }
    // With several ranks vLLM's metrics are those of many processes, and say nothing about any one.
    if config.ranks <= 1 {
        body.push_str(&process_metrics(engine.start_time()));
    }
    prometheus(body)
}

fn process_metrics(start_time: f64) -> String {
    format!(
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n\
         # TYPE process_start_time_seconds gauge\n\
         process_start_time_seconds {start_time:.3}\n"
    )
}

async fn version(State(engine): State<SimHandle>) -> Json<Value> {
    Json(json!({ "version": engine.engine.release() }))
}

async fn kv_event_sources(State(engine): State<SimHandle>) -> Response {
    let config = engine.config();
    if !config.profile.is_at_least(Profile::Vllm0_32) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut ranks = Map::new();
    let endpoints = engine.event_endpoints().into_iter().zip(engine.replay_endpoints());
    for (rank, (endpoint, replay)) in endpoints.enumerate() {
        let source = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay,
            "buffer_steps": config.buffer_steps,
            "hwm": config.hwm,
            "max_queue_size": 100_000,
            "topic": config.topic,
        });
        ranks.insert(rank.to_string(), source);
    }
    Json(Value::Object(ranks)).into_response()
}

/// How it was started, in the engine's own words or as JSON.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConfigFormat {
    #[default]
    Text,
    Json,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InfoQuery {
    config_format: ConfigFormat,
}

async fn server_info(State(engine): State<SimHandle>, Query(query): Query<InfoQuery>) -> Json<Value> {
    let config = engine.config();
    // Another one in every life: the only such sign where there are several ranks.
    let instance = format!("{:05x}", engine.start_time().to_bits() & 0xf_ffff);
    let settings = json!({
        "instance_id": instance,
        "model_config": { "model": config.model },
        "cache_config": { "block_size": config.block_size, "num_gpu_blocks": config.blocks + 1 },
        "parallel_config": { "data_parallel_size": config.ranks.max(1) },
    });
    let settings = match query.config_format {
        ConfigFormat::Text => Value::String(settings.to_string()),
        ConfigFormat::Json => settings,
    };
    Json(json!({ "vllm_config": settings, "vllm_env": {}, "system_env": {} }))
}

/// Requests that the server has taken and not answered; 0 for ever where it does not count.
async fn load(State(engine): State<SimHandle>) -> Json<Value> {
    let counted = if engine.config().vllm.without.load_tracking { Vec::new() } else { engine.engine.loads() };
    Json(json!({ "server_load": counted.iter().map(|load| load.running).sum::<usize>() }))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResetQuery {
    reset_running_requests: bool,
    reset_external: bool,
}

async fn reset_prefix_cache(State(engine): State<SimHandle>, Query(query): Query<ResetQuery>) -> Response {
    let profile = engine.config().profile;
    // Older releases do not know the parameters, and pass over them.
    let known = profile.is_at_least(Profile::Vllm0_14);
    let reset =
        Reset { external: known && query.reset_external, running: known && query.reset_running_requests };
    let done = flush_once(&engine.engine, reset).await;
    if profile.is_at_least(Profile::Vllm0_26) {
        // Every rank was asked. What the others said is not returned.
        Json(json!({ "success": done.first() })).into_response()
    } else {
        StatusCode::OK.into_response()
    }
}

/// Options are taken since 0.32; before, a body is not looked at.
async fn start_profile(State(engine): State<SimHandle>, body: Bytes) -> Response {
    let takes_options = engine.config().profile.is_at_least(Profile::Vllm0_32);
    let options = if takes_options && !body.is_empty() {
        match serde_json::from_slice::<ProfileOptions>(&body) {
            Ok(options) => json!(options),
            Err(cause) => return error(StatusCode::UNPROCESSABLE_ENTITY, &cause.to_string()),
        }
    } else {
        json!({})
    };
    // One that is under way goes on.
    let _ = engine.engine.desk.start_profile(options);
    StatusCode::OK.into_response()
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ProfileOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
}

async fn stop_profile(State(engine): State<SimHandle>) -> StatusCode {
    let _ = engine.engine.desk.stop_profile();
    StatusCode::OK
}
