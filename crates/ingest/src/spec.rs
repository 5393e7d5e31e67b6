//! What a plane is made of, as configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kvplane_core::{EngineId, EngineKind, PlaneId};
use kvplane_proto::Bearer;
use kvplane_stream::{Duplicates, Limits, OnGap};

use crate::address::{AddressError, check_overlap, for_rank};
use crate::token_file::{TokenFileError, read_token};

/// Where a rank's events come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Events {
    /// The engine binds.
    Connect(String),
    /// Engines connect to us; the owner of a message is found by its topic.
    Bind(String),
    /// The engine's one source, at this address, brings the events of all its ranks.
    Shared(String),
    /// Nobody knows yet: the engine is asked.
    Awaited,
}

impl Events {
    /// The address without the direction; empty while nobody knows it.
    pub fn address(&self) -> &str {
        match self {
            Self::Connect(address) | Self::Bind(address) | Self::Shared(address) => address,
            Self::Awaited => "",
        }
    }

    /// In a few words, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Connect(_) | Self::Bind(_) => "its events have an address of their own",
            Self::Shared(_) => "its events come with those of the engine's other ranks",
            Self::Awaited => "its address is to be asked for",
        }
    }

    fn for_rank(&self, rank: u32) -> Result<Self, AddressError> {
        Ok(match self {
            Self::Connect(address) => Self::Connect(for_rank(address, rank, true)?),
            Self::Bind(address) => Self::Bind(for_rank(address, rank, false)?),
            Self::Shared(address) => Self::Shared(address.clone()),
            Self::Awaited => Self::Awaited,
        })
    }
}

/// As it is written in a configuration.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(address) | Self::Shared(address) => f.write_str(address),
            Self::Bind(address) => write!(f, "bind:{address}"),
            Self::Awaited => Ok(()),
        }
    }
}

/// Where one data-parallel rank of an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSpec {
    /// Its number, as in the engine's batches.
    pub rank: u32,
    /// Where its events come from.
    pub events: Events,
    /// Its replay socket.
    pub replay: Option<String>,
}

impl RankSpec {
    /// A rank whose events the engine's one source brings.
    pub fn shared(rank: u32, address: &str) -> Self {
        Self { rank, events: Events::Shared(address.to_owned()), replay: None }
    }

    /// A rank of which nobody knows yet where it publishes.
    pub fn awaited(rank: u32) -> Self {
        Self { rank, events: Events::Awaited, replay: None }
    }

    /// A rank at addresses of its own.
    pub fn at(rank: u32, events: &Events, replay: Option<&str>) -> Result<Self, AddressError> {
        if let Some(replay) = replay {
            check_overlap(events.address(), replay, 1)?;
        }
        Self::counted(rank, 0, events, replay)
    }

    /// Ranks 0 to `ranks` - 1, as engines lay them out: rank r is at port + r.
    pub fn at_ports(events: &Events, replay: Option<&str>, ranks: u32) -> Result<Vec<Self>, AddressError> {
        if let Some(replay) = replay {
            check_overlap(events.address(), replay, ranks)?;
        }
        (0..ranks).map(|rank| Self::counted(rank, rank, events, replay)).collect()
    }

    fn counted(rank: u32, step: u32, events: &Events, replay: Option<&str>) -> Result<Self, AddressError> {
        let replay = replay.map(|address| for_rank(address, step, true)).transpose();
        let events = events.for_rank(step).map_err(AddressError::of("events"))?;
        Ok(Self { rank, events, replay: replay.map_err(AddressError::of("replay"))? })
    }
}

/// How the events of an engine's ranks come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Feed {
    /// Every rank publishes by itself, at the addresses in its [`RankSpec`].
    #[default]
    Published,
    /// One buffer for all ranks, which whoever reads it empties (TensorRT-LLM's `POST /kv_cache_events`).
    Drained(DrainSpec),
    /// One subscription for all ranks, to a server that keeps a stream of batches (SMG's `SubscribeKvEvents`).
    Subscribed(GrpcSpec),
    /// As published, at addresses that the engine is asked for.
    Discovered(DiscoverySpec),
    /// It is another plane, and has no ranks itself: each of its engines is an engine here.
    Linked(LinkSpec),
    /// An engine of another plane.
    Mirrored(MirrorSpec),
}

impl Feed {
    /// Whether a rank whose events come from there has a source.
    pub(crate) fn feeds(&self, events: &Events) -> bool {
        matches!(
            (self, events),
            (Self::Published | Self::Discovered(_), Events::Connect(_) | Events::Bind(_))
                | (Self::Discovered(_), Events::Awaited)
                | (Self::Drained(_) | Self::Subscribed(_) | Self::Mirrored(_), Events::Shared(_))
        )
    }

    /// In one word, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Drained(_) => "drained",
            Self::Subscribed(_) => "subscribed",
            Self::Discovered(_) => "discovered",
            Self::Linked(_) => "linked",
            Self::Mirrored(_) => "mirrored",
        }
    }

    /// Which engine of another plane it is, if it is one.
    pub fn mirrored(&self) -> Option<&MirrorSpec> {
        match self {
            Self::Mirrored(spec) => Some(spec),
            _ => None,
        }
    }

    /// Whether it is an engine of the plane behind this link.
    pub fn comes_over(&self, link: &EngineId) -> bool {
        self.mirrored().is_some_and(|spec| spec.link == *link)
    }
}

