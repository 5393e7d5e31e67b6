//! What the servers are put together from.
//!
//! A route or a service takes the parts that it needs and holds no others: with `State<Arc<Routing>>` on
//! HTTP, as fields of its own on gRPC. Nothing but the routers' composition sees all of them.

use std::sync::{Arc, OnceLock};

use axum::extract::FromRef;
use kvplane_access::{Access, Edge};
use kvplane_ingest::Plane;
use kvplane_kubernetes::Board;
use kvplane_report::Reports;
use tokio_util::sync::CancellationToken;

use crate::fleet::{Fleet, FrontLimits};
use crate::hints::Hints;
use crate::http::{IndexerCounters, MetricsPage, Overviews, StatusPage, Watching};
use crate::listeners::Doors;
use crate::ops::Operations;
use crate::questions::{Asker, Questions};
use crate::readiness::Readiness;
use crate::routing::Routing;
use crate::service::Options;
use crate::smg::SmgService;
use crate::value::Value;
use crate::watch::{History, Watch};

/// The parts. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) plane: Arc<Plane>,
    pub(crate) access: Arc<Access>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) asker: Arc<Asker>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) fleet: Fleet,
    /// The engines' own services, for calls that name their engine.
    pub(crate) smg: SmgService,
    pub(crate) doors: Arc<Doors>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) history: Arc<History>,
    pub(crate) watching: Watching,
    pub(crate) status: Arc<StatusPage>,
    pub(crate) metrics: Arc<MetricsPage>,
    /// Absent where no hints are given.
    pub(crate) hints: Option<Arc<Hints>>,
    /// Absent where the routes of an indexer are not counted.
    pub(crate) indexer_counters: Option<Arc<IndexerCounters>>,
    /// Empty where no endpoint picker is served.
    pub(crate) picker: Arc<OnceLock<kvplane_picker::Picker>>,
    /// Empty where no gateway is served.
    pub(crate) gateway: Arc<OnceLock<kvplane_gateway::Gateway>>,
    /// How sources of engines are.
    pub(crate) discovery: Board,
    /// Ends subscriptions and servers.
    pub(crate) stop: CancellationToken,
}

impl Parts {
    /// The parts of servers over a plane.
    pub(crate) fn new(plane: Arc<Plane>, options: &Options) -> Self {
        let stop = CancellationToken::new();
        let (access, edge) = (options.access.clone(), Arc::new(Edge::new(options.bounds.clone())));
        let value = Arc::new(Value::new(&plane.id().to_string()));
        let hints = options.hints.enabled.then(|| {
            Arc::new(Hints::new(plane.clone(), options.hints.clone(), value.clone(), options.prompts.clone()))
        });
        let asker = Arc::new(Asker {
            plane: plane.clone(),
            credit: options.credit.clone(),
            max_tokens: options.max_tokens,
            tokenize_timeout: options.tokenize_timeout,
            questions: Questions::default(),
            value,
            prompts: options.prompts.clone(),
            comparing: Arc::default(),
        });
        let routing: Arc<Routing> = Arc::default();
        let operations = Arc::new(Operations::new(plane.clone(), stop.clone()));
        let smg = SmgService::new(plane.clone(), &options.credit, operations.clone(), stop.clone());
        let limits = FrontLimits {
            access: access.clone(),
            bounds: options.bounds.clone(),
            drain_timeout: options.drain_timeout,
        };
        let fleet = Fleet::new(plane.clone(), smg.clone(), limits);
        let doors = Arc::new(Doors::new(access.clone(), fleet.clone()));
        let reports: Arc<Reports> = Arc::default();
        let watch: Arc<Watch> = Arc::default();
        let picker: Arc<OnceLock<_>> = Arc::default();
        let gateway: Arc<OnceLock<_>> = Arc::default();
        let indexer_counters: Option<Arc<IndexerCounters>> = options.indexer_metrics.then(Arc::default);
        let status = Arc::new(StatusPage {
            asker: asker.clone(),
            routing: routing.clone(),
            reports: reports.clone(),
            doors: doors.clone(),
            access: access.clone(),
            discovery: options.discovery.clone(),
        });
        let watching = Watching {
            plane: plane.clone(),
            watch: watch.clone(),
            overviews: Arc::new(Overviews::new(status.clone())),
            stop: stop.clone(),
        };
        let metrics = Arc::new(MetricsPage {
            asker: asker.clone(),
            routing: routing.clone(),
            operations: operations.clone(),
            fleet: fleet.clone(),
            watch,
            reports: reports.clone(),
            access: access.clone(),
            edge: edge.clone(),
            tls: options.tls.clone(),
            hints: hints.clone(),
            indexer_counters: indexer_counters.clone(),
            picker: picker.clone(),
            gateway: gateway.clone(),
            discovery: options.discovery.clone(),
            detail: options.metrics_detail,
            commit: options.commit,
        });
        let readiness = Arc::new(Readiness::new(options.ready_deadline, options.discovery.clone()));
        let history = Arc::default();
        Self {
            plane,
            access,
            edge,
            asker,
            routing,
            readiness,
            operations,
            fleet,
            smg,
            doors,
            reports,
            history,
            watching,
            status,
            metrics,
            hints,
            indexer_counters,
            picker,
            gateway,
            discovery: options.discovery.clone(),
            stop,
        }
    }
}

/// What routes may ask for with `State`.
macro_rules! given {
    ($($field:ident: $part:ty),* $(,)?) => {$(
        impl FromRef<Parts> for $part {
            fn from_ref(parts: &Parts) -> Self {
                parts.$field.clone()
            }
        }
    )*};
}

given! {
    plane: Arc<Plane>,
    asker: Arc<Asker>,
    routing: Arc<Routing>,
    readiness: Arc<Readiness>,
    operations: Arc<Operations>,
    fleet: Fleet,
    history: Arc<History>,
    watching: Watching,
    status: Arc<StatusPage>,
    metrics: Arc<MetricsPage>,
    discovery: Board,
}
