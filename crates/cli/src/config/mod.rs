//! The configuration: one typed tree, from a file, then the environment, then flags. Nothing else reads either.

mod layers;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kvplane_core::{EngineId, EngineKind, Trust, default_worker_id};
use kvplane_ingest::{EngineSpec, Events, PlaneOptions, RankSpec};
use kvplane_server::{Front, FrontOptions, RepublishSpec};
use kvplane_stream::{Duplicates, Limits, OnGap};
use serde::{Deserialize, Serialize};

pub(crate) use layers::load;
use units::{ByteSize, Span};

/// Everything that can be configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) listen: Listen,
    pub(crate) journal: Journal,
    pub(crate) follow: Follow,
    pub(crate) trust: TrustConfig,
    pub(crate) engine: Vec<EngineConfig>,
}

/// Where kvplane listens. Loopback unless told otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8090)),
            grpc: SocketAddr::from(([127, 0, 0, 1], 50090)),
        }
    }
}

/// What is kept of each stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Journal {
    /// Batches in the replay window.
    pub(crate) max_batches: usize,
    /// Bytes in the replay window.
    pub(crate) max_bytes: ByteSize,
    /// Bytes of the live state.
    pub(crate) max_state_bytes: ByteSize,
    /// What an unfilled gap does: "drop" fails closed, "keep" goes on as unsound.
    pub(crate) on_gap: OnGapName,
}

