//! What a plane is made of, as configured.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{EngineId, EngineKind, default_worker_id};
use kvplane_stream::{Duplicates, Limits, OnGap};
use kvplane_transport::grpc::GrpcSpec;

use crate::durable::Durable;
use crate::peers::PeerOptions;
use crate::provenance::Provenance;
use crate::source::Source;
use crate::token_file::{TokenFileError, read_token};

/// The routing group of engines that name none.
pub const DEFAULT_ROUTING_GROUP: &str = "default";

/// One registered engine.
#[derive(Debug, Clone)]
pub struct EngineSpec {
    /// Its name.
    pub id: EngineId,
    /// Its software.
    pub kind: EngineKind,
    /// The model it serves.
    pub model: String,
    /// Among which engines prompts of this model are routed; [`DEFAULT_ROUTING_GROUP`] unless somebody said
    /// so.
    pub routing_group: String,
    /// Whose prompts it serves, where hints are asked for by tenant; absent where nobody said so.
    pub tenant: Option<String>,
    /// How the events of its ranks come.
    pub source: Source,
    /// Topic prefix.
    pub topic: String,
    /// Expected block size.
    pub block_size: Option<u32>,
    /// The `worker_id` in Dynamo-shaped JSON.
    pub worker_id: u64,
    /// How its cache behaves where the events do not tell.
    pub cache: CacheSpec,
    /// The longest time without proof that it is there; `None`: [`PlaneOptions::max_silence`].
    pub max_silence: Option<Duration>,
    /// The engine's HTTP server: start-time hint and capacity, and operations.
    pub http: Option<String>,
    /// How it is asked to do something, besides over `http`.
    pub control: ControlSpec,
    /// Who found it; absent where somebody described it.
    pub provenance: Option<Arc<Provenance>>,
}

impl EngineSpec {
    /// An engine of which nothing but this is configured.
    pub fn new(id: EngineId, kind: EngineKind, model: &str, source: Source) -> Self {
        Self {
            worker_id: default_worker_id(&id),
            id,
            kind,
            model: model.to_owned(),
            routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
            tenant: None,
            source,
            topic: String::new(),
            block_size: None,
            cache: CacheSpec::default(),
            max_silence: None,
            http: None,
            control: ControlSpec::default(),
            provenance: None,
        }
    }

    /// Whether what the engine reports about requests can prove that it holds a prefix.
    ///
    /// Of vLLM alone: it counts what it finds when a request is first scheduled. `SGLang` and `TokenSpeed`
    /// add up what they find each time that they prefill, so that a request which was retracted may report
    /// more than is held; TensorRT-LLM reuses parts of blocks.
    pub fn takes_evidence(&self) -> bool {
        self.control.fronted
            && self.kind == EngineKind::Vllm
            && matches!(self.source, Source::Published(_) | Source::Discovered(_))
    }
}

/// How an engine is asked to do something, besides over its HTTP server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlSpec {
    /// Its gRPC server, with the services that it may offer.
    pub grpc: Option<GrpcSpec>,
    /// Where the key is that its HTTP server wants.
    pub api_key_file: Option<PathBuf>,
    /// Requests to it pass through a front of this plane, which sees what the engine reports about them.
    pub fronted: bool,
}

impl ControlSpec {
    /// The key that its HTTP server wants, as the file has it now.
    pub fn api_key(&self) -> Result<Option<String>, TokenFileError> {
        self.api_key_file.as_deref().map(read_token).transpose()
    }
}

/// How an engine's cache behaves where its events do not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheSpec {
    /// What a second store of a held hash means.
    pub duplicates: Duplicates,
    /// It gives up the last block that it finds, as vLLM with EAGLE does.
    pub eagle: bool,
    /// It has no tier behind its device.
    pub device_only: bool,
    /// Tokens that a tier behind the device gives back at once.
    pub offload_chunk: Option<u32>,
}

/// Who added an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The configuration: file, environment or flags.
    Config,
    /// A call, by its whole description.
    Api,
    /// A call that registers one rank after the other.
    Register,
    /// The other plane that it comes from.
    Upstream,
    /// A cluster that is watched.
    Kubernetes,
}

impl Origin {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Api => "api",
            Self::Register => "register",
            Self::Upstream => "upstream",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// Bounds and rules that all streams share.
#[derive(Debug, Clone)]
pub struct PlaneOptions {
    /// Batches in a stream's replay window.
    pub max_batches: usize,
    /// Bytes in a stream's replay window.
    pub max_bytes: usize,
    /// The live state's bounds, per stream.
    pub state: Limits,
    /// What each index may use.
    pub index: kvplane_index::Options,
    /// What an unfilled gap does.
    pub on_gap: OnGap,
    /// A stream whose engine has not been proven to be there for longer than this is `recovering`, unless its
    /// engine has another bound.
    pub max_silence: Duration,
    /// Disconnected for longer than this is `down`.
    pub down_after: Duration,
    /// How long one replay may be silent.
    pub replay_idle: Duration,
    /// How long one replay may take.
    pub replay_deadline: Duration,
    /// Engines at the same time.
    pub max_engines: usize,
    /// How often an engine is asked where it publishes while something of it is missing.
    pub discover_every: Duration,
    /// Other indexers, whose dumps are taken where a stream's past is not known.
    pub peers: PeerOptions,
    /// What streams remember over a restart; `None`: nothing.
    pub durable: Option<Arc<Durable>>,
}

impl PlaneOptions {
    /// The longest time without proof that an engine is there.
    pub fn max_silence_of(&self, spec: &EngineSpec) -> Duration {
        spec.max_silence.unwrap_or_else(|| spec.source.max_silence(self.max_silence))
    }
}

impl Default for PlaneOptions {
    fn default() -> Self {
        Self {
            max_batches: 10_000,
            max_bytes: 64 << 20,
            state: Limits::default(),
            // Room for some 200 million blocks of 36 bytes.
            index: kvplane_index::Options { max_bytes: 8 << 30, ..kvplane_index::Options::default() },
            on_gap: OnGap::Drop,
            max_silence: Duration::from_secs(2),
            down_after: Duration::from_secs(10),
            replay_idle: Duration::from_secs(2),
            replay_deadline: Duration::from_secs(30),
            max_engines: 8192,
            discover_every: Duration::from_secs(30),
            peers: PeerOptions::default(),
            durable: None,
        }
    }
}
