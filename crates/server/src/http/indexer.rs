//! The routes that register instances with an indexer of Dynamo's kind. The JSON is Dynamo's: unknown fields
//! are ignored, a body that cannot be read is refused in text, and every other error is `{"error": "words"}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvplane_core::{Continuity, EngineKind, PublicError};
use kvplane_ingest::{DEFAULT_ROUTING_GROUP, Engine, Plane, RankSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::members::changing;
use crate::fleet::{Fleet, FleetError, Registration, WorkerId};
use crate::parts::Parts;

/// Addresses are shorter.
const MAX_ADDRESS: usize = 2048;
/// Names of models and groups are shorter: each is kept as often as there are ranks and indexes.
const MAX_NAME: usize = 1024;

pub(super) fn routes() -> Router<Parts> {
    Router::new()
        .route("/register", changing(post(register)))
        .route("/unregister", changing(post(unregister)))
        .route("/workers", get(workers))
        .route("/register_peer", changing(post(register_peer)))
        .route("/deregister_peer", changing(post(deregister_peer)))
        .route("/peers", get(peers))
        .route("/reopen_logs", changing(post(reopen_logs)))
        .route("/health", get(async || StatusCode::OK))
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RegisterRequest {
    instance_id: WorkerId,
    endpoint: String,
    model_name: String,
    block_size: u32,
    #[serde(default = "default_group")]
    routing_group: String,
    dp_rank: Option<u32>,
    replay_endpoint: Option<String>,
    /// kvplane's own: whose events these are, `vllm` (the default), `sglang`, `tokenspeed` or `trtllm`.
    kind: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct UnregisterRequest {
    instance_id: WorkerId,
    model_name: String,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PeerRequest {
    url: String,
}

fn default_group() -> String {
    DEFAULT_ROUTING_GROUP.to_owned()
}

type Body<T> = Result<Json<T>, JsonRejection>;

async fn register(State(fleet): State<Fleet>, body: Body<RegisterRequest>) -> Response {
    let Json(request) = match body {
        Ok(request) => request,
        // As text, with the status that its reason has: so does Dynamo's.
        Err(rejection) => return rejection.into_response(),
    };
    let kind = request.check().and_then(|()| published_kind(request.kind.as_deref()));
    let kind = match kind {
        Ok(kind) => kind,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, &message),
    };
    let registration = Registration {
        instance_id: request.instance_id.0,
        rank: request.dp_rank.unwrap_or(0),
        kind,
        model: request.model_name,
        routing_group: request.routing_group,
        block_size: request.block_size,
        events: request.endpoint,
        replay: request.replay_endpoint,
    };
    done(StatusCode::CREATED, fleet.register(registration).await)
}

impl RegisterRequest {
    fn check(&self) -> Result<(), String> {
        let replay = self.replay_endpoint.as_ref().map_or(0, String::len);
        for (name, length, max) in [
            ("model_name", self.model_name.len(), MAX_NAME),
            ("routing_group", self.routing_group.len(), MAX_NAME),
            ("endpoint", self.endpoint.len(), MAX_ADDRESS),
            ("replay_endpoint", replay, MAX_ADDRESS),
        ] {
            if length > max {
                return Err(too_long(name, length, max));
            }
        }
        Ok(())
    }
}

fn too_long(name: &str, length: usize, max: usize) -> String {
    format!("{name}: has {length} bytes, and may have {max}")
}

/// The kind of an instance; only those whose events are published can be registered.
fn published_kind(name: Option<&str>) -> Result<EngineKind, String> {
    let kind = name.map_or(Ok(EngineKind::Vllm), str::parse).map_err(|error| format!("kind: {error}"))?;
    match kind {
        EngineKind::Vllm | EngineKind::Sglang | EngineKind::Tokenspeed | EngineKind::Trtllm => Ok(kind),
        EngineKind::Grpc | EngineKind::Kvplane => {
            Err(format!("kind: engines of kind {kind} are added by POST /v1/engines"))
        }
    }
}

async fn unregister(State(fleet): State<Fleet>, body: Body<UnregisterRequest>) -> Response {
    let Json(request) = match body {
        Ok(request) => request,
        Err(rejection) => return rejection.into_response(),
    };
    let UnregisterRequest { instance_id, model_name, routing_group, dp_rank } = request;
    // A rank alone is meant only where the group is named too; that is how it was agreed upon there.
    let rank = dp_rank.filter(|_| routing_group.is_some());
    done(StatusCode::OK, fleet.unregister(instance_id.0, model_name, routing_group, rank).await)
}

/// There are no files to reopen: the log goes to the standard error.
async fn reopen_logs() -> Response {
    done(StatusCode::OK, Ok(()))
}

/// One instance, as these routes show it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IndexerWorker")]
pub(super) struct Worker {
    instance_id: u64,
    source: &'static str,
    status: Listening,
    model_name: String,
    routing_group: String,
    block_size: Option<u32>,
    endpoints: BTreeMap<u32, String>,
    listeners: BTreeMap<u32, Listener>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listener {
    endpoint: String,
    status: Listening,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'static str>,
}

/// Where a listener stands, in the peers' words. The worst is last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Listening {
    Active,
    /// A verdict is being asked for; answers do not count the stream.
    Paused,
    Pending,
    Failed,
}

impl Listening {
    /// All of them, with their names.
    pub(super) const ALL: [(Self, &str); 4] = [
        (Self::Active, "active"),
        (Self::Paused, "paused"),
        (Self::Pending, "pending"),
        (Self::Failed, "failed"),
    ];
}

impl From<Continuity> for Listening {
    fn from(continuity: Continuity) -> Self {
        match continuity {
            Continuity::Connecting => Self::Pending,
            Continuity::Recovering => Self::Paused,
            Continuity::Live => Self::Active,
            Continuity::Down => Self::Failed,
        }
    }
}

/// What is wanted of `/workers`.
#[derive(Debug, Deserialize)]
struct Wanted {
    model_name: Option<String>,
    routing_group: Option<String>,
}

async fn workers(State(plane): State<Arc<Plane>>, wanted: Result<Query<Wanted>, QueryRejection>) -> Response {
    let Query(Wanted { model_name: model, routing_group: group }) = match wanted {
        Ok(wanted) => wanted,
        Err(rejection) => return rejection.into_response(),
    };
    let is_wanted = |engine: &Engine| {
        model.as_ref().is_none_or(|model| *model == engine.spec.model)
            && group.as_ref().is_none_or(|group| *group == engine.spec.routing_group)
    };
    let engines = plane.engines();
    let wanted = engines.iter().filter(|engine| is_wanted(engine));
    let mut workers: Vec<Worker> = wanted.map(|engine| worker(engine)).collect();
    workers.sort_by_key(|worker| worker.instance_id);
    Json(workers).into_response()
}

fn worker(engine: &Engine) -> Worker {
    let mut listeners = BTreeMap::new();
    let mut block_size = engine.spec.block_size;
    for (RankSpec { rank, events, .. }, stream) in engine.spec.source.ranks().into_iter().zip(&engine.streams)
    {
        let status = stream.glance();
        block_size = block_size.or(status.block_size);
        let down = status.continuity == Continuity::Down;
        let endpoint = events.address().to_owned();
        let last_error = down.then_some("the engine is out of reach");
        listeners.insert(rank, Listener { endpoint, status: status.continuity.into(), last_error });
    }
    Worker {
        instance_id: engine.spec.worker_id,
        source: "zmq",
        status: listeners.values().map(|listener| listener.status).max().unwrap_or(Listening::Pending),
        model_name: engine.spec.model.clone(),
        routing_group: engine.spec.routing_group.clone(),
        block_size,
        endpoints: listeners.iter().map(|(rank, listener)| (*rank, listener.endpoint.clone())).collect(),
        listeners,
    }
}

/// Peers are asked where a stream's past is not known: see `kvplane_ingest`'s `peers`.
async fn register_peer(State(plane): State<Arc<Plane>>, body: Body<PeerRequest>) -> Response {
    match body {
        Ok(Json(PeerRequest { url })) if url.len() > MAX_ADDRESS => {
            refuse(StatusCode::BAD_REQUEST, &too_long("url", url.len(), MAX_ADDRESS))
        }
        Ok(Json(PeerRequest { url })) => match plane.peers().add(url) {
            Ok(()) => done(StatusCode::CREATED, Ok(())),
            Err(error) => refuse(StatusCode::TOO_MANY_REQUESTS, &error.to_string()),
        },
        Err(rejection) => rejection.into_response(),
    }
}

async fn deregister_peer(State(plane): State<Arc<Plane>>, body: Body<PeerRequest>) -> Response {
    match body {
        Ok(Json(PeerRequest { url })) if plane.peers().remove(&url) => done(StatusCode::OK, Ok(())),
        Ok(_) => refuse(StatusCode::NOT_FOUND, "there is no such peer"),
        Err(rejection) => rejection.into_response(),
    }
}

async fn peers(State(plane): State<Arc<Plane>>) -> Json<Vec<String>> {
    let mut urls = plane.peers().urls();
    urls.sort();
    Json(urls)
}

fn done(success: StatusCode, result: Result<(), FleetError>) -> Response {
    match result {
        Ok(()) => (success, Json(json!({"status": "ok"}))).into_response(),
        Err(error) => {
            let error = PublicError::from(error);
            let status = StatusCode::from_u16(error.code.http_status());
            refuse(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &error.in_full())
        }
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": message}))).into_response()
}
