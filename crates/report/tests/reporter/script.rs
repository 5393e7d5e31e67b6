//! A server of inference-cache's contract that does what a test says: restarts, stalls, refuses, forgets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_proto::inferencecache::server::inference_cache_server::{InferenceCache, InferenceCacheServer};
use kvplane_proto::inferencecache::{self as proto, Ack, CacheEvent, CacheStateUpdate};
use parking_lot::Mutex;
use socket2::Socket;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_server::HealthServer;

use crate::health::{HealthScript, Streams};

/// Far beyond anything that should take: only a hang reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// What was said, in the order in which it was applied.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    Update(CacheStateUpdate),
    Event(CacheEvent),
}

impl Said {
    fn event(&self) -> Option<&CacheEvent> {
        if let Self::Event(event) = self { Some(event) } else { None }
    }

    fn update(&self) -> Option<&CacheStateUpdate> {
        if let Self::Update(update) = self { Some(update) } else { None }
    }
}

/// What a call gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Takes,
    /// `accepted = false`, and nothing is applied.
    Refuses,
    /// An error, before anything is applied.
    Fails,
    /// An error that says that adds will never be taken.
    RejectsAdds,
    /// An error, after it was applied.
    LosesAnswers,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// (adapter, hash) to tokens, tier, and the tenant who said so last.
    pub(crate) entries: BTreeMap<(String, u64), (i32, i32, String)>,
    pub(crate) has_stats: bool,
    pub(crate) log: Vec<Said>,
    pub(crate) calls: usize,
    pub(crate) in_flight: usize,
    pub(crate) mood: Mood,
}

impl State {
    pub(crate) fn hashes(&self) -> Vec<u64> {
        self.entries.keys().map(|(_, hash)| *hash).collect()
    }

    pub(crate) fn events(&self) -> Vec<&CacheEvent> {
        self.log.iter().filter_map(Said::event).collect()
    }

    pub(crate) fn updates(&self) -> Vec<&CacheStateUpdate> {
        self.log.iter().filter_map(Said::update).collect()
    }

    fn apply(&mut self, said: Said) {
        match &said {
            Said::Update(update) => {
                for prefix in &update.prefixes {
                    let hash = u64::from_be_bytes(prefix.prefix_hash[..].try_into().unwrap());
                    let said = (prefix.token_count, prefix.tier, update.tenant_id.clone());
                    self.entries.insert((prefix.adapter_id.clone(), hash), said);
                }
                self.has_stats |= update.stats.is_some();
            }
            Said::Event(event) => match event.r#type() {
                Type::AllCleared => {
                    self.entries.retain(|_, (_, _, tenant)| *tenant != event.tenant_id);
                    self.has_stats = false;
                }
                Type::PrefixEvicted => {
                    let evicted = u64::from_be_bytes(event.prefix_hash[..].try_into().unwrap());
                    let adapter = &event.adapter_id;
                    self.entries.retain(|(held, hash), _| {
                        *hash != evicted || !(adapter.is_empty() || held == adapter)
                    });
                }
                other => panic!("{other:?} is never sent"),
            },
        }
        self.log.push(said);
    }
}

/// What all lives of the server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    changed: Notify,
    held: watch::Sender<bool>,
}

impl Shared {
    async fn take(&self, said: Said) -> Result<Response<Ack>, Status> {
        {
            let mut state = self.state.lock();
            state.calls += 1;
            state.in_flight += 1;
        }
        self.changed.notify_waiters();
        let _leaves = Leaves(self);
        let mut held = self.held.subscribe();
        // The sender lives as long as this does.
        held.wait_for(|held| !held).await.map_err(|_| Status::internal("the test is over"))?;
        let mut state = self.state.lock();
        match state.mood {
            Mood::Refuses => return Ok(Response::new(Ack { accepted: false, reason_code: "NO".into() })),
            Mood::Fails => return Err(Status::unavailable("not now")),
            Mood::RejectsAdds if said.update().is_some() => return Err(Status::invalid_argument("never")),
            Mood::Takes | Mood::RejectsAdds | Mood::LosesAnswers => state.apply(said),
        }
        if state.mood == Mood::LosesAnswers {
            return Err(Status::internal("lost"));
        }
        Ok(Response::new(Ack { accepted: true, reason_code: String::new() }))
    }
}

/// A call that ends, in whatever way.
struct Leaves<'s>(&'s Shared);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
        self.0.changed.notify_waiters();
    }
}

