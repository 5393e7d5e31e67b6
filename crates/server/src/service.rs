//! Both servers, started and stopped together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Trust;
use kvplane_ingest::{Asking, Plane};
use kvplane_report::Reports;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tracing::error;

use crate::fleet::{Fleet, Parts};
use crate::grpc;
use crate::hints::{Hints, HintsOptions};
use crate::http;
use crate::readiness::Readiness;
use crate::smg::Mergers;

/// How the servers behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// Trust levels whose state is given out by protocols that cannot carry a flag.
    pub credit: Vec<Trust>,
    /// The longest prompt that may be asked for.
    pub max_tokens: usize,
    /// After this `/readyz` says yes even if an engine was never heard.
    pub ready_deadline: Duration,
    /// Hints for gateways.
    pub hints: HintsOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credit: vec![Trust::Exact, Trust::Lower, Trust::Unverified],
            max_tokens: 1 << 20,
            ready_deadline: Duration::from_secs(30),
            hints: HintsOptions::default(),
        }
    }
}

impl Options {
    /// What questions are bound by.
    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking { credit: &self.credit, max_tokens: self.max_tokens }
    }
}

/// What both servers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plane: Arc<Plane>,
    pub(crate) options: Options,
    pub(crate) readiness: Readiness,
    pub(crate) mergers: Mergers,
    pub(crate) fleet: Parts,
    pub(crate) reports: Arc<Reports>,
    /// Absent where no hints are given.
    pub(crate) hints: Option<Arc<Hints>>,
    /// Other indexers that somebody told us of.
    pub(crate) peers: parking_lot::Mutex<BTreeSet<String>>,
    pub(crate) stop: CancellationToken,
}

/// The servers.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// Servers over a plane.
    pub fn new(plane: Arc<Plane>, options: Options) -> Self {
        let readiness = Readiness::new(options.ready_deadline);
        let stop = CancellationToken::new();
        let hints = options.hints.enabled.then(|| Arc::new(Hints::new(plane.clone(), options.hints.clone())));
        let shared = Arc::new(Shared {
            plane,
            hints,
            options,
            readiness,
            mergers: Mergers::default(),
            fleet: Parts::default(),
            reports: Arc::default(),
            peers: parking_lot::Mutex::default(),
            stop,
        });
        Self { shared }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
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
        let pages = http::pages(self.shared);
        if let Err(error) = axum::serve(http, pages).with_graceful_shutdown(stop.cancelled_owned()).await {
            error!(%error, "HTTP server failed");
        }
    }

    /// Serves until `stop` is cancelled, then ends every subscription with a status and waits for connections to close.
    pub async fn run(self, http: TcpListener, grpc: TcpListener, stop: CancellationToken) {
        let shared = self.shared;
        let ends = shared.stop.clone();
        let watch = async {
            stop.cancelled().await;
            ends.cancel();
        };
        if let Some(hints) = &shared.hints {
            tokio::spawn(hints.clone().forget_old(shared.stop.clone()));
        }
        // Handlers that change something look at the caller's address.
        let pages = http::router(shared.clone()).into_make_service_with_connect_info::<SocketAddr>();
        let http = axum::serve(http, pages).with_graceful_shutdown(shared.stop.clone().cancelled_owned());
        let grpc_server = grpc::server(&shared);
        let incoming = TcpIncoming::from(grpc).with_nodelay(Some(true));
        let grpc = grpc_server.serve_with_incoming_shutdown(incoming, shared.stop.clone().cancelled_owned());
        let (http, grpc, ()) = tokio::join!(std::future::IntoFuture::into_future(http), grpc, watch);
        shared.fleet.fronts.ended().await;
        if let Err(error) = http {
            error!(%error, "HTTP server failed");
        }
        if let Err(error) = grpc {
            error!(%error, "gRPC server failed");
        }
    }
}