impl Default for Journal {
    fn default() -> Self {
        let options = PlaneOptions::default();
        Self {
            max_batches: options.max_batches,
            max_bytes: ByteSize(options.max_bytes),
            max_state_bytes: ByteSize(options.state.max_bytes),
            on_gap: OnGapName::Drop,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnGapName {
    Drop,
    Keep,
}

/// How streams are followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Follow {
    /// Disconnected for longer than this is "down".
    pub(crate) down_after: Span,
    /// How long one replay may be silent.
    pub(crate) replay_idle: Span,
    /// How long one replay may take in all.
    pub(crate) replay_deadline: Span,
    /// After this, /readyz says yes even if an engine was never heard.
    pub(crate) ready_deadline: Span,
}

impl Default for Follow {
    fn default() -> Self {
        let options = PlaneOptions::default();
        Self {
            down_after: Span(options.down_after),
            replay_idle: Span(options.replay_idle),
            replay_deadline: Span(options.replay_deadline),
            ready_deadline: Span(kvplane_server::Options::default().ready_deadline),
        }
    }
}

/// Which states are given out where the answer cannot carry a flag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrustConfig {
    pub(crate) credit: Vec<TrustName>,
}

impl Default for TrustConfig {
    fn default() -> Self {
        Self { credit: vec![TrustName::Exact, TrustName::Lower, TrustName::Unverified] }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TrustName {
    Exact,
    Lower,
    Unverified,
    Unsound,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineConfig {
    /// Its name; unique.
    pub(crate) id: String,
    /// Its software.
    pub(crate) kind: EngineKind,
    /// The model it serves.
    #[serde(default)]
    pub(crate) model: String,
    /// Where its events come from; rank r is at port + r; "bind:ADDRESS" where engines connect to us.
    pub(crate) events: String,
    /// Its replay socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replay: Option<String>,
    /// Topic prefix.
    #[serde(default)]
    pub(crate) topic: String,
    /// Data-parallel ranks.
    #[serde(default = "one")]
    pub(crate) ranks: u32,
    /// Block size, to be checked; learned when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) block_size: Option<u32>,
    /// The `worker_id` in Dynamo-shaped JSON; a stable hash of the id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker_id: Option<u64>,
    /// What a second store of a held hash means.
    #[serde(default)]
    pub(crate) duplicates: DuplicatesName,
    /// The engine's HTTP server, for its start time and capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    /// The engine's own gRPC server, behind `front`: http:// or https://.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grpc: Option<String>,
    /// Certificates (PEM) to trust for an https `grpc`, instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grpc_ca: Option<PathBuf>,
    /// Where a transparent gRPC front of this engine listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<SocketAddr>,
    /// Publish this engine's events again, in vLLM's framing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) republish: Option<RepublishConfig>,
}

/// Where an engine's events are published again; rank r is at port + r.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RepublishConfig {
    /// PUB address.
    pub(crate) events: String,
    /// ROUTER address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replay: Option<String>,
    /// Topic of every message.
    #[serde(default)]
    pub(crate) topic: String,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DuplicatesName {
    #[default]
    Count,
    Presence,
}

/// More ranks than any engine has; a typo is likelier.
const MAX_RANKS: u32 = 1024;

impl Config {
    /// What the plane is made of. Finds every mistake that can be found without touching the network.
    pub(crate) fn engines(&self) -> anyhow::Result<Vec<EngineSpec>> {
        if self.engine.is_empty() {
            bail!("no engine is configured: give --engine, or [[engine]] in --config");
        }
        let mut specs: Vec<EngineSpec> = Vec::new();
        for (at, engine) in self.engine.iter().enumerate() {
            let spec = engine.spec().with_context(|| format!("engine[{at}] ({:?})", engine.id))?;
            if let Some(first) = specs.iter().position(|other| other.id == spec.id) {
                bail!("engine[{at}].id: {:?} is used twice (first by engine[{first}])", engine.id);
            }
            specs.push(spec);
        }
        Ok(specs)
    }

    /// The fronts, ready to listen. Reads certificates; dials nothing.
    pub(crate) fn fronts(&self) -> anyhow::Result<Vec<(String, SocketAddr, Front)>> {
        let mut fronts = Vec::new();
        for (at, engine) in self.engine.iter().enumerate() {
            let Some(address) = engine.front else {
                if engine.grpc.is_some() || engine.grpc_ca.is_some() {
                    bail!("engine[{at}]: grpc is used by front alone; give front an address too");
                }
                continue;
            };
            let what = || format!("engine[{at}] ({:?})", engine.id);
            let Some(grpc) = &engine.grpc else {
                bail!("{}: front needs grpc, the engine's own server", what())
            };
            let upstream =
                grpc.parse().with_context(|| format!("{}: grpc: {grpc:?} is not a URL", what()))?;
            let mut options = FrontOptions::new(upstream, engine.kind.grpc_service());
            options.ca.clone_from(&engine.grpc_ca);
            let front = Front::new(options).with_context(what)?;
            fronts.push((engine.id.clone(), address, front));
        }
        Ok(fronts)
    }

    pub(crate) fn republished(&self) -> Vec<RepublishSpec> {
        let specs = self.engine.iter().filter_map(|engine| {
            let RepublishConfig { events, replay, topic } = engine.republish.clone()?;
            Some(RepublishSpec { engine: engine.id.clone(), ranks: engine.ranks, events, replay, topic })
        });
        specs.collect()
    }

    pub(crate) fn plane_options(&self) -> PlaneOptions {
        PlaneOptions {
            max_batches: self.journal.max_batches.max(1),
            max_bytes: self.journal.max_bytes.0,
            state: Limits { max_bytes: self.journal.max_state_bytes.0, ..Limits::default() },
            on_gap: match self.journal.on_gap {
                OnGapName::Drop => OnGap::Drop,
                OnGapName::Keep => OnGap::Keep,
            },
            down_after: self.follow.down_after.0,
            replay_idle: self.follow.replay_idle.0,
            replay_deadline: self.follow.replay_deadline.0,
            ..PlaneOptions::default()
        }
    }

    pub(crate) fn server_options(&self) -> kvplane_server::Options {
        let credit = self.trust.credit.iter().map(|name| match name {
            TrustName::Exact => Trust::Exact,
            TrustName::Lower => Trust::Lower,
            TrustName::Unverified => Trust::Unverified,
            TrustName::Unsound => Trust::Unsound,
        });
        kvplane_server::Options { credit: credit.collect(), ready_deadline: self.follow.ready_deadline.0 }
    }
}

impl EngineConfig {
    fn spec(&self) -> anyhow::Result<EngineSpec> {
        if self.id.is_empty() || self.id.chars().any(|c| c.is_whitespace() || c.is_control()) {
            bail!("id: must be a word without spaces");
        }
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            bail!("ranks: must be 1 to {MAX_RANKS}, not {}", self.ranks);
        }
        if self.block_size == Some(0) {
            bail!("block_size: must not be 0");
        }
        if let Some(http) = &self.http {
            let uri: http::Uri = http.parse().with_context(|| format!("http: {http:?} is not a URL"))?;
            if uri.scheme_str() != Some("http") || uri.host().is_none() {
                bail!("http: {http:?} is not a URL like http://host:port");
            }
        }
        let id = EngineId::new(&self.id);
        let events = match self.events.strip_prefix("bind:") {
            Some(address) => Events::Bind(address.to_owned()),
            None => Events::Connect(self.events.clone()),
        };
        let spec = EngineSpec {
            worker_id: self.worker_id.unwrap_or_else(|| default_worker_id(&id)),
            id,
            kind: self.kind,
            model: self.model.clone(),
            ranks: RankSpec::at_ports(&events, self.replay.as_deref(), self.ranks)?,
            topic: self.topic.clone(),
            block_size: self.block_size,
            duplicates: match self.duplicates {
                DuplicatesName::Count => Duplicates::Count,
                DuplicatesName::Presence => Duplicates::Presence,
            },
            http: self.http.clone(),
        };
        Ok(spec)
    }
}
