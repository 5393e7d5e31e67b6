//! Both servers, started and stopped together.

use std::sync::Arc;
use std::time::Duration;

use kvplane_access::{Access, Bounds, Door, Peer, Port, Tls};
use kvplane_core::Trust;
use kvplane_ingest::Plane;
use kvplane_picker::Picker;
use kvplane_report::Reports;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::engine_ids::EngineIds;
use crate::fleet::Fleet;
use crate::gateway::{self, GatewaySetup};
use crate::grpc;
use crate::hints::HintsOptions;
use crate::http;
use crate::parity;
use crate::parts::Parts;
use crate::picker::{self, Decider, PickerSetup};
use crate::routing::{links, loads};

/// How the servers behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// Trust levels whose state is given out by protocols that cannot carry a flag.
    pub credit: Vec<Trust>,
    /// The longest prompt that may be asked for.
    pub max_tokens: usize,
    /// How long the text of a decision may take to become ids, before a millisecond for every 4 KiB of it. Then
    /// the load decides.
    pub tokenize_timeout: Duration,
    /// After this `/readyz` says yes even if an engine was never heard.
    pub ready_deadline: Duration,
    /// How long calls may go on after a stop, those through fronts included.
    pub drain_timeout: Duration,
    /// Who may ask.
    pub access: Arc<Access>,
    /// TLS of both listeners.
    pub tls: Option<Arc<Tls>>,
    /// Hints for gateways.
    pub hints: HintsOptions,
    /// Models whose prompts may be given as text.
    pub prompts: kvplane_prompt::Prompts,
    /// What callers may take.
    pub bounds: Bounds,
    /// How finely `/metrics` tells streams apart; absent: as finely as fits.
    pub metrics_detail: Option<kvplane_metrics::Detail>,
    /// The routes of an indexer are counted under the names of Dynamo's.
    pub indexer_metrics: bool,
    /// The commit that the program was built from, for `kvplane_build_info`.
    pub commit: &'static str,
    /// What sources of engines say of themselves; empty where engines are listed.
    pub discovery: kvplane_kubernetes::Board,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credit: vec![Trust::Exact, Trust::Lower, Trust::Unverified],
            max_tokens: 1 << 20,
            tokenize_timeout: Duration::from_millis(50),
            ready_deadline: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            access: Arc::default(),
            tls: None,
            hints: HintsOptions::default(),
            prompts: kvplane_prompt::Prompts::default(),
            bounds: Bounds::default(),
            metrics_detail: None,
            indexer_metrics: false,
            commit: "unknown",
            discovery: kvplane_kubernetes::Board::default(),
        }
    }
}

/// The servers.
#[derive(Debug)]
pub struct Service {
    parts: Parts,
    tls: Option<Arc<Tls>>,
    picker: Option<PickerSetup>,
    gateway: Option<GatewaySetup>,
}

