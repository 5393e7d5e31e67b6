//! The gRPC server.

mod admin;
mod encode;
mod everything;
mod follow;
mod intake;
mod plane;
mod query;
mod routing;
mod scan;
mod text;

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use kvplane_access::{Port, guard_calls};
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::SglangSchedulerServer;
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::TokenSpeedSchedulerServer;
use kvplane_proto::engines::trtllm::server::trtllm_service_server::TrtllmServiceServer;
use kvplane_proto::engines::vllm::server::vllm_engine_server::VllmEngineServer;
use kvplane_proto::inferencecache::server::inference_cache_server::InferenceCacheServer;
use kvplane_proto::kvplane::v1::server::admin_server::AdminServer;
use kvplane_proto::kvplane::v1::server::plane_server::PlaneServer;
use kvplane_proto::kvplane::v1::server::routing_server::RoutingServer;
use tonic::Status;
use tonic::server::NamedService as _;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tracing::error;

use crate::hints::{self, Bounded, HintsService};
use crate::parts::Parts;

/// What the decoder takes. Each method has its own, smaller limit in `intake`.
const MAX_MESSAGE: usize = usize::MAX;
/// Headers of one call.
const MAX_HEADERS: u32 = 16 << 10;

/// All services on one port.
pub(crate) fn server(parts: &Parts) -> Router {
    let (mut health, health_service) = tonic_health::server::health_reporter();
    let hints = parts.hints.clone();
    let gives_hints = hints.is_some();
    let stop = parts.stop.clone();
    kvplane_runtime::spawn("gRPC health", async move {
        health.set_serving::<PlaneServer<plane::PlaneService>>().await;
        health.set_serving::<AdminServer<admin::AdminService>>().await;
        health.set_serving::<RoutingServer<routing::RoutingService>>().await;
        if gives_hints {
            health.set_serving::<InferenceCacheServer<HintsService>>().await;
        }
        stop.cancelled().await;
        // Watchers learn it, and their calls end: a stop waits for calls.
        let named = [
            "",
            PlaneServer::<plane::PlaneService>::NAME,
            AdminServer::<admin::AdminService>::NAME,
            RoutingServer::<routing::RoutingService>::NAME,
            InferenceCacheServer::<HintsService>::NAME,
        ];
        for name in named {
            health.set_service_status(name, ServingStatus::NotServing).await;
            health.clear_service_status(name).await;
        }
    });
    let hints = hints.map(|hints| {
        let service = InferenceCacheServer::new(HintsService::new(parts.stop.clone(), hints.clone()));
        Bounded::new(service.max_decoding_message_size(hints::MAX_MESSAGE), hints)
    });
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(kvplane_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    let reflection = reflection.inspect_err(|error| error!(%error, "no gRPC reflection")).ok();
    let smg = parts.smg.clone();
    let admin = admin::AdminService::new(parts.operations.clone(), parts.stop.clone());
    let mut routes = Routes::new(health_service);
    if let Some(reflection) = reflection {
        routes = routes.add_service(reflection);
    }
    if let Some(hints) = hints {
        routes = routes.add_service(hints);
    }
    let plane = PlaneServer::new(plane::PlaneService::new(parts.asker.clone(), parts.stop.clone()));
    let routing = RoutingServer::new(routing::RoutingService {
        asker: parts.asker.clone(),
        routing: parts.routing.clone(),
        stop: parts.stop.clone(),
    });
    let routes = routes
        .add_service(routing.max_decoding_message_size(MAX_MESSAGE))
        .add_service(plane.max_decoding_message_size(MAX_MESSAGE))
        .add_service(AdminServer::new(admin))
        .add_service(VllmEngineServer::new(smg.clone()))
        .add_service(SglangSchedulerServer::new(smg.clone()))
        .add_service(TokenSpeedSchedulerServer::new(smg.clone()))
        .add_service(TrtllmServiceServer::new(smg))
        .into_axum_router();
    let routes = routes.layer(map_response(name_unknown_calls));
    let gate = parts.access.gate(Port::Grpc);
    let guarded = routes.layer(from_fn_with_state(gate, guard_calls));
    let bounding = intake::Bounding {
        edge: parts.edge.clone(),
        max_tokens: parts.asker.max_tokens,
        hints: parts.hints.clone(),
    };
    let bounded = guarded.layer(from_fn_with_state(Arc::new(bounding), intake::bound_calls));
    Server::builder()
        .max_concurrent_streams(Some(parts.edge.bounds.streams_per_connection))
        .http2_max_header_list_size(Some(MAX_HEADERS))
        // A subscriber behind a dead link is noticed and let go.
        .http2_keepalive_interval(Some(parts.edge.bounds.ping_every))
        .http2_keepalive_timeout(Some(parts.edge.bounds.ping_timeout))
        .add_routes(bounded.into())
}

/// A call that is not there has a status, and no words: gives it some.
async fn name_unknown_calls(mut response: Response) -> Response {
    const WORDS: HeaderValue = HeaderValue::from_static(
        "unknown call; gRPC reflection and docs/reference/protocol.md list the calls of kvplane",
    );
    let headers = response.headers_mut();
    let unknown = headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "12");
    if unknown && !headers.contains_key(Status::GRPC_MESSAGE) {
        headers.insert(Status::GRPC_MESSAGE, WORDS);
    }
    response
}
