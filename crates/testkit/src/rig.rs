//! A plane and its servers on free ports.

use std::collections::BTreeMap;
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

use crate::DEADLINE;
use crate::engine::Engine;
use crate::subscriber::Subscriber;

/// A plane and its servers, which can be closed and come back on their ports.
#[derive(Debug)]
pub struct Rig {
    /// The plane.
    pub plane: Arc<Plane>,
    /// Its engines.
    pub fleet: Fleet,
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    options: PlaneOptions,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

/// An engine of a plane: by its place in the list, or by its name.
pub trait Which: Copy + std::fmt::Debug {
    /// The engine, if it is there.
    fn find(self, plane: &Plane) -> Option<Arc<Member>>;
}

impl Which for usize {
    fn find(self, plane: &Plane) -> Option<Arc<Member>> {
        plane.engines().get(self).cloned()
    }
}

impl Which for &str {
    fn find(self, plane: &Plane) -> Option<Arc<Member>> {
        plane.engine(self)
    }
}

/// A plane that soon gives up a replay that goes silent.
fn usual() -> PlaneOptions {
    PlaneOptions { replay_idle: Duration::from_millis(700), ..PlaneOptions::default() }
}

/// A plane that also soon gives up an engine that is out of reach.
pub fn hasty() -> PlaneOptions {
    PlaneOptions { down_after: Duration::from_millis(600), ..usual() }
}

/// A plane that gives up an engine that is out of reach even sooner.
pub fn soon_down() -> PlaneOptions {
    PlaneOptions {
        down_after: Duration::from_millis(300),
        replay_idle: Duration::from_secs(1),
        ..PlaneOptions::default()
    }
}

impl Rig {
    /// A plane over engines `e0`, `e1`, …
    pub async fn over(engines: &[&Engine]) -> Self {
        Self::with_options(engines, usual()).await
    }

    /// The same, with [`hasty`] options.
    pub async fn hasty(engines: &[&Engine]) -> Self {
        Self::with_options(engines, hasty()).await
    }

    /// A plane with these options over engines.
    pub async fn with_options(engines: &[&Engine], options: PlaneOptions) -> Self {
        Self::of_specs(specs(engines), options).await
    }

    /// A plane over engines, whose servers behave like this.
    pub async fn guarded(engines: &[&Engine], served: Options) -> Self {
        Self::serving(specs(engines), hasty(), served).await
    }

    /// A plane over engines that are described like this.
    pub async fn of_specs(specs: Vec<EngineSpec>, options: PlaneOptions) -> Self {
        Self::serving(specs, options, Options::default()).await
    }

    /// A plane over engines that are described like this, whose servers behave like this.
    pub async fn serving(specs: Vec<EngineSpec>, options: PlaneOptions, served: Options) -> Self {
        let plane = Plane::start(specs, &options).unwrap();
        let service = Service::new(plane.clone(), served);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut rig = Self { fleet: service.fleet(), plane, grpc: any, http: any, options, running: None };
        rig.run(service).await;
        rig
    }

    async fn run(&mut self, service: Service) {
        let (http, grpc) = (bind(self.http).await, bind(self.grpc).await);
        (self.http, self.grpc) = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        self.fleet = service.fleet();
        let stop = CancellationToken::new();
        let task = tokio::spawn(service.run(http, grpc, stop.clone()));
        self.running = Some((stop, task));
    }

    /// Closes the servers; the plane goes on reading its sources.
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

    /// Another plane at the same addresses, which knows nothing of what the old one knew.
    pub async fn replace(&mut self, engines: &[&Engine]) {
        self.close().await;
        let old = self.plane.clone();
        tokio::task::spawn_blocking(move || old.shutdown()).await.unwrap();
        self.plane = Plane::start(specs(engines), &self.options).unwrap();
        self.open().await;
    }

    /// Ends the plane and its servers.
    pub async fn stop(mut self) {
        if let Some((stop, _)) = self.running.take() {
            stop.cancel();
        }
        let plane = self.plane.clone();
        tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
    }

    /// Where gRPC is served, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Follows another plane under a name.
    pub async fn follow(&self, name: &str, other: &Rig) {
        self.link(name, other.grpc, None).await;
    }

    /// Follows the plane at an address under a name: one of its engines, or all.
    pub async fn link(&self, name: &str, address: SocketAddr, upstream: Option<&str>) {
        let mut config = config(name, EngineKind::Kvplane);
        config.grpc = Some(format!("http://{address}"));
        config.upstream = upstream.map(str::to_owned);
        self.fleet.add(vec![config.plan().unwrap()], Origin::Api).await.unwrap();
    }

    /// An engine, if it is there.
    pub fn member(&self, which: impl Which) -> Option<Arc<Member>> {
        which.find(&self.plane)
    }

