//! The gateway: what all its requests share, and what others tell it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State as Extracted};
use axum::{Router, response::Response};
use http::HeaderValue;
use kvplane_access::bounds::all_but_an_eighth;
use kvplane_access::{Gate, Peer};
use kvplane_inference::{Plane, Pool};
use kvplane_transport::edge::{Pulse, Shares};
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use crate::fleet::{Fleet, Upstream};
use crate::health::Standing;
use crate::limits::Meter;
use crate::options::Options;
use crate::retry::Budget;
use crate::stats::Stats;
use crate::tokenize::Tokenizers;
use crate::trace::{Exporter, Tracer, tracing};
use crate::{probe, serve};

/// What requests share.
pub(crate) struct Shared {
    pub(crate) plane: Arc<dyn Plane>,
    pub(crate) gate: Gate,
    pub(crate) options: Options,
    pub(crate) stats: Arc<Stats>,
    pub(crate) tokenizers: Tokenizers,
    pub(crate) budget: Mutex<Budget>,
    pub(crate) turn: AtomicUsize,
    /// Requests under way.
    pub(crate) places: Arc<Shares>,
    /// Bytes of bodies that are held.
    pub(crate) bodies: Arc<Shares>,
    /// By caller's name; of those that have limits.
    pub(crate) meters: std::collections::HashMap<String, Arc<Mutex<Meter>>>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    exporter: Mutex<Option<Exporter>>,
    /// Cancelled when the gateway is about to stop.
    pub(crate) stop: CancellationToken,
    fleet: RwLock<Arc<Fleet>>,
    origin: Instant,
    ids: AtomicU64,
    salt: u64,
}

impl Shared {
    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        self.fleet.read().clone()
    }

    /// Engines have said something new.
    pub(crate) fn refresh(&self) {
        let mut fleet = self.fleet.write();
        *fleet = Arc::new(fleet.refreshed());
    }

    /// Time since the gateway began, for what has no clock.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// A name for a request that has none.
    pub(crate) fn new_id(&self) -> String {
        format!("{:016x}-{:x}", self.salt, self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that two engines meet under: of 63 bits, and no other request's.
    pub(crate) fn room(&self) -> u64 {
        // SplitMix64: neighbours are far apart.
        let mut number = self
            .salt
            .wrapping_add(self.ids.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) >> 1
    }

    /// What counts a caller's requests and tokens, where it has limits.
    pub(crate) fn meter(&self, caller: &str) -> Option<&Arc<Mutex<Meter>>> {
        self.meters.get(caller)
    }
}

/// The gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("fleet", &self.shared.fleet()).finish_non_exhaustive()
    }
}

/// One endpoint, for those who look at the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRow {
    /// Its engine.
    pub engine: String,
    /// Its address.
    pub address: String,
    /// Whether it takes requests: `up`, `trial`, `open` or `down`.
    pub standing: &'static str,
    /// Requests that the gateway has there.
    pub in_flight: u64,
}

impl Gateway {
    /// A gateway over a plane, with no endpoint.
    pub fn new(plane: Arc<dyn Plane>, gate: Gate, options: Options, stop: CancellationToken) -> Self {
        let meters = options.callers.keys().map(|name| (name.clone(), Arc::default())).collect();
        let stats = Arc::default();
        let (tracer, exporter) = options.traces.as_ref().map(|traces| tracing(traces, &stats)).unzip();
        let shared = Shared {
            plane,
            gate,
            stats,
            tracer,
            exporter: Mutex::new(exporter),
            tokenizers: Tokenizers::default(),
            budget: Mutex::new(Budget::new(options.retry_budget)),
            turn: AtomicUsize::new(0),
            meters,
            places: Shares::new(options.max_requests, all_but_an_eighth(options.max_requests)),
            bodies: Shares::new(options.max_bodies, all_but_an_eighth(options.max_bodies)),
            stop,
            fleet: RwLock::default(),
            origin: kvplane_runtime::now(),
            ids: AtomicU64::new(0),
            salt: kvplane_runtime::unix_time().as_nanos() as u64,
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// From now on, requests are sent to these.
    pub fn set_upstreams(&self, upstreams: Vec<Upstream>) {
        let mut fleet = self.shared.fleet.write();
        *fleet = Arc::new(Fleet::new(upstreams, &fleet));
    }

    /// Probes endpoints until the gateway stops.
    pub async fn probe(&self) {
        probe::run(&self.shared).await;
    }

    /// Exports traces, where they go somewhere.
    pub async fn export(&self) {
        let exporter = self.shared.exporter.lock().take();
        if let Some(exporter) = exporter {
            exporter.run().await;
        }
    }

    /// What was counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// Bytes of bodies that are held.
    pub fn held_bytes(&self) -> u64 {
        self.shared.bodies.taken() as u64
    }

    /// The endpoints, as far as the decision knows them.
    pub fn pool(&self) -> Arc<Pool> {
        self.shared.fleet().pool.clone()
    }

    /// Every endpoint, as it is now.
    pub fn endpoints(&self) -> Vec<EndpointRow> {
        let now = self.shared.now();
        let fleet = self.shared.fleet();
        let row = |member: &crate::fleet::Member| EndpointRow {
            engine: member.upstream.endpoint.engine.clone().unwrap_or_default(),
            address: member.upstream.endpoint.address.to_string(),
            standing: member.state.standing(now).as_str(),
            in_flight: member.state.in_flight.load(Ordering::Relaxed) as u64,
        };
        fleet.members.iter().map(row).collect()
    }

    /// Where endpoints can stand.
    pub fn standings() -> impl Iterator<Item = &'static str> {
        Standing::ALL.iter().map(|standing| standing.as_str())
    }

    /// The service, for a listener.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.shared.clone())
    }
}

async fn answer(
    Extracted(shared): Extracted<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
) -> Response<Body> {
    let busy = peer.pulse.as_ref().map(Pulse::enter);
    let mut response = serve::serve(&shared, peer, request, busy).await;
    if shared.stop.is_cancelled() {
        // The client is to come back on another connection, to somebody else.
        response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
