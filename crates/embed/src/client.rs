//! A copy of another plane's streams in this process, and answers from it.
//!
//! ```text
//!   plane ──Subscribe──> link (thread kvp-link) ──> mirrors ──┬─> index ──> Client::ask, by any thread
//!                                                             └─> news ───> Changes (thread kvp-client)
//! ```
//!
//! The copy is a plane of its own that follows the other one: what is checked, what is credited and how a
//! prompt is looked up is what a plane does. While the other plane is out of reach its streams are not
//! credited.

use std::sync::Arc;
use std::time::Duration;

use kvplane_catalog::{Answer, Match, Question};
use kvplane_core::{EngineId, EngineKind, ErrorCode, PublicError, Trust};
use kvplane_ingest::{
    EngineSpec, LinkSpec, LinkState, LinkStatus, Origin, Plane, PlaneOptions, Source, Stream,
};
use kvplane_proto::Bearer;
use parking_lot::RwLock;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;

use crate::changes::Changes;
use crate::index::asking;
use crate::picks::{Calls, Routes};

/// The name of the other plane here. Its engines are called `plane/NAME` behind the scenes.
const LINK: &str = "plane";

/// How often it is looked whether everything is here, by somebody who waits for that. It depends on the link
/// and on every stream, and none of them says when it was the last.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Bytes of the ids of a prompt: some 16 million tokens.
const MAX_IDS: usize = 64 << 20;

/// How long tasks may take to end when the client is closed.
const GRACE: Duration = Duration::from_secs(5);

/// Which plane is followed, and what counts.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The plane's gRPC address: `host:port`, `http://host:port` or `https://host:port`.
    pub address: String,
    /// The token that the plane wants.
    pub bearer: Bearer,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// The only engine that is wanted; absent: all.
    pub engine: Option<String>,
    /// What a stream's word must be worth to be credited.
    pub credit: Vec<Trust>,
    /// Out of reach for longer than this is `down`.
    pub down_after: Duration,
    /// The longest time without proof that an engine is there, from the engine to here; absent: 2 s.
    pub max_silence: Option<Duration>,
}

/// Follows a plane until it is closed. Any thread may call it.
#[derive(Debug)]
pub struct Client {
    /// Gone once it is closed.
    open: RwLock<Option<Arc<Open>>>,
}

/// A stream that is followed.
#[derive(Debug)]
pub struct Followed {
    /// The engine's name at the plane.
    pub engine: String,
    /// The model that it serves.
    pub model: String,
    /// The copy.
    pub stream: Arc<Stream>,
}

/// What is alive while the client is open, and while a call on it runs.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) plane: Arc<Plane>,
    pub(crate) link: Arc<LinkState>,
    pub(crate) stop: CancellationToken,
    pub(crate) handle: Handle,
    /// Taken when it ends.
    runtime: Option<Runtime>,
    pub(crate) routes: Routes,
    pub(crate) calls: Calls,
    address: String,
    credit: Vec<Trust>,
    /// The process whose threads follow the plane.
    process: u32,
}