/// Another plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// Its gRPC server: `http://host:port` or `https://host:port`.
    pub url: String,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// Where the bearer token is that it wants.
    pub token_file: Option<PathBuf>,
    /// The token itself, where it is in no file.
    pub bearer: Bearer,
    /// The only engine of it that is wanted; absent: all.
    pub engine: Option<String>,
    /// The longest time without proof that an engine behind it is there, from that engine to here.
    pub max_silence: Option<Duration>,
}

impl LinkSpec {
    /// Whether an engine of the other plane is wanted.
    pub(crate) fn wants(&self, engine: &str) -> bool {
        self.engine.as_ref().is_none_or(|wanted| wanted == engine)
    }

    /// Where it is, if that is an address.
    pub fn endpoint(&self) -> Result<tonic::transport::Endpoint, tonic::transport::Error> {
        kvplane_transport::grpc::server(&self.url, self.ca.as_deref())
    }

    /// Whether the certificates to trust, if there are to be any, have one among them.
    pub fn trusts_somebody(&self) -> bool {
        self.ca.as_deref().is_none_or(kvplane_transport::grpc::has_certificate)
    }

    /// The bearer token that it wants, as it was given or as the file has it now.
    pub fn token(&self) -> Result<Bearer, TokenFileError> {
        let Some(path) = &self.token_file else { return Ok(self.bearer.clone()) };
        Bearer::new(&read_token(path)?).map_err(|_| TokenFileError::Unfit(path.clone()))
    }
}

/// An engine of another plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorSpec {
    /// The link that it comes over.
    pub link: EngineId,
    /// Its name there.
    pub engine: String,
    /// The planes that it came through when it was added, the other plane last.
    pub via: Vec<PlaneId>,
}

/// A server that is subscribed to over gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcSpec {
    /// Where it is: `http://host:port` or `https://host:port`.
    pub url: String,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// The services that may offer the method, by their full names. They are tried in turn.
    pub services: Vec<&'static str>,
}

/// A buffer that is drained over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainSpec {
    /// The engine's HTTP server: `http://host:port`.
    pub url: String,
    /// Events that the buffer holds per rank, where the operator says so.
    pub buffer: Option<usize>,
}

/// An engine that is asked where its ranks publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverySpec {
    /// Its HTTP server: `http://host:port`.
    pub http: Option<String>,
    /// Its gRPC server, with the service that engines of its kind have.
    pub grpc: Option<GrpcSpec>,
    /// What the operator said.
    pub told: Told,
}

/// What the operator said of an engine that is asked. It wins over what the engine says, key by key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Where rank 0 publishes; rank r is at port + r.
    pub events: Option<String>,
    /// Where rank 0 can be asked; rank r is at port + r.
    pub replay: Option<String>,
    /// Topic prefix.
    pub topic: Option<String>,
    /// How many ranks there are.
    pub ranks: Option<u32>,
}

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
    /// Among which engines prompts of this model are routed; [`DEFAULT_ROUTING_GROUP`] unless somebody said so.
    pub routing_group: String,
    /// Whose prompts it serves, where hints are asked for by tenant; absent where nobody said so.
    pub tenant: Option<String>,
    /// Its data-parallel ranks, in the order of their numbers, which may have holes.
    pub ranks: Vec<RankSpec>,
    /// How their events come.
    pub feed: Feed,
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
}

impl EngineSpec {
    /// Whether what the engine reports about requests can prove that it holds a prefix.
    ///
    /// Of vLLM alone: it counts what it finds when a request is first scheduled. `SGLang` and `TokenSpeed` add up what they find each time
    /// that they prefill, so that a request which was retracted may report more than is held; TensorRT-LLM reuses parts of blocks.
    pub fn takes_evidence(&self) -> bool {
        self.control.fronted
            && self.kind == EngineKind::Vllm
            && matches!(self.feed, Feed::Published | Feed::Discovered(_))
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
}

impl Origin {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Api => "api",
            Self::Register => "register",
            Self::Upstream => "upstream",
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
    /// A stream whose engine has not been proven to be there for longer than this is `recovering`, unless its engine has
    /// another bound.
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
}

/// Older releases of TensorRT-LLM answer a drain only after two seconds when there is nothing to tell.
const SLOWEST_DRAIN: Duration = Duration::from_secs(5);

impl PlaneOptions {
    /// The longest time without proof that an engine is there. What comes over a drain has at least the time that one may take.
    pub fn max_silence_of(&self, spec: &EngineSpec) -> Duration {
        let usual = match spec.feed {
            Feed::Drained(_) => self.max_silence.max(SLOWEST_DRAIN),
            _ => self.max_silence,
        };
        spec.max_silence.unwrap_or(usual)
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
            max_engines: 4096,
            discover_every: Duration::from_secs(30),
        }
    }
}
