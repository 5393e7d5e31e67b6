//! Both servers, started and stopped together.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kvplane_access::Listener;
use kvplane_access::{Access, Port};
use kvplane_access::{Bounds, Edge};
use kvplane_access::{Door, Peer, Tls};
use kvplane_core::Trust;
use kvplane_ingest::Plane;
use kvplane_report::Reports;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::fleet::{Fleet, Parts};
use crate::grpc;
use crate::hints::{Hints, HintsOptions};
use crate::http;
use crate::ops::Operations;
use crate::parity;
use crate::picker::{self, PickerSetup};
use crate::questions::{Asker, Questions};
use crate::readiness::Readiness;
use crate::routing::Routing;
use crate::smg::Mergers;
use crate::value::Value;
use crate::watch::{History, Watch};

/// How the servers behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// Trust levels whose state is given out by protocols that cannot carry a flag.
    pub credit: Vec<Trust>,
    /// The longest prompt that may be asked for.
    pub max_tokens: usize,
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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credit: vec![Trust::Exact, Trust::Lower, Trust::Unverified],
            max_tokens: 1 << 20,
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
        }
    }
}

/// What both servers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plane: Arc<Plane>,
    pub(crate) options: Options,
    pub(crate) edge: Arc<Edge>,
    pub(crate) readiness: Readiness,
    pub(crate) mergers: Mergers,
    pub(crate) watch: Watch,
    pub(crate) history: Arc<History>,
    pub(crate) overviews: http::Overviews,
    pub(crate) fleet: Parts,
    /// Where the servers listen, once they do: the key that configures it, and the address.
    doors: OnceLock<Vec<(&'static str, SocketAddr)>>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) operations: Operations,
    pub(crate) asker: Arc<Asker>,
    pub(crate) routing: Routing,
    /// Absent where no hints are given.
    pub(crate) hints: Option<Arc<Hints>>,
    /// Absent where the routes of an indexer are not counted.
    pub(crate) indexer_counters: Option<Arc<http::IndexerCounters>>,
    pub(crate) stop: CancellationToken,
    /// Absent where no endpoint picker is served.
    pub(crate) picker: OnceLock<kvplane_picker::Picker>,
}

impl Shared {
    /// Every socket that others connect to.
    pub(crate) fn listeners(&self) -> Vec<Listener> {
        let keys = self.options.access.has_keys();
        let open = self.options.access.has_open_networks();
        let doors = self.doors.get().into_iter().flatten();
        let mut all: Vec<Listener> = doors
            .map(|(name, address)| {
                // Networks are open on purpose, and asked for no key.
                let opened = open && *name == "listen.http";
                Listener::new(*name, address.to_string(), keys && !opened, opened)
            })
            .collect();
        all.extend(self.fleet.listeners(keys));
        all
    }

