//! TensorRT-LLM's routes, as far as it has any where its events are pushed.

use axum::Router;
use axum::extract::{Json, State};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::engine::SimHandle;

pub(super) fn routes() -> Router<SimHandle> {
    Router::new()
        .route("/version", get(|| async { Json(json!({ "version": "1.3.0" })) }))
        .route("/server_info", get(server_info))
        // Nothing can be drained of what is pushed.
        .route("/kv_cache_events", post(|| async { Json(json!([])) }))
}

async fn server_info(State(engine): State<SimHandle>) -> Json<Value> {
    Json(json!({ "model": engine.config().model, "tokens_per_block": engine.config().block_size }))
}
