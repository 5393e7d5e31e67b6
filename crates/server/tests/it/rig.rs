//! A small language for fault tests: simulated engines, a plane over them, real sockets between.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvplane_core::{Continuity, EngineId, EngineKind, Trust};
use kvplane_ingest::{
    CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, Endpoint, EngineSpec, Plane, PlaneOptions, Published,
    Source, Stream, StreamStatus,
};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_server::{Fleet, Options, Service};
use kvplane_sim::load::{LoadConfig, Turn, Workload};
use kvplane_sim::{CompletionOptions, CompletionResult, SimConfig, SimEngine, SimHandle};
use kvplane_wire::Profile;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

tokio::task_local! {
    static SPEAKS: Profile;
}

/// Runs a test in which engines are of this kind, and speak like this.
pub async fn speaking(profile: Profile, test: impl Future<Output = ()>) {
    SPEAKS.scope(profile, test).await;
}

/// The same test for every kind of engine that publishes on a socket, or for those that are named.
#[macro_export]
macro_rules! every_engine {
    (@of $name:ident, $body:block, $($engine:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "what the body needs differs")]
            use super::*;

            async fn body() $body

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $engine() {
                $crate::rig::speaking($crate::rig::profiles::$engine, body()).await;
            })*
        }
    };
    ($(#[only($($engine:ident),*)] async fn $some:ident() $body:block)*) => {
        $($crate::every_engine!(@of $some, $body, $($engine)*);)*
    };
    ($(async fn $name:ident() $body:block)*) => {
        $($crate::every_engine!(@of $name, $body, vllm sglang tokenspeed trtllm_push);)*
    };
}

/// What engines of each kind speak like, where a test runs for all of them.
pub mod profiles {
    #![allow(non_upper_case_globals, reason = "names of tests")]
    use super::Profile;

    pub const vllm: Profile = Profile::Vllm0_32;
    pub const sglang: Profile = Profile::Sglang0_5_22;
    pub const tokenspeed: Profile = Profile::Tokenspeed0_1_1;
    pub const trtllm_push: Profile = Profile::TrtllmZmq;
}

/// Far beyond anything that should take: only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A simulated engine with a seeded load.
pub struct Engine {
    pub sim: SimHandle,
    load: Workload,
    replay: bool,
    http: bool,
}

/// Conversations with a common beginning, as every test's engine is sent them.
pub fn workload(seed: u64) -> Workload {
    Workload::new(LoadConfig {
        system_tokens: 64,
        conversations: 6,
        output_tokens: 24,
        seed,
        ..LoadConfig::default()
    })
}

impl Engine {
    pub fn start(change: impl FnOnce(&mut SimConfig)) -> Self {
        let profile = SPEAKS.try_with(|profile| *profile).unwrap_or(profiles::vllm);
        let http = Some(([127, 0, 0, 1], 0).into());
        let mut config = SimConfig { profile, blocks: 96, http, ..SimConfig::default() };
        change(&mut config);
        let load = workload(config.seed);
        Self { sim: SimEngine::start(config).unwrap(), load, replay: true, http: true }
    }

    pub fn plain() -> Self {
        Self::start(|_| {})
    }

    /// kvplane is not told of the replay socket.
    pub fn without_replay(mut self) -> Self {
        self.replay = false;
        self
    }

    /// kvplane is not told of the HTTP server: no start-time hint.
    pub fn without_http(mut self) -> Self {
        self.http = false;
        self
    }

    /// Runs so many requests.
    pub fn work(&mut self, requests: usize) {
        for _ in 0..requests {
            let turn = self.next_turn();
            self.run(&turn, &CompletionOptions::default());
        }
    }

    /// The request that comes next.
    pub fn next_turn(&mut self) -> Turn {
        self.load.next_turn()
    }

    /// Runs a request.
    pub fn run(&mut self, turn: &Turn, options: &CompletionOptions) -> CompletionResult {
        let result = self.sim.complete(&turn.prompt, turn.max_tokens, options).unwrap();
        self.load.replied(turn.conversation, &result.output);
        // Publishing is the publisher's thread's business; wait until it is done.
        self.sim.state();
        result
    }

    /// `SGLang` speaks before anybody listens: it clears its cache when it starts. A flush says the same again.
    pub fn repeat_what_nobody_heard(&self) {
        if self.sim.config().profile.engine() == EngineKind::Sglang {
            assert!(self.sim.reset_prefix_cache());
        }
    }

    pub fn next_sequence(&self) -> u64 {
        self.sim.state()[0].next_sequence
    }