    fn note_doors(&self, doors: &[(&'static str, &TcpListener)]) {
        let known = doors.iter().filter_map(|(name, door)| Some((*name, door.local_addr().ok()?)));
        // Servers run once.
        let _ = self.doors.set(known.collect());
    }
}

/// The servers.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    picker: Option<PickerSetup>,
}

impl Service {
    /// Servers over a plane.
    pub fn new(plane: Arc<Plane>, options: Options) -> Self {
        let readiness = Readiness::new(options.ready_deadline);
        let stop = CancellationToken::new();
        let value = Arc::new(Value::new(&plane.id().to_string()));
        let new_hints = || Arc::new(Hints::new(plane.clone(), options.hints.clone(), value.clone()));
        let hints = options.hints.enabled.then(new_hints);
        let asker = Asker {
            plane: plane.clone(),
            credit: options.credit.clone(),
            max_tokens: options.max_tokens,
            questions: Questions::default(),
            value,
            prompts: options.prompts.clone(),
            comparing: Arc::default(),
        };
        let shared = Arc::new(Shared {
            operations: Operations::new(plane.id().clone()),
            asker: Arc::new(asker),
            routing: Routing::default(),
            plane,
            hints,
            indexer_counters: options.indexer_metrics.then(Arc::default),
            edge: Arc::new(Edge::new(options.bounds.clone())),
            options,
            readiness,
            mergers: Mergers::default(),
            watch: Watch::default(),
            history: Arc::default(),
            overviews: http::Overviews::default(),
            fleet: Parts::default(),
            doors: OnceLock::new(),
            reports: Arc::default(),
            picker: OnceLock::new(),
            stop,
        });
        Self { shared, picker: None }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Serves an endpoint picker as well.
    #[must_use]
    pub fn with_picker(self, setup: PickerSetup) -> Self {
        let picker = picker::picker(&self.shared, &setup.options);
        // Servers run once.
        let _ = self.shared.picker.set(picker);
        Self { picker: Some(setup), ..self }
    }

    /// The plane's engines, to be changed.
    pub fn fleet(&self) -> Fleet {
        Fleet::new(self.shared.clone())
    }

    /// What is reported to others.
    pub fn reports(&self) -> Arc<Reports> {
        self.shared.reports.clone()
    }

    /// Serves health, readiness, status and metrics, and nothing else, until `stop` is cancelled.
    pub async fn run_pages(self, http: TcpListener, stop: CancellationToken) {
        self.shared.note_doors(&[("listen.http", &http)]);
        let connections = self.shared.edge.http.clone();
        let door = Door::open(http, Port::Http, self.shared.options.tls.clone(), connections);
        let pages = http::pages(self.shared).into_make_service_with_connect_info::<Peer>();
        if let Err(error) = axum::serve(door, pages).with_graceful_shutdown(stop.cancelled_owned()).await {
            error!(%error, "HTTP server failed");
        }
    }

    /// Serves until `stop` is cancelled, then ends every subscription with a status and waits for connections to close.
    pub async fn run(self, http: TcpListener, grpc: TcpListener, stop: CancellationToken) {
        let shared = self.shared;
        let mut doors = vec![("listen.http", &http), ("listen.grpc", &grpc)];
        if let Some(setup) = &self.picker {
            doors.push(("picker.listen", &setup.listener));
            doors.extend(setup.health.iter().map(|health| ("picker.health", health)));
        }
        shared.note_doors(&doors);
        let picking = async {
            if let (Some(setup), Some(picker)) = (self.picker, shared.picker.get()) {
                Box::pin(picker::run(setup, picker.clone(), shared.stop.clone())).await;
            }
        };
        let ends = shared.stop.clone();
        let watch = async {
            stop.cancelled().await;
            ends.cancel();
        };
        let (plane, value) = (shared.plane.clone(), shared.asker.value.clone());
        let sampling = shared.history.clone().run(plane, value, shared.stop.clone());
        kvplane_runtime::spawn("sample history", sampling);
        if let Some(hints) = &shared.hints {
            kvplane_runtime::spawn("forget old hints", hints.clone().forget_old(shared.stop.clone()));
        }
        if !shared.options.prompts.is_empty() {
            let (prompts, plane) = (shared.options.prompts.clone(), shared.plane.clone());
            kvplane_runtime::spawn("compare tokenizers", parity::watch(prompts, plane, shared.stop.clone()));
        }
        kvplane_runtime::spawn(
            "read loads",
            crate::routing::loads::poll(shared.clone(), shared.stop.clone()),
        );
        let tls = &shared.options.tls;
        let http = Door::open(http, Port::Http, tls.clone(), shared.edge.http.clone());
        let grpc = Door::open(grpc, Port::Grpc, tls.clone(), shared.edge.grpc.clone());
        let pages = http::router(shared.clone()).into_make_service_with_connect_info::<Peer>();
        let http = axum::serve(http, pages).with_graceful_shutdown(shared.stop.clone().cancelled_owned());
        let grpc_server = grpc::server(&shared);
        let grpc =
            grpc_server.serve_with_incoming_shutdown(grpc.incoming(), shared.stop.clone().cancelled_owned());
        let (http, grpc, (), ()) =
            tokio::join!(std::future::IntoFuture::into_future(http), grpc, watch, picking);
        shared.fleet.fronts.ended().await;
        if let Err(error) = http {
            error!(%error, "HTTP server failed");
        }
        if let Err(error) = grpc {
            error!(%error, "gRPC server failed");
        }
    }
}
