//! Both servers, started and stopped together.

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Trust;
use kvplane_ingest::Plane;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tracing::error;

use crate::front::{Front, FrontCounters};
use crate::grpc;
use crate::http;
use crate::readiness::Readiness;
use crate::smg::{Mergers, SmgService, SubscribeTo, own_calls};

/// How the servers behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// Trust levels whose state is given out by protocols that cannot carry a flag.
    pub credit: Vec<Trust>,
    /// After this `/readyz` says yes even if an engine was never heard.
    pub ready_deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credit: vec![Trust::Exact, Trust::Lower, Trust::Unverified],
            ready_deadline: Duration::from_secs(30),
        }
    }
}

/// What both servers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plane: Arc<Plane>,
    pub(crate) options: Options,
    pub(crate) readiness: Readiness,
    pub(crate) mergers: Mergers,
    /// What each front counts, by engine.
    pub(crate) fronts: parking_lot::Mutex<Vec<(String, Arc<FrontCounters>)>>,
    pub(crate) stop: CancellationToken,
}

/// A front of one engine.
#[derive(Debug)]
pub struct FrontPlan {
    /// The engine.
    pub engine: String,
    /// Its own gRPC server, ready to be called.
    pub front: Front,
    /// Where the front listens.
    pub listener: TcpListener,
}

/// The servers.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    fronts: Vec<FrontPlan>,
}

impl Service {
    /// Servers over a plane.
    pub fn new(plane: Arc<Plane>, options: Options) -> Self {
        let readiness = Readiness::new(options.ready_deadline);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            plane,
            options,
            readiness,
            mergers: Mergers::default(),
            fronts: parking_lot::Mutex::default(),
            stop,
        });
        Self { shared, fronts: Vec::new() }
    }

    /// Adds a front.
    #[must_use]
    pub fn with_front(mut self, front: FrontPlan) -> Self {
        self.shared.fronts.lock().push((front.engine.clone(), front.front.counters()));
        self.fronts.push(front);
        self
    }

    /// Serves until `stop` is cancelled, then ends every subscription with a status and waits for connections to close.
    pub async fn run(self, http: TcpListener, grpc: TcpListener, stop: CancellationToken) {
        let shared = self.shared;
        let ends = shared.stop.clone();
        let watch = async {
            stop.cancelled().await;
            ends.cancel();
        };
        let http = axum::serve(http, http::router(shared.clone()))
            .with_graceful_shutdown(shared.stop.clone().cancelled_owned());
        let grpc_server = grpc::server(&shared);
        let incoming = TcpIncoming::from(grpc).with_nodelay(Some(true));
        let grpc = grpc_server.serve_with_incoming_shutdown(incoming, shared.stop.clone().cancelled_owned());
        let fronts = self.fronts.into_iter().map(|plan| run_front(plan, &shared));
        let fronts = futures::future::join_all(fronts.collect::<Vec<_>>());
        let (http, grpc, _, ()) =
            tokio::join!(std::future::IntoFuture::into_future(http), grpc, fronts, watch);
        if let Err(error) = http {
            error!(%error, "HTTP server failed");
        }
        if let Err(error) = grpc {
            error!(%error, "gRPC server failed");
        }
    }
}

/// Runs a front on a thread of its own. A call passes through two connections; with both on one thread, no message has
/// to wake another.
fn run_front(plan: FrontPlan, shared: &Arc<Shared>) -> impl Future<Output = ()> + use<> {
    let FrontPlan { engine, front, listener } = plan;
    let kind = shared.plane.engine(&engine).map(|engine| engine.spec.kind);
    let events = SmgService::new(shared.clone(), SubscribeTo::Engine(engine));
    let stop = shared.stop.clone();
    let run = move || -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = listener.into_std()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            if let Some(kind) = kind {
                let own = own_calls(kind, events, front.upstream());
                front.run(listener, stop, own).await;
            }
            Ok(())
        })
    };
    async move {
        let (ended, end) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("kvp-front".to_owned()).spawn(move || {
            if let Err(error) = run() {
                error!(%error, "a front cannot run");
            }
            let _ = ended.send(());
        });
        match thread {
            Ok(_) => drop(end.await),
            Err(error) => error!(%error, "a front cannot run"),
        }
    }
}