#[tonic::async_trait]
impl InferenceCache for Service {
    type StreamCacheEventsStream = tokio_stream::Empty<Result<CacheEvent, Status>>;
    type StreamMetricsStream = tokio_stream::Empty<Result<proto::Metric, Status>>;

    async fn report_cache_state(
        &self,
        request: Request<Streaming<CacheStateUpdate>>,
    ) -> Result<Response<Ack>, Status> {
        assert!(request.metadata().contains_key("grpc-timeout"), "a call without a deadline");
        let mut updates = request.into_inner();
        let update = updates.message().await?.ok_or_else(|| Status::invalid_argument("nothing"))?;
        let answer = self.0.take(Said::Update(update)).await?;
        assert!(updates.message().await?.is_none(), "one message a call");
        Ok(answer)
    }

    async fn publish_event(&self, request: Request<CacheEvent>) -> Result<Response<Ack>, Status> {
        assert!(request.metadata().contains_key("grpc-timeout"), "a call without a deadline");
        self.0.take(Said::Event(request.into_inner())).await
    }

    async fn render_template(
        &self,
        _: Request<proto::RenderTemplateRequest>,
    ) -> Result<Response<proto::RenderTemplateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_route(
        &self,
        _: Request<proto::LookupRouteRequest>,
    ) -> Result<Response<proto::LookupRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<proto::LookupPdRouteRequest>,
    ) -> Result<Response<proto::LookupPdRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_cache_state(
        &self,
        _: Request<proto::GetCacheStateRequest>,
    ) -> Result<Response<proto::GetCacheStateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_cache_events(
        &self,
        _: Request<proto::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_metrics(
        &self,
        _: Request<proto::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[derive(Debug, Clone)]
struct Service(Arc<Shared>);

/// A server at one address, through all of its lives.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: Arc<Streams>,
    tls: Option<(String, String)>,
    has_health: bool,
    /// Keeps the address while nobody listens.
    _place: Socket,
    /// Its tasks and sockets end with it.
    life: Option<Runtime>,
}

impl Script {
    pub(crate) fn start() -> Self {
        Self::of(true, None)
    }

    pub(crate) fn of(has_health: bool, tls: Option<(String, String)>) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Notify::new(),
            held: watch::Sender::new(false),
        });
        let place = bind(([127, 0, 0, 1], 0).into());
        let address = place.local_addr().unwrap().as_socket().unwrap();
        let mut script =
            Self { address, _place: place, shared, health: Arc::default(), tls, has_health, life: None };
        script.come_back();
        script
    }

    /// Listens again; what it knew is as it was left.
    pub(crate) fn come_back(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = bind(self.address);
        listener.listen(64).unwrap();
        let listener = TcpListener::from(listener);
        let (shared, health) = (self.shared.clone(), self.health.clone());
        let (tls, has_health) = (self.tls.clone(), self.has_health);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let mut server = Server::builder();
            if let Some((certificate, key)) = tls {
                let identity = Identity::from_pem(certificate, key);
                server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
            }
            // A server without it answers UNIMPLEMENTED.
            let health = has_health.then(|| HealthServer::new(HealthScript(health)));
            server
                .add_optional_service(health)
                .add_service(InferenceCacheServer::new(Service(shared)))
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .unwrap();
        });
        self.life = Some(runtime);
    }

    /// Is gone, with all of its connections.
    pub(crate) fn go_away(&mut self) {
        if let Some(life) = self.life.take() {
            // A runtime may not be waited for on another one's thread.
            std::thread::spawn(move || life.shutdown_timeout(DEADLINE)).join().unwrap();
        }
    }

    /// Loses what it knew.
    pub(crate) fn forget(&self) {
        let mut state = self.shared.state.lock();
        state.entries.clear();
        state.has_stats = false;
    }

    pub(crate) fn restart(&mut self) {
        self.go_away();
        self.forget();
        self.come_back();
    }

    /// Calls stay unanswered until this is lifted.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.held.send_replace(held);
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        self.shared.state.lock().mood = mood;
    }

    /// Waits until its state is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let wait = async {
            loop {
                let changed = self.shared.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                if is_so(&self.shared.state.lock()) {
                    return;
                }
                changed.await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, wait).await;
        assert!(waited.is_ok(), "never {what}: {:?}", self.shared.state.lock().entries);
    }

    /// Waits until it holds these hashes, and no others.
    pub(crate) async fn until_holds(&self, hashes: &[u64]) {
        self.until(&format!("holds {hashes:?}"), |state| state.hashes() == hashes).await;
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.go_away();
    }
}

/// Several sockets of this process may have the address, and nobody else's is given it.
fn bind(address: SocketAddr) -> Socket {
    let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}