impl Service {
    /// Servers over a plane.
    pub fn new(plane: Arc<Plane>, options: Options) -> Self {
        Self { parts: Parts::new(plane, &options), tls: options.tls, picker: None, gateway: None }
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> Parts {
        self.parts.clone()
    }

    /// Serves an endpoint picker as well.
    #[must_use]
    pub fn with_picker(self, setup: PickerSetup) -> Self {
        let Parts { asker, routing, readiness, picker, .. } = &self.parts;
        let policy = setup.options.policy.clone();
        let decider = Decider::new(asker.clone(), routing.clone(), readiness.clone(), policy);
        // Servers run once.
        let _ = picker.set(Picker::new(Arc::new(decider), setup.options.clone(), setup.rules.clone()));
        Self { picker: Some(setup), ..self }
    }

    /// Serves a gateway as well.
    #[must_use]
    pub fn with_gateway(self, setup: GatewaySetup) -> Self {
        // Servers run once.
        let _ = self.parts.gateway.set(gateway::gateway(&self.parts, setup.options.clone()));
        Self { gateway: Some(setup), ..self }
    }

    /// The plane's engines, to be changed.
    pub fn fleet(&self) -> Fleet {
        self.parts.fleet.clone()
    }

    /// What is reported to others.
    pub fn reports(&self) -> Arc<Reports> {
        self.parts.reports.clone()
    }

    /// Serves health, readiness, status and metrics, and nothing else, until `stop` is cancelled.
    pub async fn run_pages(self, http: TcpListener, stop: CancellationToken) {
        let Self { parts, tls, .. } = self;
        parts.doors.note(&[("listen.http", &http)]);
        let door = Door::open(http, Port::Http, tls, parts.edge.http.clone());
        let pages = http::pages(parts).into_make_service_with_connect_info::<Peer>();
        if let Err(error) = axum::serve(door, pages).with_graceful_shutdown(stop.cancelled_owned()).await {
            error!(%error, "HTTP server failed");
        }
    }

    /// Serves until `stop` is cancelled, then ends every subscription with a status and waits for connections
    /// to close.
    pub async fn run(self, http: TcpListener, grpc: TcpListener, stop: CancellationToken) {
        let Self { parts, tls, picker, gateway } = self;
        let mut doors = vec![("listen.http", &http), ("listen.grpc", &grpc)];
        if let Some(setup) = &picker {
            doors.push(("picker.listen", &setup.listener));
            doors.extend(setup.health.iter().map(|health| ("picker.health", health)));
        }
        doors.extend(gateway.iter().map(|setup| ("gateway.listen", &setup.listener)));
        parts.doors.note(&doors);
        let fronting = async {
            if let (Some(setup), Some(gateway)) = (gateway, parts.gateway.get()) {
                Box::pin(gateway::run(setup, gateway.clone(), &parts)).await;
            }
        };
        let picking = async {
            if let (Some(setup), Some(picker)) = (picker, parts.picker.get()) {
                Box::pin(picker::run(setup, picker.clone(), parts.edge.clone(), parts.stop.clone())).await;
            }
        };
        let ends = parts.stop.clone();
        let watch = async {
            stop.cancelled().await;
            ends.cancel();
        };
        spawn_tasks(&parts);
        let stopped = || parts.stop.clone().cancelled_owned();
        let http = Door::open(http, Port::Http, tls.clone(), parts.edge.http.clone());
        let grpc = Door::open(grpc, Port::Grpc, tls, parts.edge.grpc.clone());
        let pages = http::router(parts.clone()).into_make_service_with_connect_info::<Peer>();
        let http = axum::serve(http, pages).with_graceful_shutdown(stopped());
        let grpc = grpc::server(&parts).serve_with_incoming_shutdown(grpc.incoming(), stopped());
        let (http, grpc, (), (), ()) =
            tokio::join!(std::future::IntoFuture::into_future(http), grpc, watch, picking, fronting);
        parts.fleet.fronts_ended().await;
        if let Err(error) = http {
            error!(%error, "HTTP server failed");
        }
        if let Err(error) = grpc {
            error!(%error, "gRPC server failed");
        }
    }
}

/// What goes on beside the servers, until they stop.
fn spawn_tasks(parts: &Parts) {
    let Parts { plane, asker, routing, history, hints, stop, .. } = parts;
    let sampling = history.clone().run(plane.clone(), asker.value.clone(), stop.clone());
    kvplane_runtime::spawn("sample history", sampling);
    if let Some(hints) = hints {
        kvplane_runtime::spawn("forget old hints", hints.clone().forget_old(stop.clone()));
    }
    if asker.prompts.asks_engines() {
        let engines = EngineIds::new(plane.clone(), tokio::runtime::Handle::current());
        asker.prompts.set_engines(Arc::new(engines));
    }
    if !asker.prompts.is_empty() {
        let comparing = parity::watch(asker.prompts.clone(), plane.clone(), stop.clone());
        kvplane_runtime::spawn("compare tokenizers", comparing);
    }
    let sharing = links::share(plane.clone(), routing.clone(), stop.clone());
    kvplane_runtime::spawn("share bookings", sharing);
    kvplane_runtime::spawn("read loads", loads::poll(plane.clone(), routing.clone(), stop.clone()));
}