    pub fn spec(&self, id: &str) -> EngineSpec {
        let events = Endpoint::Connect(self.sim.event_endpoints().remove(0));
        let replay = if self.replay { self.sim.replay_endpoints().remove(0) } else { None };
        EngineSpec {
            id: EngineId::new(id),
            kind: self.sim.config().profile.engine(),
            model: "sim".to_owned(),
            routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
            tenant: None,
            source: Source::Published(
                Published::at_ports(&events, replay.as_deref(), self.sim.config().ranks).unwrap(),
            ),
            topic: String::new(),
            block_size: None,
            worker_id: 7,
            cache: CacheSpec::default(),
            max_silence: None,
            http: self.sim.http_address().filter(|_| self.http).map(|address| format!("http://{address}")),
            control: ControlSpec::default(),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.sim.stop();
    }
}

/// A plane and its servers.
pub struct Rig {
    pub plane: Arc<Plane>,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub fleet: Fleet,
    stop: CancellationToken,
}

/// A plane that soon gives up an engine that is out of reach.
pub fn soon_down() -> PlaneOptions {
    PlaneOptions {
        down_after: Duration::from_millis(300),
        replay_idle: Duration::from_secs(1),
        ..PlaneOptions::default()
    }
}

impl Rig {
    pub async fn over(engines: &[&Engine]) -> Self {
        Self::with_options(
            engines,
            PlaneOptions { replay_idle: Duration::from_millis(700), ..PlaneOptions::default() },
        )
        .await
    }

    pub async fn with_options(engines: &[&Engine], options: PlaneOptions) -> Self {
        let specs = engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect();
        Self::of_specs(specs, options).await
    }

    pub async fn of_specs(specs: Vec<EngineSpec>, options: PlaneOptions) -> Self {
        Self::serving(specs, options, Options::default()).await
    }

    pub async fn serving(specs: Vec<EngineSpec>, options: PlaneOptions, served: Options) -> Self {
        let plane = Plane::start(specs, &options).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (http_address, grpc_address) = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        let stop = CancellationToken::new();
        let service = Service::new(plane.clone(), served);
        let fleet = service.fleet();
        tokio::spawn(service.run(http, grpc, stop.clone()));
        Self { plane, grpc: grpc_address, http: http_address, fleet, stop }
    }

    pub fn stream(&self, engine: usize) -> Arc<Stream> {
        self.plane.engines()[engine].streams[0].clone()
    }

    pub fn status(&self, engine: usize) -> StreamStatus {
        self.stream(engine).status()
    }

    /// Waits until a stream looks as wanted.
    pub async fn until(
        &self,
        engine: usize,
        what: &str,
        wanted: impl Fn(&StreamStatus) -> bool,
    ) -> StreamStatus {
        self.until_rank(engine, 0, what, wanted).await
    }

    pub async fn until_rank(
        &self,
        engine: usize,
        rank: usize,
        what: &str,
        wanted: impl Fn(&StreamStatus) -> bool,
    ) -> StreamStatus {
        let stream = self.plane.engines()[engine].streams[rank].clone();
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = stream.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "rank {rank} never {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn live(&self, engine: usize) -> StreamStatus {
        self.until(engine, "live", |status| status.continuity == Continuity::Live).await
    }

    /// Waits until the stream has heard the engine's last batch, and compares what both hold, copies included.
    pub async fn caught_up(&self, at: usize, engine: &Engine) -> StreamStatus {
        let last = engine.next_sequence().checked_sub(1);
        let status = self
            .until(at, "caught up", |s| s.continuity == Continuity::Live && s.engine_sequence == last)
            .await;
        let ours = held(&self.stream(at)).await;
        let state = engine.sim.state().remove(0);
        let mut truth = BTreeMap::<u64, u64>::new();
        for (hash, copies) in state.blocks.into_iter().chain(state.host_blocks) {
            *truth.entry(hash).or_default() += copies as u64;
        }
        match status.trust.level() {
            Trust::Exact => assert_eq!(ours, truth, "exact"),
            Trust::Lower => assert!(ours.keys().all(|hash| truth.contains_key(hash)), "phantoms"),
            other => panic!("unexpected trust {other}"),
        }
        status
    }

    pub async fn exact(&self, at: usize, engine: &Engine) -> StreamStatus {
        let status = self.caught_up(at, engine).await;
        assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
        status
    }

    /// Asks what the first engine holds of its next request, and runs that: tokens that were predicted, and those that the engine found.
    pub async fn predict_and_run(&self, engine: &mut Engine, options: &CompletionOptions) -> (u64, u64) {
        let turn = engine.next_turn();
        let items = options
            .images
            .iter()
            .map(|item| json!({"id": item.id, "offset": item.offset, "length": item.length}));
        let mut question = json!({"model": "sim", "token_ids": turn.prompt, "all": true});
        question["cache_salt"] = json!(options.cache_salt);
        question["lora_name"] = json!(options.lora);
        if !options.images.is_empty() {
            question["multimodal"] = items.collect();
        }
        let (code, answer) = call(self.http, "POST", "/v1/query", &question).await;
        assert_eq!(code, 200, "{answer}");
        let found = &answer["matches"][0];
        assert_eq!(found["engine"], "e0", "{answer}");
        let predicted = found["cached_tokens"].as_u64().unwrap();
        (predicted, engine.run(&turn, options).cached_tokens as u64)
    }

