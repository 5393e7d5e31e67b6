//! Who speaks: engines, their kinds, and streams.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The operator's name of one registered inference server. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId(Arc<str>);

impl EngineId {
    /// Names an engine.
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl From<&str> for EngineId {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// The identity of one running kvplane, distinct from every other and from its own earlier runs. Cheap to
/// clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneId(Arc<str>);

impl PlaneId {
    /// The identity that these random bits stand for.
    pub fn from_bits(bits: u128) -> Self {
        Self(format!("{bits:032x}").into())
    }

    /// An identity as another plane reports it.
    pub fn reported(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One ordered event source: a data-parallel rank of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// The engine.
    pub engine: EngineId,
    /// Its data-parallel rank.
    pub rank: u32,
}

impl StreamId {
    /// The stream of `engine`'s rank `rank`.
    pub fn new(engine: EngineId, rank: u32) -> Self {
        Self { engine, rank }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.engine, self.rank)
    }
}

/// Which software an engine is. Decides the dialect and what its clears and removals mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM 0.9 and later.
    Vllm,
    /// `SGLang` 0.4.6 and later.
    Sglang,
    /// `TokenSpeed` 0.1.1.
    Tokenspeed,
    /// TensorRT-LLM: its HTTP drain, its `ZeroMQ` push mode or its gRPC stream.
    Trtllm,
    /// Whatever offers SMG's `SubscribeKvEvents`: an engine or a relay before one.
    Grpc,
    /// Another kvplane.
    Kvplane,
}

impl EngineKind {
    /// Every kind.
    pub const ALL: [EngineKind; 6] =
        [Self::Vllm, Self::Sglang, Self::Tokenspeed, Self::Trtllm, Self::Grpc, Self::Kvplane];

    /// The gRPC service that engines of this kind offer to gateways; `None` where the kind does not say.
    pub fn grpc_service(self) -> Option<&'static str> {
        match self {
            Self::Vllm => Some("vllm.grpc.engine.VllmEngine"),
            Self::Sglang => Some("sglang.grpc.scheduler.SglangScheduler"),
            Self::Tokenspeed => Some("tokenspeed.grpc.scheduler.TokenSpeedScheduler"),
            Self::Trtllm => Some("trtllm.TrtllmService"),
            Self::Grpc | Self::Kvplane => None,
        }
    }

    /// The name used in configuration, status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Tokenspeed => "tokenspeed",
            Self::Trtllm => "trtllm",
            Self::Grpc => "grpc",
            Self::Kvplane => "kvplane",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An engine kind that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine kind {0:?}; known kinds: vllm, sglang, tokenspeed, trtllm, grpc, kvplane")]
pub struct ParseKindError(String);

impl FromStr for EngineKind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| ParseKindError(text.to_owned()))
    }
}

/// The `worker_id` that Dynamo-shaped JSON carries for an engine without a configured one.
///
/// 53 bits, so that a JavaScript or float-based JSON reader keeps it whole; derived from the name, so
/// that it survives restarts of kvplane.
pub fn default_worker_id(engine: &EngineId) -> u64 {
    const JSON_SAFE_BITS: u32 = 53;
    xxh3_64(engine.as_str().as_bytes()) >> (u64::BITS - JSON_SAFE_BITS)
}
