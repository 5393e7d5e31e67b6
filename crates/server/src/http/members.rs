//! `/v1/engines`: which engines there are, and changing that.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Json, Router};
use kvplane_access::ApiError;
use kvplane_core::PublicError;
use kvplane_ingest::{Origin, Plane};
use serde_json::{Value, json};

use super::parameters::wrong_body;
use super::status;
use crate::fleet::{EngineConfig, Fleet};
use crate::parts::Parts;

/// An engine's description is some hundred bytes.
const MAX_BODY: usize = 64 << 10;

pub(super) fn routes() -> Router<Parts> {
    Router::new()
        .route("/v1/engines", get(list).merge(changing(post(add))))
        .route("/v1/engines/{id}", changing(delete(remove)))
}

/// A route that takes small bodies. Who may ask for it is in the table of roles.
pub(super) fn changing(route: MethodRouter<Parts>) -> MethodRouter<Parts> {
    route.layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn list(State(plane): State<Arc<Plane>>) -> Json<Value> {
    let engines: Vec<_> = plane.engines().iter().map(|engine| status::described(engine)).collect();
    Json(json!({ "engines": engines }))
}

async fn add(
    State(fleet): State<Fleet>,
    described: Result<Json<EngineConfig>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(config) = described.map_err(|rejection| match std::error::Error::source(&rejection) {
        Some(why) => wrong_body(why),
        None => wrong_body(rejection.body_text()),
    })?;
    // A caller that may add engines could have any file of this machine sent elsewhere.
    for (key, given) in [("token_file", &config.token_file), ("api_key_file", &config.api_key_file)] {
        if given.is_some() {
            let wrong = PublicError::field(key, "can be set in the configuration only");
            return Err(wrong.with_next("describe the engine there, and reload kvplane").into());
        }
    }
    let id = config.id.clone();
    let plan = Fleet::plan(config).await.map_err(PublicError::from)?;
    fleet.add(vec![plan], Origin::Api).await.map_err(PublicError::from)?;
    let added = fleet.engine(&id).map_or(Value::Null, |engine| status::described(&engine));
    Ok((StatusCode::CREATED, Json(added)).into_response())
}

async fn remove(
    State(fleet): State<Fleet>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let Path(id) = id.map_err(|rejection| PublicError::field("id", rejection.body_text()))?;
    fleet.remove(&id).await.map_err(PublicError::from)?;
    Ok(StatusCode::NO_CONTENT)
}
