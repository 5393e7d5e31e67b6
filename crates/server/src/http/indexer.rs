//! The routes by which an indexer of Dynamo's kind is told of its instances. Their JSON is theirs: unknown fields are
//! ignored, and an error is `{"error": "words"}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvplane_core::{Continuity, PublicError};
use kvplane_ingest::{DEFAULT_ROUTING_GROUP, Engine, RankSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::members::changing;
use super::parameters::{Pairs, Parameters};
use crate::fleet::{Fleet, FleetError, Registration};
use crate::service::Shared;

/// Peers are a handful of other indexers.
const MAX_PEERS: usize = 1024;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/register", changing(post(register)))
        .route("/unregister", changing(post(unregister)))
        .route("/workers", get(workers))
        .route("/register_peer", changing(post(register_peer)))
        .route("/deregister_peer", changing(post(deregister_peer)))
        .route("/peers", get(peers))
        .route("/health", get(async || StatusCode::OK))
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RegisterRequest {
    instance_id: u64,
    endpoint: String,
    model_name: String,
    block_size: u32,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
    replay_endpoint: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct UnregisterRequest {
    instance_id: u64,
    model_name: String,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PeerRequest {
    url: String,
}

type Body<T> = Result<Json<T>, JsonRejection>;

async fn register(State(shared): State<Arc<Shared>>, body: Body<RegisterRequest>) -> Response {
    let Json(request) = match body {
        Ok(request) => request,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    let registration = Registration {
        instance_id: request.instance_id,
        rank: request.dp_rank.unwrap_or(0),
        model: request.model_name,
        routing_group: request.routing_group.unwrap_or_else(|| DEFAULT_ROUTING_GROUP.to_owned()),
        block_size: request.block_size,
        events: request.endpoint,
        replay: request.replay_endpoint.filter(|address| !address.is_empty()),
    };
    done(StatusCode::CREATED, Fleet::new(shared).register(registration).await)
}

async fn unregister(State(shared): State<Arc<Shared>>, body: Body<UnregisterRequest>) -> Response {
    let Json(request) = match body {
        Ok(request) => request,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    let UnregisterRequest { instance_id, model_name, routing_group, dp_rank } = request;
    // A rank alone is meant only where the group is named too; that is how it was agreed upon there.
    let rank = dp_rank.filter(|_| routing_group.is_some());
    let fleet = Fleet::new(shared);
    done(StatusCode::OK, fleet.unregister(instance_id, model_name, routing_group, rank).await)
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
enum Listening {
    Active,
    /// A verdict is being asked for; answers do not count the stream.
    Paused,
    Pending,
    Failed,
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

async fn workers(State(shared): State<Arc<Shared>>, query: Pairs) -> Response {
    let wanted = Parameters::read(query, &[])
        .and_then(|mut given| Ok((given.text("model_name", &[])?, given.text("routing_group", &[])?)));
    let (model, group) = match wanted {
        Ok(wanted) => wanted,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.in_full()),
    };
    let is_wanted = |engine: &Engine| {
        model.as_ref().is_none_or(|model| *model == engine.spec.model)
            && group.as_ref().is_none_or(|group| *group == engine.spec.routing_group)
    };
    let engines = shared.plane.engines();
    let wanted = engines.iter().filter(|engine| is_wanted(engine));
    let mut workers: Vec<Worker> = wanted.map(|engine| worker(engine)).collect();
    workers.sort_by_key(|worker| worker.instance_id);
    Json(workers).into_response()
}

fn worker(engine: &Engine) -> Worker {
    let mut listeners = BTreeMap::new();
    let mut block_size = engine.spec.block_size;
    for (RankSpec { rank, events, .. }, stream) in engine.spec.ranks.iter().zip(&engine.streams) {
        let status = stream.glance();
        block_size = block_size.or(status.block_size);
        let down = status.continuity == Continuity::Down;
        let endpoint = events.address().to_owned();
        let last_error = down.then_some("the engine is out of reach");
        listeners.insert(*rank, Listener { endpoint, status: status.continuity.into(), last_error });
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

/// Peers are only remembered. They exist there so that a new indexer can copy what another one knows; kvplane asks the
/// engines themselves.
async fn register_peer(State(shared): State<Arc<Shared>>, body: Body<PeerRequest>) -> Response {
    match body {
        Ok(Json(PeerRequest { url })) => {
            let mut peers = shared.peers.lock();
            if peers.len() >= MAX_PEERS && !peers.contains(&url) {
                let message = format!("there may be {MAX_PEERS} peers at most");
                return refuse(StatusCode::TOO_MANY_REQUESTS, &message);
            }
            peers.insert(url);
            done(StatusCode::CREATED, Ok(()))
        }
        Err(rejection) => refuse(rejection.status(), &rejection.body_text()),
    }
}

async fn deregister_peer(State(shared): State<Arc<Shared>>, body: Body<PeerRequest>) -> Response {
    match body {
        Ok(Json(PeerRequest { url })) if shared.peers.lock().remove(&url) => done(StatusCode::OK, Ok(())),
        Ok(_) => refuse(StatusCode::NOT_FOUND, "there is no such peer"),
        Err(rejection) => refuse(rejection.status(), &rejection.body_text()),
    }
}

async fn peers(State(shared): State<Arc<Shared>>) -> Json<Vec<String>> {
    Json(shared.peers.lock().iter().cloned().collect())
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