    /// A subscriber over gRPC.
    pub async fn subscribe(&self, resume: Option<proto::Cursor>) -> Subscriber {
        let selector = proto::StreamSelector { engine: "e0".to_owned(), rank: Some(0), resume };
        self.subscribe_to(vec![selector]).await
    }

    /// A subscriber of these streams; of none: of all.
    pub async fn subscribe_to(&self, streams: Vec<proto::StreamSelector>) -> Subscriber {
        // Small windows, so that a subscriber that does not read is soon felt by the server.
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let channel = endpoint.connect().await.unwrap();
        let mut client = PlaneClient::new(channel);
        let request = proto::SubscribeRequest { streams, ..Default::default() };
        Subscriber::new(client.subscribe(request).await.unwrap().into_inner())
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let plane = self.plane.clone();
        tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
        self.plane.shutdown();
    }
}

/// What a stream holds: hash to copies.
pub async fn held(stream: &Stream) -> BTreeMap<u64, u64> {
    let snapshot = stream.snapshot().await;
    let blocks = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
    blocks.map(|block| (block.hash, block.holdings.iter().map(|h| u64::from(h.copies)).sum())).collect()
}

/// Status and body of an HTTP request with a JSON body.
pub async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    send(address, method, path, body.to_string()).await
}

/// Status and body of an HTTP request, the body as JSON.
pub async fn send(address: SocketAddr, method: &str, path: &str, body: String) -> (u16, Value) {
    let (status, body) = text(address, method, path, body).await;
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// Status and body of an HTTP request.
pub async fn text(address: SocketAddr, method: &str, path: &str, body: String) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json");
    let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// A replica fed by the wire alone.
pub struct Subscriber {
    messages: Streaming<proto::SubscribeResponse>,
    pub blocks: BTreeMap<u64, u64>,
    pub resets: Vec<proto::ResetReason>,
    pub cursor: proto::Cursor,
    pub batches: usize,
    /// Streams that were removed.
    pub gone: usize,
    /// Where the stream stood, as it was told.
    pub standings: Vec<proto::Continuity>,
    /// A snapshot is under way.
    partial: bool,
}

impl Subscriber {
    pub fn new(messages: Streaming<proto::SubscribeResponse>) -> Self {
        Self {
            messages,
            blocks: BTreeMap::new(),
            resets: Vec::new(),
            cursor: proto::Cursor::default(),
            batches: 0,
            gone: 0,
            standings: Vec::new(),
            partial: false,
        }
    }

    /// The next message, applied.
    pub async fn next(&mut self) -> Result<(), tonic::Status> {
        let message =
            tokio::time::timeout(DEADLINE, self.messages.message()).await.expect("no message came")?;
        let message = message.expect("the stream ended without a status");
        self.cursor = proto::Cursor { epoch: message.epoch, sequence: message.sequence };
        match message.item.unwrap() {
            Item::Reset(reset) => {
                self.resets.push(reset.reason());
                self.blocks.clear();
                self.partial = true;
            }
            Item::Snapshot(chunk) => {
                self.standings.extend(chunk.last.then(|| chunk.continuity()));
                chunk.stored.iter().for_each(|stored| self.stored(stored));
                self.partial = !chunk.last;
            }
            Item::Standing(standing) => self.standings.push(standing.continuity()),
            Item::Gone(_) => {
                self.gone += 1;
                self.blocks.clear();
            }
            Item::Batch(batch) => {
                self.batches += 1;
                self.standings.extend(Some(batch.continuity()).filter(|told| *told as i32 != 0));
                for event in batch.events {
                    self.event(event.kind.unwrap());
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, kind: proto::event::Kind) {
        use proto::event::Kind;
        match kind {
            Kind::Stored(stored) => self.stored(&stored),
            Kind::Removed(removed) => {
                for block in removed.blocks {
                    if block.copies == 0 {
                        self.blocks.remove(&block.hash);
                    } else {
                        self.blocks.insert(block.hash, u64::from(block.copies));
                    }
                }
            }
            Kind::Cleared(_) | Kind::Dropped(_) => self.blocks.clear(),
        }
    }

    fn stored(&mut self, stored: &proto::Stored) {
        for block in stored.blocks.iter().filter(|block| block.copies > 0) {
            self.blocks.insert(block.hash, u64::from(block.copies));
        }
    }

    /// Follows until it stands where the stream stands.
    pub async fn catch_up(&mut self, rig: &Rig) {
        self.follow_to(&rig.stream(0)).await;
    }

    /// Follows until it stands where this stream stands.
    pub async fn follow_to(&mut self, stream: &Stream) {
        loop {
            let cursor = stream.cursor();
            let here = self.cursor.epoch == cursor.epoch.as_u64() && self.cursor.sequence == cursor.sequence;
            if here && !self.partial {
                return;
            }
            self.next().await.unwrap();
        }
    }
}