    /// The first stream of an engine.
    pub fn stream(&self, which: impl Which) -> Arc<Stream> {
        self.member(which).unwrap().streams[0].clone()
    }

    /// Its status.
    pub fn status(&self, which: impl Which) -> StreamStatus {
        self.stream(which).status()
    }

    /// The status of a link.
    pub fn link_status(&self, which: impl Which) -> LinkStatus {
        self.member(which).unwrap().link.as_ref().unwrap().status()
    }

    /// Waits until the first stream of an engine is there and looks as wanted.
    pub async fn until(
        &self,
        which: impl Which,
        what: &str,
        wanted: impl Fn(&StreamStatus) -> bool,
    ) -> StreamStatus {
        self.until_rank(which, 0, what, wanted).await
    }

    /// Waits until a stream of an engine, by its place, is there and looks as wanted.
    pub async fn until_rank(
        &self,
        which: impl Which,
        rank: usize,
        what: &str,
        wanted: impl Fn(&StreamStatus) -> bool,
    ) -> StreamStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let member = self.member(which);
            let status = member.and_then(|member| Some(member.streams.get(rank)?.status()));
            if let Some(status) = status.clone().filter(|status| wanted(status)) {
                return status;
            }
            assert!(Instant::now() < deadline, "{which:?}, rank {rank}: never {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until an engine is live.
    pub async fn live(&self, which: impl Which) -> StreamStatus {
        self.until(which, "live", |status| status.continuity == Continuity::Live).await
    }

    /// Waits until the stream has the engine's last batch and is live.
    pub async fn heard(&self, which: impl Which, engine: &Engine) -> StreamStatus {
        let last = engine.next_sequence().checked_sub(1);
        let heard = |s: &StreamStatus| s.continuity == Continuity::Live && s.engine_sequence == last;
        self.until(which, "caught up", heard).await
    }

    /// The same, and compares what both hold, copies included.
    pub async fn caught_up(&self, which: impl Which, engine: &Engine) -> StreamStatus {
        let status = self.heard(which, engine).await;
        let (ours, truth) = (held(&self.stream(which)).await, engine.held());
        match status.trust.level() {
            Trust::Exact => assert_eq!(ours, truth, "exact"),
            Trust::Lower => assert!(ours.keys().all(|hash| truth.contains_key(hash)), "phantoms"),
            other => panic!("unexpected trust {other}"),
        }
        status
    }

    /// The same, and the state has to be exact.
    pub async fn exact(&self, which: impl Which, engine: &Engine) -> StreamStatus {
        let status = self.caught_up(which, engine).await;
        assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
        status
    }

    /// Waits until a stream here equals the one there, in everything that a subscriber sees.
    pub async fn equal(&self, id: &str, other: &Rig, there: &str, engine: &Engine) -> StreamStatus {
        let theirs = other.heard(there, engine).await;
        let ours = self
            .until(id, "equal", |ours| ours.cursor == theirs.cursor && ours.continuity == Continuity::Live)
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

    /// A client over gRPC.
    pub async fn client(&self) -> PlaneClient<Channel> {
        PlaneClient::new(Channel::from_shared(self.url()).unwrap().connect().await.unwrap())
    }

    /// A subscriber of the engine `e0`.
    pub async fn subscribe(&self, resume: Option<proto::Cursor>) -> Subscriber {
        self.subscribe_stream("e0", resume).await
    }

    /// A subscriber of an engine's rank 0.
    pub async fn subscribe_stream(&self, id: &str, resume: Option<proto::Cursor>) -> Subscriber {
        let selector = proto::StreamSelector { engine: id.to_owned(), rank: Some(0), resume };
        self.subscribe_to(vec![selector]).await
    }

    /// A subscriber of these streams; of none: of all.
    pub async fn subscribe_to(&self, streams: Vec<proto::StreamSelector>) -> Subscriber {
        // Small windows, so that a subscriber that does not read is soon felt by the server.
        let endpoint = Channel::from_shared(self.url()).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let channel = endpoint.connect().await.unwrap();
        let mut client = PlaneClient::new(channel);
        let request = proto::SubscribeRequest { streams, ..Default::default() };
        Subscriber::new(client.subscribe(request).await.unwrap().into_inner())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some((stop, _)) = &self.running {
            stop.cancel();
        }
        self.plane.shutdown();
    }
}

/// An engine's configuration without anything that may be left out.
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

/// What a stream holds: hash to copies.
pub async fn held(stream: &Stream) -> BTreeMap<u64, u64> {
    let snapshot = stream.snapshot().await;
    let blocks = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
    blocks.map(|block| (block.hash, block.holdings.iter().map(|h| u64::from(h.copies)).sum())).collect()
}

fn specs(engines: &[&Engine]) -> Vec<EngineSpec> {
    engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect()
}

/// Binds an address as soon as it is free.
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
