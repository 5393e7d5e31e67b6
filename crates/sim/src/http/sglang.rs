//! `SGLang`'s routes, and what `TokenSpeed` has of them.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kvplane_wire::Profile;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{error, prometheus};
use crate::engine::SimHandle;
use crate::operate::{Load, Operated as _, ProfileError, flush_ranks};

pub(super) fn routes() -> Router<SimHandle> {
    tokenspeed_routes()
        .route("/server_info", get(server_info))
        .route("/get_load", get(old_loads))
        .route("/metrics", get(metrics))
}

pub(super) fn tokenspeed_routes() -> Router<SimHandle> {
    Router::new()
        .route("/flush_cache", get(flush_cache).post(flush_cache))
        .route("/start_profile", get(start_profile).post(start_profile))
        .route("/stop_profile", get(stop_profile).post(stop_profile))
        .route("/get_server_info", get(server_info))
        .route("/v1/loads", get(loads))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FlushQuery {
    timeout: f64,
}

/// Text, not JSON, as in the engine. Every rank is asked; the answer is the first one's.
async fn flush_cache(State(engine): State<SimHandle>, Query(query): Query<FlushQuery>) -> Response {
    let Ok(timeout) = Duration::try_from_secs_f64(query.timeout) else {
        return error(StatusCode::UNPROCESSABLE_ENTITY, "Input should be greater than or equal to 0");
    };
    // Releases before 0.5.10, and TokenSpeed, do not know the parameter.
    let waits = engine.config().profile.is_at_least(Profile::Sglang0_5_18);
    let done = flush_ranks(&engine.engine, if waits { timeout } else { Duration::ZERO }).await;
    if done.first() == Some(&true) {
        (StatusCode::OK, "Cache flushed.\nPlease check backend logs for more details.\n").into_response()
    } else {
        let refused = "Flush cache failed: there are running or waiting requests.\n";
        (StatusCode::BAD_REQUEST, refused).into_response()
    }
}

async fn start_profile(State(engine): State<SimHandle>, body: Bytes) -> Response {
    let options = if body.is_empty() { Ok(json!({})) } else { serde_json::from_slice::<Value>(&body) };
    match options {
        Ok(options @ Value::Object(_)) => {
            profiled("Start profiling.\n", engine.engine.desk.start_profile(options))
        }
        _ => error(StatusCode::UNPROCESSABLE_ENTITY, "Input should be a valid dictionary"),
    }
}

async fn stop_profile(State(engine): State<SimHandle>) -> Response {
    profiled("Stop profiling. This will take some time.\n", engine.engine.desk.stop_profile())
}

/// What the scheduler complains of is in the engine's log. Its client hears of an error.
fn profiled(said: &'static str, done: Result<(), ProfileError>) -> Response {
    match done {
        Ok(()) => (StatusCode::OK, said).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response(),
    }
}

async fn server_info(State(engine): State<SimHandle>) -> Json<Value> {
    let config = engine.config();
    let ranks = config.ranks.max(1);
    let endpoints = engine.event_endpoints();
    let (host, port) = endpoints.first().and_then(|endpoint| host_and_port(endpoint)).unzip();
    let replays = engine.replay_endpoints();
    let replay_port =
        replays.first().cloned().flatten().and_then(|endpoint| Some(host_and_port(&endpoint)?.1));
    Json(json!({
        "model_path": config.model,
        "served_model_name": config.model,
        "page_size": config.block_size,
        "dp_size": ranks,
        "speculative_algorithm": config.radix().style.pairs.then_some("EAGLE"),
        "max_total_num_tokens": config.blocks * config.block_size,
        "version": engine.engine.release(),
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": port,
            "topic": config.topic,
            "block_size": config.block_size,
            "dp_size": ranks,
            "replay_endpoint_port_base": replay_port,
        },
    }))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadsQuery {
    dp_rank: Option<u32>,
}

async fn loads(State(engine): State<SimHandle>, Query(query): Query<LoadsQuery>) -> Response {
    let ranks = engine.engine.loads();
    let wanted: Vec<&Load> =
        ranks.iter().filter(|load| query.dp_rank.is_none_or(|rank| rank == load.rank)).collect();
    if wanted.is_empty() {
        return error(StatusCode::BAD_REQUEST, "dp_rank is out of range");
    }
    let load = |load: &&Load| {
        json!({
            "dp_rank": load.rank,
            "num_running_reqs": load.running,
            "num_waiting_reqs": 0,
            "num_total_reqs": load.running,
            "num_used_tokens": load.used_tokens,
            "max_total_num_tokens": load.room,
            "token_usage": load.usage(),
        })
    };
    let loads: Vec<Value> = wanted.iter().map(load).collect();
    let body = json!({ "version": engine.engine.release(), "dp_rank_count": ranks.len(), "loads": loads });
    Json(body).into_response()
}

async fn old_loads(State(engine): State<SimHandle>) -> Json<Value> {
    let load = |load: &Load| {
        json!({
            "dp_rank": load.rank,
            "num_reqs": load.running,
            "num_waiting_reqs": 0,
            "num_tokens": load.used_tokens,
        })
    };
    Json(engine.engine.loads().iter().map(load).collect())
}

/// Its processes write their metrics together, so there is no start time among them.
async fn metrics(State(engine): State<SimHandle>) -> Response {
    let ranks = engine.engine.loads();
    let mut body = String::from("# TYPE sglang:num_running_reqs gauge\n");
    for load in &ranks {
        body += &format!("sglang:num_running_reqs{{dp_rank=\"{}\"}} {}\n", load.rank, load.running);
    }
    body += "# TYPE sglang:num_used_tokens gauge\n";
    for load in &ranks {
        body += &format!("sglang:num_used_tokens{{dp_rank=\"{}\"}} {}\n", load.rank, load.used_tokens);
    }
    prometheus(body)
}

fn host_and_port(endpoint: &str) -> Option<(String, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}
