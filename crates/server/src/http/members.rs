//! `/v1/engines`: which engines there are, and changing that.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Json, Router};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Origin;
use serde_json::{Value, json};

use super::status;
use crate::callers::on_this_machine;
use crate::error::ApiError;
use crate::fleet::{EngineConfig, Fleet, FleetError};
use crate::service::Shared;

/// An engine's description is some hundred bytes.
const MAX_BODY: usize = 64 << 10;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/engines", get(list).merge(changing(post(add))))
        .route("/v1/engines/{id}", changing(delete(remove)))
}

/// A route that changes the fleet: for callers on this machine only, and for small bodies.
pub(super) fn changing(route: MethodRouter<Arc<Shared>>) -> MethodRouter<Arc<Shared>> {
    route.layer(DefaultBodyLimit::max(MAX_BODY)).layer(from_fn(loopback_only))
}

/// Lets pass who connected from this machine.
async fn loopback_only(request: Request, next: Next) -> Response {
    if on_this_machine(peer(&request)) {
        return next.run(request).await;
    }
    let message = "engines are changed from this machine only: connect over loopback";
    ApiError(PublicError::new(ErrorCode::Forbidden, message)).into_response()
}

/// Where a request came from.
pub(super) fn peer(request: &Request) -> Option<SocketAddr> {
    request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer)
}

async fn list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let engines: Vec<_> = shared.plane.engines().iter().map(|engine| status::described(engine)).collect();
    Json(json!({ "engines": engines }))
}

async fn add(
    State(shared): State<Arc<Shared>>,
    described: Result<Json<EngineConfig>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(config) =
        described.map_err(|rejection| PublicError::new(ErrorCode::InvalidArgument, rejection.body_text()))?;
    let id = config.id.clone();
    let fleet = Fleet::new(shared);
    let plan = config.plan().map_err(|error| PublicError::from(FleetError::from(error)))?;
    fleet.add(vec![plan], Origin::Api).await.map_err(PublicError::from)?;
    let added = fleet.engine(&id).map_or(Value::Null, |engine| status::described(&engine));
    Ok((StatusCode::CREATED, Json(added)).into_response())
}

async fn remove(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    Fleet::new(shared).remove(&id).await.map_err(PublicError::from)?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use kvplane_ingest::{Plane, PlaneOptions};
    use tower_service::Service as _;

    use super::*;
    use crate::service::{Options, Service};

    /// What a caller at `peer` gets; `None` is a server that does not know its callers.
    async fn answer(router: &Router, peer: Option<&str>, method: &str, path: &str) -> StatusCode {
        let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
        }
        router.clone().call(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn only_callers_on_this_machine_change_engines() {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let router = super::super::router(Service::new(plane, Options::default()).shared());
        let changing = [
            ("POST", "/v1/engines"),
            ("DELETE", "/v1/engines/x"),
            ("POST", "/register"),
            ("POST", "/unregister"),
            ("POST", "/register_peer"),
            ("POST", "/deregister_peer"),
        ];
        for (method, path) in changing {
            for peer in ["127.0.0.1:5", "127.8.9.10:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
                let status = answer(&router, Some(peer), method, path).await;
                assert_ne!(status, StatusCode::FORBIDDEN, "{method} {path} from {peer}");
            }
            let strangers = ["10.0.0.1:5", "[2001:db8::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"];
            for peer in strangers.into_iter().map(Some).chain([None]) {
                let status = answer(&router, peer, method, path).await;
                assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path} from {peer:?}");
            }
        }
        for path in ["/v1/engines", "/workers", "/peers", "/health"] {
            assert_eq!(answer(&router, Some("10.0.0.1:5"), "GET", path).await, StatusCode::OK, "{path}");
        }
    }
}
