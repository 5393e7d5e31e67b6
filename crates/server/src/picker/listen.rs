//! The picker's listeners: external processing, and health on a port of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use futures::StreamExt as _;
use kvplane_access::{Door, Edge, OtherListener, Port, Tls};
use kvplane_picker::{Options, Paced, Picker, Rules};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{error, info};

use super::bound::{Bounding, bound_streams};

/// Streams on one connection: an Envoy has a connection per worker, and a stream per request.
const STREAMS: u32 = 8_192;
/// What may be on its way to the picker, of one request and of all on one connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Once no request came for so long, gateways have noticed that the picker is about to stop.
const QUIET: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a picker is started with.
#[derive(Debug)]
pub struct PickerSetup {
    /// Where external processing is served.
    pub listener: TcpListener,
    /// Where health is served without TLS, besides.
    pub health: Option<TcpListener>,
    /// TLS of the first.
    pub tls: Option<Arc<Tls>>,
    /// How it behaves.
    pub options: Options,
    /// Endpoints, priorities and models: see `kvplane_picker::Rules`.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// How long requests are taken after a stop.
    pub drain: Duration,
}

/// Serves until `stop` is cancelled, and a little longer: gateways take a moment to notice.
pub(crate) async fn run(setup: PickerSetup, picker: Picker, edge: Arc<Edge>, stop: CancellationToken) {
    let PickerSetup { listener, health, tls, drain, options, .. } = setup;
    info!(endpoints = picker.pool().endpoints().len(), "picker serving");
    let end = CancellationToken::new();
    let bounding = Arc::new(Bounding::new(edge.clone(), options.max_bodies));
    let serve = |name, listener, tls, routes| {
        serve(name, listener, tls, routes, edge.clone(), bounding.clone(), end.clone())
    };
    let processing = serve("picker", listener, tls, picker.routes(stop.clone()));
    let health = async {
        if let Some(listener) = health {
            serve("picker_health", listener, None, picker.health_routes(stop.clone())).await;
        }
    };
    let closing = async {
        stop.cancelled().await;
        drained(&picker, drain).await;
        end.cancel();
    };
    tokio::join!(processing, health, closing);
}

async fn serve(
    name: &'static str,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    routes: Routes,
    edge: Arc<Edge>,
    bounding: Arc<Bounding>,
    end: CancellationToken,
) {
    let connections = edge.bounds.picker();
    edge.note(OtherListener { name, connections: connections.clone(), tls: tls.clone() });
    let door = Door::open(listener, Port::Grpc, tls, connections);
    let routes = routes.into_axum_router().layer(from_fn_with_state(bounding, bound_streams));
    let server = Server::builder()
        .max_concurrent_streams(Some(STREAMS))
        .initial_stream_window_size(Some(STREAM_WINDOW))
        .initial_connection_window_size(Some(CONNECTION_WINDOW))
        .http2_keepalive_interval(Some(edge.bounds.ping_every))
        .http2_keepalive_timeout(Some(edge.bounds.ping_timeout))
        .add_routes(routes.into());
    let incoming = door.incoming().map(|connection| connection.map(Paced::new));
    if let Err(error) = server.serve_with_incoming_shutdown(incoming, end.cancelled_owned()).await {
        error!(%error, "picker failed");
    }
}

/// Waits until gateways have noticed: no stream is open, and none came for a while.
async fn drained(picker: &Picker, at_most: Duration) {
    let stats = picker.stats();
    if stats.all_streams() == 0 {
        return;
    }
    let (mut last, mut since) = (stats.all_streams(), kvplane_runtime::now());
    let begun = since;
    while begun.elapsed() < at_most {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = stats.all_streams();
        if now != last || stats.open_streams() > 0 {
            (last, since) = (now, kvplane_runtime::now());
        } else if since.elapsed() >= QUIET {
            return;
        }
    }
}
