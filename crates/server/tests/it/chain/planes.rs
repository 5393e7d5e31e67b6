//! Planes that follow each other, over simulated engines and real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::{Continuity, EngineKind, Trust};
use kvplane_ingest::{
    Engine as Member, EngineSpec, LinkStatus, Origin, Plane, PlaneOptions, Stream, StreamStatus,
};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_server::{DuplicatesName, EngineConfig, Fleet, Options, Service};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::rig::{DEADLINE, Engine, Subscriber};

/// A plane and its servers, which can be closed and come back on their ports.
pub struct Site {
    pub plane: Arc<Plane>,
    pub fleet: Fleet,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

pub fn hasty() -> PlaneOptions {
    PlaneOptions {
        replay_idle: Duration::from_millis(700),
        down_after: Duration::from_millis(600),
        ..PlaneOptions::default()
    }
}

impl Site {
    /// A plane over engines `e0`, `e1`, …
    pub async fn over(engines: &[&Engine]) -> Self {
        Self::with(engines, hasty()).await
    }

    pub async fn with(engines: &[&Engine], options: PlaneOptions) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::at(any, any, specs(engines), options).await
    }

    async fn at(http: SocketAddr, grpc: SocketAddr, specs: Vec<EngineSpec>, options: PlaneOptions) -> Self {
        Self::serving(http, grpc, specs, options, Options::default()).await
    }