impl Client {
    /// Follows the plane from now on. It need not be there yet.
    pub fn start(settings: ClientSettings) -> Result<Self, PublicError> {
        let ClientSettings { address, bearer, ca, engine, credit, down_after, max_silence } = settings;
        let url = url(&address)?;
        if ca.is_some() && !url.starts_with("https://") {
            return Err(PublicError::field("ca", "is for an address that begins with https://"));
        }
        let spec = LinkSpec { url, ca, token_file: None, bearer, engine, max_silence };
        let unusable = || PublicError::field("ca", "has no certificates that can be used");
        if !spec.trusts_somebody() {
            return Err(unusable());
        }
        let endpoint =
            spec.endpoint().map_err(|_| if spec.ca.is_some() { unusable() } else { not_an_address() })?;
        let bearer = spec.bearer.clone();
        let defect = |error: &dyn std::fmt::Display| {
            PublicError::new(ErrorCode::Internal, format!("the client cannot run: {error}"))
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kvp-client")
            .enable_all()
            .build()
            .map_err(|error| defect(&error))?;
        let entered = runtime.enter();
        let options = PlaneOptions { down_after, ..PlaneOptions::default() };
        let plane = Plane::start(Vec::new(), &options).map_err(|error| defect(&error))?;
        plane.add(vec![linked(spec)], Origin::Config).map_err(|error| defect(&error))?;
        let called = InterceptedService::new(endpoint.connect_lazy(), bearer);
        let (routes, calls) = (Routes::new(called.clone()), Calls::new(called));
        drop(entered);
        let link = plane.engine(LINK).and_then(|engine| engine.link.clone());
        let link = link.ok_or_else(|| defect(&"it has no link"))?;
        let open = Open {
            plane,
            link,
            routes,
            calls: calls.max_decoding_message_size(MAX_IDS),
            stop: CancellationToken::new(),
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            address,
            credit,
            process: std::process::id(),
        };
        Ok(Self { open: RwLock::new(Some(Arc::new(open))) })
    }

    /// Asks every stream of the question's model, and hands the answer to `read`. Nothing is waited for: the
    /// answer is of what is here, and a stream that may not be as it is at the plane is not credited.
    pub fn ask<R>(&self, question: &Question, read: impl FnOnce(&Answer<'_>) -> R) -> Result<R, PublicError> {
        let open = self.open()?;
        let catalog = open.plane.catalog();
        let known = question.model.as_deref().is_some_and(|model| catalog.model(model).is_some());
        if !known && !open.link.status().connected {
            // Which models there are is not known either.
            return Err(PublicError::new(
                ErrorCode::Unavailable,
                format!("the plane at {} is not followed", open.address),
            ));
        }
        question.ask(catalog, asking(&open.credit), read)
    }

    /// How the way to the plane is.
    pub fn link(&self) -> Result<LinkStatus, PublicError> {
        Ok(self.open()?.link.status())
    }

    /// The streams that are followed.
    pub fn streams(&self) -> Result<Vec<Followed>, PublicError> {
        let engines = self.open()?.plane.engines();
        let streams = engines.iter().flat_map(|engine| {
            engine.streams.iter().map(|stream| Followed {
                engine: name_there(engine.spec.id.as_str()).to_owned(),
                model: engine.spec.model.clone(),
                stream: stream.clone(),
            })
        });
        Ok(streams.collect())
    }

    /// Whether all that the plane had when it was asked is here, what follows is being sent, and every stream
    /// that is live there is live here.
    pub fn is_ready(&self) -> Result<bool, PublicError> {
        Ok(self.open()?.is_ready())
    }

    /// Waits until it is ready, or until the time is over. Says whether it is.
    pub fn wait_ready(&self, timeout: Option<Duration>) -> Result<bool, PublicError> {
        let deadline = timeout.and_then(|timeout| kvplane_runtime::now().checked_add(timeout));
        loop {
            if self.is_ready()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(kvplane_runtime::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            std::thread::sleep(left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
        }
    }

    /// What happens from now on: to the link, and to the streams if they are wanted.
    pub fn changes(&self, streams: bool) -> Result<Changes, PublicError> {
        Ok(Changes::start(&self.open()?, streams))
    }

    /// Follows nothing any more; readers that wait for changes learn that there will be none. A second time
    /// changes nothing.
    pub fn close(&self) {
        let Some(open) = self.open.write().take() else { return };
        if open.is_here() {
            open.stop.cancel();
            open.plane.shutdown();
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.open.read().is_none()
    }

    pub(crate) fn open(&self) -> Result<Arc<Open>, PublicError> {
        let open = self.open.read().clone();
        let open = open.ok_or_else(|| gone("the client was closed"))?;
        // Threads do not come along into a fork: what is here would never change again, and look well.
        if open.is_here() { Ok(open) } else { Err(gone("the client belongs to the process that was forked")) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl Open {
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn is_ready(&self) -> bool {
        // The link first: once it is connected, the streams are those that the plane has.
        self.link.status().connected && self.plane.streams().all(|stream| stream.is_caught_up())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.is_here() {
            runtime.shutdown_timeout(GRACE);
        } else {
            // In a fork there is no thread that could end.
            std::mem::forget(runtime);
        }
    }
}

/// What the plane calls the engine of a match.
pub fn engine_of<'a>(found: &Match<'a>) -> &'a str {
    name_there(found.member.id.engine.as_str())
}

/// An engine's name at the plane.
pub(crate) fn name_there(engine: &str) -> &str {
    engine.strip_prefix(LINK).and_then(|rest| rest.strip_prefix('/')).unwrap_or(engine)
}

fn linked(spec: LinkSpec) -> EngineSpec {
    EngineSpec::new(EngineId::new(LINK), EngineKind::Kvplane, "", Source::Linked(spec))
}

fn url(address: &str) -> Result<String, PublicError> {
    let with_scheme = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let host = ["http://", "https://"].iter().find_map(|scheme| with_scheme.strip_prefix(scheme));
    let host = host.filter(|host| !host.is_empty());
    host.is_some().then_some(with_scheme).ok_or_else(not_an_address)
}

fn not_an_address() -> PublicError {
    PublicError::field("address", "must be like 127.0.0.1:50090 or https://plane.example:50090")
}

fn gone(message: &str) -> PublicError {
    PublicError::new(ErrorCode::ShuttingDown, message)
}
