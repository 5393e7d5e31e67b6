//! A transparent gRPC front of one engine.
//!
//! ```text
//!  gateway ── h2c ──> Front ──┬── /<service>/SubscribeKvEvents, ── the handler that the caller passed in
//!                             │            FlushCache, StartProfile, StopProfile
//!                             └── anything else ── Upstream ──> the engine's own gRPC server (h2c or TLS)
//! ```
//!
//! Forwarding itself knows nothing of messages. It copies HTTP/2: request headers, data, trailers, response
//! headers, data, trailers; so metadata, `grpc-timeout`, compression and messages of any size pass as they
//! are, and a response that is nothing but trailers stays one. What it changes is what belongs to one hop:
//! `:scheme`, `:authority` (and `host`), and headers about the connection.
//!
//! How calls end, besides well:
//!
//! | what happens | what the other side sees |
//! |---|---|
//! | the client resets a call, or goes away | the engine's stream is reset, with the client's code |
//! | the engine resets a call | the client's stream is reset, with the engine's code |
//! | there is no engine's server behind it | a response of nothing but trailers, `UNIMPLEMENTED` |
//! | the engine cannot be reached | a response of nothing but trailers, `UNAVAILABLE` |
//! | the connection to the engine breaks during a call | `UNAVAILABLE` in trailers |
//!
//! While the past of the engine's stream is not known, copies of `Generate` calls are read for what the
//! engine reports as cached; see `evidence`.
//!
//! Where keys are configured, callers need a role, unless the front is open. What changes the engine needs
//! `admin` on an open front too. A token of ours is not passed on.
//!
//! Nothing is kept for later: a call that finds no connection waits for one dial, and is answered either way.
//! Both directions of a call are held back by flow control alone, so that a slow reader costs at most its
//! window.
//!
//! This crate answers no call itself: what is not forwarded goes to the handler that was passed in. It
//! changes no stream, except by evidence that the stream accepts.

mod body;
mod counters;
mod evidence;
mod link;
mod outage;
mod owned;
mod pump;
mod serve;
mod target;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use kvplane_access::{Bounds, Gate};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use body::UpstreamBody;
pub use counters::FrontCounters;
pub use evidence::{Budget, Evidence, Rejected};
pub use owned::OwnedCalls;
pub use target::{FrontError, check_upstream};
pub use upstream::{Upstream, UpstreamReset};

use target::Target;

/// The methods that a front answers itself, on the engine's own service only: gateways probe the services of
/// all engine kinds, and have to learn from the engine which of them it is. What changes the engine's cache
/// is seen by subscribers of its stream, and works also where the engine has no gRPC server.
const OWNED_METHODS: [&str; 4] = ["SubscribeKvEvents", "FlushCache", "StartProfile", "StopProfile"];

/// What a front stands before, and how it behaves.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// The engine's gRPC server: `http://host:port` or `https://host:port`. Without one, only what the front
    /// answers itself is answered.
    pub upstream: Option<Uri>,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<PathBuf>,
    /// The engine's own service, for example `vllm.grpc.engine.VllmEngine`.
    pub service: String,
    /// How long one dial may take: name, TCP, TLS, and the engine's HTTP/2 settings.
    pub connect_timeout: Duration,
    /// How long calls may go on after the front was stopped.
    pub grace: Duration,
}

impl FrontOptions {
    /// Options with the default times: 5 s for a dial, 10 s of grace.
    pub fn new(upstream: Uri, service: impl Into<String>) -> Self {
        Self { upstream: Some(upstream), ..Self::without_upstream(service) }
    }

    /// The same, before an engine that has no gRPC server.
    pub fn without_upstream(service: impl Into<String>) -> Self {
        Self {
            upstream: None,
            ca: None,
            service: service.into(),
            connect_timeout: Duration::from_secs(5),
            grace: Duration::from_secs(10),
        }
    }
}

/// A front, ready to be run.
#[derive(Debug)]
pub struct Front {
    upstream: Option<Upstream>,
    counters: Arc<FrontCounters>,
    service: String,
    owned_paths: [String; OWNED_METHODS.len()],
    grace: Duration,
    /// Asks who calls; absent: nobody is asked.
    gate: Option<Gate>,
    /// Only who would change the engine is asked.
    open: bool,
    bounds: Bounds,
    /// Listens to what the engine says about requests.
    evidence: Option<Arc<Evidence>>,
}

impl Front {
    /// Checks the options and reads the certificates. Dials nothing: an engine may start after its front.
    pub fn new(options: FrontOptions) -> Result<Self, FrontError> {
        let FrontOptions { upstream, ca, service, connect_timeout, grace } = options;
        if service.is_empty() || service.contains('/') {
            return Err(FrontError::Service(service));
        }
        let counters = Arc::new(FrontCounters::default());
        let target =
            upstream.map(|upstream| Target::new(&upstream, ca.as_deref(), connect_timeout)).transpose()?;
        let upstream = target.map(|target| Upstream::new(target, counters.clone()));
        let owned_paths = OWNED_METHODS.map(|method| format!("/{service}/{method}"));
        Ok(Self {
            upstream,
            counters,
            service,
            owned_paths,
            grace,
            gate: None,
            open: false,
            bounds: Bounds::default(),
            evidence: None,
        })
    }

    /// Bounds what clients may take.
    #[must_use]
    pub fn bounded(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Has callers asked who they are: where keys are configured everybody, else those who would change the
    /// engine.
    #[must_use]
    pub fn guarded(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Has what the engine says about requests listened to.
    #[must_use]
    pub fn listening(mut self, evidence: Option<Evidence>) -> Self {
        self.evidence = evidence.map(Arc::new);
        self
    }

    /// Calls may go on for this long after a stop.
    #[must_use]
    pub fn draining(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long calls may go on after a stop.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Opens a guarded front to everybody who does not change the engine, keys or not.
    #[must_use]
    pub fn opened(mut self) -> Self {
        self.open = true;
        self
    }

    /// The engine, if it has a server, for calls of our own. It shares the front's connections.
    pub fn upstream(&self) -> Option<Upstream> {
        self.upstream.clone()
    }

    /// The engine's own service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// What the front counts.
    pub fn counters(&self) -> Arc<FrontCounters> {
        self.counters.clone()
    }

    /// Serves until `stop` is cancelled. Then no connection and no call is accepted any more, calls may
    /// finish within the grace period, and what is left is cut off.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken, own: OwnedCalls) {
        serve::run(self, listener, stop, own).await;
    }
}

#[cfg(test)]
mod tests;
