//! vLLM's routes.

use axum::Router;
use axum::extract::{Json, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvplane_wire::Profile;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{prometheus, release};
use crate::engine::SimHandle;

pub(super) fn routes() -> Router<SimHandle> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
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
    Json(json!({ "version": release(&engine) }))
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reset {
    reset_external: bool,
}

async fn reset_prefix_cache(State(engine): State<SimHandle>, Query(reset): Query<Reset>) -> Response {
    let success =
        if reset.reset_external { engine.reset_external_cache() } else { engine.reset_prefix_cache() };
    if engine.config().profile.is_at_least(Profile::Vllm0_26) {
        Json(json!({ "success": success })).into_response()
    } else {
        StatusCode::OK.into_response()
    }
}
