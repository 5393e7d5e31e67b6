//! `SGLang`'s routes, and what `TokenSpeed` has of them.

use axum::Router;
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{error, prometheus, release};
use crate::engine::{RankState, SimHandle};

pub(super) fn routes() -> Router<SimHandle> {
    tokenspeed_routes().route("/server_info", get(server_info)).route("/metrics", get(metrics))
}

pub(super) fn tokenspeed_routes() -> Router<SimHandle> {
    Router::new()
        .route("/flush_cache", get(flush_cache).post(flush_cache))
        .route("/get_server_info", get(server_info))
        .route("/v1/loads", get(loads))
}

/// Text, not JSON, as in the engine.
async fn flush_cache(State(engine): State<SimHandle>) -> Response {
    match spawn_blocking(move || engine.reset_prefix_cache()).await {
        Ok(true) => (StatusCode::OK, "Cache flushed.\n").into_response(),
        Ok(false) => {
            (StatusCode::BAD_REQUEST, "Flush cache failed: there are running or waiting requests.\n")
                .into_response()
        }
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
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
        "speculative_algorithm": config.radix().telling.pairs.then_some("EAGLE"),
        "max_total_num_tokens": config.blocks * config.block_size,
        "version": release(&engine),
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

async fn loads(State(engine): State<SimHandle>) -> Response {
    let block_size = engine.config().block_size;
    let room = engine.config().blocks * block_size;
    let Ok(ranks) = spawn_blocking(move || engine.state()).await else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the engine panicked");
    };
    let load = |rank: &RankState| {
        json!({
            "dp_rank": rank.rank,
            "num_running_reqs": rank.running,
            "num_waiting_reqs": 0,
            "num_total_reqs": rank.running,
            "num_used_tokens": used_tokens(rank, block_size),
            "max_total_num_tokens": room,
        })
    };
    let loads: Vec<Value> = ranks.iter().map(load).collect();
    Json(json!({ "dp_rank_count": loads.len(), "loads": loads })).into_response()
}

/// Its processes write their metrics together, so there is no start time among them.
async fn metrics(State(engine): State<SimHandle>) -> Response {
    let block_size = engine.config().block_size;
    let Ok(ranks) = spawn_blocking(move || engine.state()).await else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the engine panicked");
    };
    let mut body = String::from("# TYPE sglang:num_running_reqs gauge\n");
    for rank in &ranks {
        body += &format!("sglang:num_running_reqs{{dp_rank=\"{}\"}} {}\n", rank.rank, rank.running);
    }
    body += "# TYPE sglang:num_used_tokens gauge\n";
    for rank in &ranks {
        let used = used_tokens(rank, block_size);
        body += &format!("sglang:num_used_tokens{{dp_rank=\"{}\"}} {used}\n", rank.rank);
    }
    prometheus(body)
}

fn used_tokens(rank: &RankState, block_size: usize) -> usize {
    rank.blocks.values().sum::<usize>() * block_size
}

fn host_and_port(endpoint: &str) -> Option<(String, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}
