//! The HTTP server.

mod dashboard;
mod discover;
mod fields;
mod hints;
mod indexer;
mod indexer_counters;
mod intake;
mod keys;
mod members;
mod metrics;
mod openapi;
mod operations;
mod overview;
mod parameters;
mod peer_dump;
mod peer_query;
mod pick;
mod policy;
mod probe;
mod query;
mod recover;
mod short_numbers;
mod status;
mod text;
mod watch;

use std::sync::Arc;

use axum::extract::{Extension, MatchedPath, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvplane_access::ApiError;
use kvplane_access::{Caller, Port, Role, guard_pages, table};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Plane;
use kvplane_metrics::Detail;
use parameters::{Pairs, Parameters};
use serde_json::json;

use crate::parts::Parts;
use crate::publishers::Publishers;
use crate::readiness::Readiness;
pub(crate) use indexer_counters::IndexerCounters;
pub(crate) use metrics::MetricsPage;
pub(crate) use overview::Overviews;
pub(crate) use status::StatusPage;
pub(crate) use watch::Watching;

/// What there is, where everything is served.
const OPENAPI_LISTS: &str = "GET /openapi.json lists every path, and its methods";

pub(crate) fn router(parts: Parts) -> Router {
    let dumps = recover::Dumps { asker: parts.asker.clone(), edge: parts.edge.clone() };
    let of_an_indexer = indexer::routes()
        .route("/query", post(peer_query::query).with_state(parts.asker.clone()))
        .route("/query_by_hash", post(peer_query::query_by_hash).with_state(parts.asker.clone()))
        .route("/dump", get(peer_dump::dump).with_state(dumps.clone()))
        .route_layer(from_fn_with_state(parts.indexer_counters.clone(), indexer_counters::count));
    let more = Router::new()
        .route("/openapi.json", get(openapi::page))
        .route("/v1/query", post(query::query).with_state(parts.asker.clone()))
        .route("/kv_recover", get(recover::kv_recover).with_state(dumps))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/history", get(watch::history))
        .route("/v1/discover", get(discover::page))
        .merge(dashboard::routes())
        .merge(members::routes())
        .merge(pick::routes())
        .merge(operations::routes())
        .merge(of_an_indexer)
        .merge(parts.hints.clone().map(hints::routes).unwrap_or_default());
    serving(more, OPENAPI_LISTS, parts)
}

/// Reads a body of `/v1/query`: what is taken is JSON.
#[cfg(any(test, feature = "checks"))]
pub(crate) fn check_query(body: &[u8]) {
    let taken = query::read(body, 1 << 20, &mut kvplane_catalog::Question::default()).is_ok();
    assert!(!taken || serde_json::from_slice::<serde_json::Value>(body).is_ok(), "taken, and not JSON");
}

/// The pages that say how the process is, and nothing about prompts.
pub(crate) fn pages(parts: Parts) -> Router {
    serving(Router::new(), "only GET /healthz, /readyz, /metrics and /v1/status are served here", parts)
}

/// `listed` names what there is, in answers to unknown paths.
fn serving(more: Router<Parts>, listed: &'static str, parts: Parts) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/v1/status", get(status_page))
        .merge(more)
        .method_not_allowed_fallback(async move |method: Method, path: MatchedPath| {
            let path = path.as_str();
            let message = format!("{path} takes {}, not {method}", table::methods_of(path));
            ApiError(PublicError::new(ErrorCode::MethodNotAllowed, message).with_next(listed))
        })
        .fallback(async move |uri: Uri| ApiError(no_such_path(uri.path(), listed)))
        .layer(from_fn_with_state(parts.edge.clone(), intake::bound_bodies))
        .layer(from_fn_with_state(parts.access.gate(Port::Http), guard_pages))
        .layer(from_fn(intake::mark_busy))
        .with_state(parts)
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(
    State(readiness): State<Arc<Readiness>>,
    State(plane): State<Arc<Plane>>,
    caller: Option<Extension<Caller>>,
    query: Pairs,
) -> Result<Response, ApiError> {
    let mut given = Parameters::read(query, &[])?;
    let strict = given.flag("strict", &[])?.unwrap_or(false);
    given.finish()?;
    let read = move || (readiness.check(&plane, strict), Publishers::of(&plane));
    let (verdict, publishers) = off_the_workers(read).await?;
    let code = if verdict.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !caller.is_some_and(|Extension(caller)| caller.roles.include(Role::Read)) {
        // Which engines there are is for those who may read.
        return Ok((code, Json(json!({"ready": verdict.ready}))).into_response());
    }
    let body = json!({"ready": verdict.ready, "reasons": verdict.reasons, "publishers": publishers});
    Ok((code, Json(body)).into_response())
}

async fn metrics_page(State(page): State<Arc<MetricsPage>>, query: Pairs) -> Result<Response, ApiError> {
    let mut given = Parameters::read(query, &[])?;
    let detail = given.text("detail", &[])?.map(|name| detail(&name)).transpose()?;
    given.finish()?;
    let page = off_the_workers(move || page.read(detail)).await?.map_err(|error| {
        ApiError(PublicError::new(ErrorCode::Internal, format!("metrics cannot be written: {error}")))
    })?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], page).into_response())
}

fn detail(name: &str) -> Result<Detail, PublicError> {
    let known = Detail::ALL.into_iter().find(|detail| detail.as_str() == name);
    known.ok_or_else(|| PublicError::field("detail", "must be stream, engine or fleet"))
}

async fn status_page(
    State(page): State<Arc<StatusPage>>,
    query: Pairs,
) -> Result<Json<status::PlaneStatus>, ApiError> {
    let mut given = Parameters::read(query, &[])?;
    let after = given.text("after", &[])?;
    let limit = given.text("limit", &[])?.map(|text| status::limit(&text)).transpose()?;
    given.finish()?;
    off_the_workers(move || page.read(after.as_deref(), limit)).await.map(Json)
}

/// Reads what may have to wait for a stream: not on a thread that serves others.
async fn off_the_workers<R: Send + 'static>(
    read: impl FnOnce() -> R + Send + 'static,
) -> Result<R, ApiError> {
    let failed = |_| ApiError(PublicError::new(ErrorCode::Internal, "the page could not be made"));
    tokio::task::spawn_blocking(read).await.map_err(failed)
}

/// What is said of a path that nothing is served under.
fn no_such_path(path: &str, listed: &'static str) -> PublicError {
    /// Longer ones are not repeated whole.
    const SHOWN: usize = 100;
    let shown: String = path.chars().take(SHOWN).collect();
    PublicError::new(ErrorCode::NotFound, format!("there is no path {shown:?}")).with_next(listed)
}