    /// A plane over engines, whose servers behave like this.
    pub async fn guarded(engines: &[&Engine], served: Options) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serving(any, any, specs(engines), hasty(), served).await
    }

    async fn serving(
        http: SocketAddr,
        grpc: SocketAddr,
        specs: Vec<EngineSpec>,
        options: PlaneOptions,
        served: Options,
    ) -> Self {
        let plane = Plane::start(specs, &options).unwrap();
        let service = Service::new(plane.clone(), served);
        let mut site = Self { fleet: service.fleet(), plane, grpc, http, running: None };
        site.run(service).await;
        site
    }

    async fn run(&mut self, service: Service) {
        let (http, grpc) = (bind(self.http).await, bind(self.grpc).await);
        (self.http, self.grpc) = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        self.fleet = service.fleet();
        let stop = CancellationToken::new();
        let task = tokio::spawn(service.run(http, grpc, stop.clone()));
        self.running = Some((stop, task));
    }

    /// Closes the servers; the plane goes on hearing.
    pub async fn close(&mut self) {
        if let Some((stop, mut task)) = self.running.take() {
            stop.cancel();
            if tokio::time::timeout(Duration::from_secs(2), &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    /// Opens them again.
    pub async fn open(&mut self) {
        self.run(Service::new(self.plane.clone(), Options::default())).await;
    }

    /// Another plane at the same address, which knows nothing of what the old one knew.
    pub async fn replace(&mut self, engines: &[&Engine]) {
        self.close().await;
        let old = self.plane.clone();
        tokio::task::spawn_blocking(move || old.shutdown()).await.unwrap();
        let new = Self::at(self.http, self.grpc, specs(engines), hasty()).await;
        *self = new;
    }

    /// Follows another plane under a name.
    pub async fn follow(&self, name: &str, other: &Site) {
        self.link(name, other.grpc, None).await;
    }

    pub async fn link(&self, name: &str, address: SocketAddr, upstream: Option<&str>) {
        let mut config = config(name, EngineKind::Kvplane);
        config.grpc = Some(format!("http://{address}"));
        config.upstream = upstream.map(str::to_owned);
        self.fleet.add(vec![config.plan().unwrap()], Origin::Api).await.unwrap();
    }

    pub fn member(&self, id: &str) -> Option<Arc<Member>> {
        self.plane.engine(id)
    }

    pub fn stream(&self, id: &str) -> Arc<Stream> {
        self.member(id).unwrap().streams[0].clone()
    }

    pub fn link_status(&self, id: &str) -> LinkStatus {
        self.member(id).unwrap().link.as_ref().unwrap().status()
    }

    /// Waits until a stream is there and looks as wanted.
    pub async fn until(&self, id: &str, what: &str, wanted: impl Fn(&StreamStatus) -> bool) -> StreamStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = self.member(id).map(|member| member.streams[0].status());
            if let Some(status) = status.clone().filter(|status| wanted(status)) {
                return status;
            }
            assert!(Instant::now() < deadline, "{id} never {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the engine's last batch is known here, and trusted.
    pub async fn heard(&self, id: &str, engine: &Engine) -> StreamStatus {
        let last = engine.next_sequence().checked_sub(1);
        let heard =
            |status: &StreamStatus| status.continuity == Continuity::Live && status.engine_sequence == last;
        self.until(id, "heard", heard).await
    }

    /// Waits until a stream here is what it is there, in everything that a subscriber sees.
    pub async fn equal(&self, id: &str, other: &Site, there: &str, engine: &Engine) -> StreamStatus {
        let theirs = other.heard(there, engine).await;
        let ours = self
            .until(id, "the same", |ours| ours.cursor == theirs.cursor && ours.continuity == Continuity::Live)
            .await;
        assert_eq!(ours.digest, theirs.digest);
        assert_eq!(ours.trust, theirs.trust);
        assert_eq!(ours.blocks, theirs.blocks);
        assert_eq!(ours.known_from, theirs.known_from);
        assert_eq!(ours.engine_sequence, theirs.engine_sequence);
        assert_eq!(ours.block_size, theirs.block_size);
        let (ours_now, theirs_now) = (self.stream(id).snapshot().await, other.stream(there).snapshot().await);
        assert_eq!(ours_now.last_event_id, theirs_now.last_event_id);
        assert_eq!(ours_now.digest, theirs_now.digest);
        ours
    }

    pub async fn client(&self) -> PlaneClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        PlaneClient::new(endpoint.connect().await.unwrap())
    }

    /// A subscriber of one stream.
    pub async fn subscribe(&self, id: &str, resume: Option<proto::Cursor>) -> Subscriber {
        let selector = proto::StreamSelector { engine: id.to_owned(), rank: Some(0), resume };
        let request = proto::SubscribeRequest { streams: vec![selector], ..Default::default() };
        Subscriber::new(self.client().await.subscribe(request).await.unwrap().into_inner())
    }

    /// Who holds a prompt, by (engine, tokens, trust).
    pub async fn ask(&self, prompt: &[u32]) -> Vec<(String, u64, Trust)> {
        let request = proto::QueryRequest {
            model: "sim".to_owned(),
            token_ids: prompt.to_vec(),
            all: true,
            ..proto::QueryRequest::default()
        };
        let answer = self.client().await.query(request).await.unwrap().into_inner();
        let level = |level: proto::TrustLevel| match level {
            proto::TrustLevel::Exact => Trust::Exact,
            proto::TrustLevel::Lower => Trust::Lower,
            other => panic!("{other:?}"),
        };
        answer
            .matches
            .iter()
            .map(|found| (found.engine.clone(), found.tokens, level(found.trust())))
            .collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some((stop, _)) = &self.running {
            stop.cancel();
        }
        self.plane.shutdown();
    }
}

fn specs(engines: &[&Engine]) -> Vec<EngineSpec> {
    engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect()
}

pub fn config(id: &str, kind: EngineKind) -> EngineConfig {
    EngineConfig {
        max_silence: None,
        id: id.to_owned(),
        kind,
        model: String::new(),
        events: None,
        replay: None,
        event_buffer: None,
        topic: String::new(),
        ranks: None,
        discover: None,
        block_size: None,
        worker_id: None,
        tenant: None,
        duplicates: DuplicatesName::default(),
        eagle: false,
        device_only: false,
        offload_chunk: None,
        http: None,
        service: None,
        grpc: None,
        upstream: None,
        grpc_ca: None,
        front_open: false,
        events_open: false,
        token_file: None,
        api_key_file: None,
        front: None,
        republish: None,
    }
}

async fn bind(address: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "never {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
