//! Simulated engines, a plane over them that can be restarted on its ports, and a plane that lies.

pub mod liar;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_client::{Client, Options, ReplicaView, StreamId};
use kvplane_core::{Continuity, EngineId, EngineKind, PlaceSeed, StateDigest, Trust};
use kvplane_ingest::{
    CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, Endpoint, EngineSpec, Origin, Plane, PlaneOptions,
    Published, Source,
};
use kvplane_server::Service;
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Far beyond anything that should take: only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_secs(40);

/// A simulated engine with a seeded load.
pub struct Engine {
    pub sim: SimHandle,
    load: Workload,
}

impl Engine {
    pub fn start(seed: u64) -> Self {
        let config =
            SimConfig { blocks: 96, seed, http: Some(([127, 0, 0, 1], 0).into()), ..SimConfig::default() };
        let load = Workload::new(LoadConfig {
            system_tokens: 64,
            conversations: 6,
            output_tokens: 24,
            seed,
            ..LoadConfig::default()
        });
        Self { sim: SimEngine::start(config).unwrap(), load }
    }

    /// Runs so many requests.
    pub fn work(&mut self, requests: usize) {
        for _ in 0..requests {
            let turn = self.load.next_turn();
            let result =
                self.sim.complete(&turn.prompt, turn.max_tokens, &CompletionOptions::default()).unwrap();
            self.load.replied(turn.conversation, &result.output);
        }
        self.sim.state();
    }

    pub fn next_sequence(&self) -> u64 {
        self.sim.state()[0].next_sequence
    }

    /// The digest of what the engine itself says that it holds.
    pub fn digest(&self) -> StateDigest {
        let place = PlaceSeed::new(Some("GPU"), None, None, Some(0));
        let mut digest = StateDigest::default();
        for (hash, copies) in &self.sim.state()[0].blocks {
            digest.change(place, *hash, 0, u32::try_from(*copies).unwrap());
        }
        digest
    }

    fn spec(&self, id: &str) -> EngineSpec {
        let events = Endpoint::Connect(self.sim.event_endpoints().remove(0));
        let replay = self.sim.replay_endpoints().remove(0);
        EngineSpec {
            id: EngineId::new(id),
            kind: EngineKind::Vllm,
            model: "sim".to_owned(),
            routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
            tenant: None,
            source: Source::Published(Published::at_ports(&events, replay.as_deref(), 1).unwrap()),
            topic: String::new(),
            block_size: None,
            worker_id: 7,
            cache: CacheSpec::default(),
            max_silence: None,
            http: self.sim.http_address().map(|address| format!("http://{address}")),
            control: ControlSpec::default(),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.sim.stop();
    }
}

/// A plane and its servers, which come back on the same ports.
pub struct Rig {
    plane: Arc<Plane>,
    http: SocketAddr,
    grpc: SocketAddr,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Rig {
    pub async fn over(engines: &[&Engine]) -> Self {
        Self::of(plane(engines)).await
    }

    pub async fn of_specs(specs: Vec<EngineSpec>) -> Self {
        Self::of(Plane::start(specs, &PlaneOptions::default()).unwrap()).await
    }

    async fn of(plane: Arc<Plane>) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut rig = Self { plane, http: any, grpc: any, running: None };
        rig.serve().await;
        rig
    }

    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// The engine's number of the last batch that the plane has heard.
    pub fn engine_sequence(&self, at: usize) -> Option<u64> {
        self.plane.engines()[at].streams[0].status().engine_sequence
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    pub async fn client(&self, options: Options) -> Client {
        Client::connect(&self.url(), options).await.unwrap()
    }

    /// Opens the servers.
    pub async fn serve(&mut self) {
        let (http, grpc) = (bind(self.http).await, bind(self.grpc).await);
        (self.http, self.grpc) = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        let stop = CancellationToken::new();
        let service = Service::new(self.plane.clone(), kvplane_server::Options::default());
        let task = tokio::spawn(service.run(http, grpc, stop.clone()));
        self.running = Some((stop, task));
    }

    /// Closes the servers; the plane goes on hearing.
    pub async fn stop_serving(&mut self) {
        if let Some((stop, mut task)) = self.running.take() {
            stop.cancel();
            if tokio::time::timeout(Duration::from_secs(2), &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    /// Another plane, which knows nothing of what the old one knew.
    pub async fn replace_plane(&mut self, engines: &[&Engine]) {
        self.stop_serving().await;
        let old = self.plane.clone();
        tokio::task::spawn_blocking(move || old.shutdown()).await.unwrap();
        self.plane = plane(engines);
        self.serve().await;
    }

    /// Removes an engine from the plane.
    pub fn remove(&self, at: usize) {
        self.plane.remove(stream(at).engine.as_str()).unwrap();
    }

    /// Adds an engine to the plane.
    pub fn add(&self, at: usize, engine: &Engine) {
        self.plane.add(vec![engine.spec(stream(at).engine.as_str())], Origin::Api).unwrap();
    }

    /// Waits until the plane has heard everything and knows exactly what the engine holds.
    pub async fn heard(&self, at: usize, engine: &Engine) {
        let last = engine.next_sequence().checked_sub(1);
        until("heard", async || {
            let status = self.plane.engines()[at].streams[0].status();
            let there = status.continuity == Continuity::Live && status.engine_sequence == last;
            if there {
                assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
                assert_eq!(status.digest, engine.digest(), "the plane itself is wrong");
            }
            there
        })
        .await;
    }

    /// What `/v1/status` says of a stream: (cursor, digest).
    pub async fn status(&self, at: usize) -> (String, String) {
        let mut connection = TcpStream::connect(self.http).await.unwrap();
        let request = "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        let rank = &status["engines"][at]["ranks"][0];
        let text = |key: &str| rank[key].as_str().unwrap().to_owned();
        (text("cursor"), text("digest"))
    }

    /// Waits until plane, replica and engine are at rest, and compares the three.
    pub async fn equal(&self, at: usize, engine: &Engine, view: &ReplicaView) {
        self.heard(at, engine).await;
        until("at rest with the plane", async || {
            let cursor = view.cursor().map(|cursor| cursor.sequence.to_string());
            view.is_current() && cursor == Some(self.status(at).await.0)
        })
        .await;
        let (_, digest) = self.status(at).await;
        assert_eq!(view.digest().to_string(), digest, "the plane's digest");
        assert_eq!(view.digest(), engine.digest(), "the engine's truth");
        assert_eq!(view.trust().level, Trust::Exact);
        let truth = engine.sim.state().remove(0).blocks;
        view.read(|replica| {
            assert_eq!(replica.iter().count(), truth.len());
            assert!(truth.keys().all(|&hash| replica.holds(hash)));
        });
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

fn plane(engines: &[&Engine]) -> Arc<Plane> {
    let specs = engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect();
    let options = PlaneOptions { replay_idle: Duration::from_millis(700), ..PlaneOptions::default() };
    Plane::start(specs, &options).unwrap()
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
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The stream of an engine of the rig.
pub fn stream(at: usize) -> StreamId {
    StreamId::new(EngineId::new(&format!("e{at}")), 0)
}

/// Comes back fast, so that tests do.
pub fn hasty() -> Options {
    Options {
        shortest_wait: Duration::from_millis(10),
        longest_wait: Duration::from_millis(100),
        ..Options::default()
    }
}
