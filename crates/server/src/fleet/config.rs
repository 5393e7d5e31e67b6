//! One engine as people describe it: in the configuration file, by a flag, or in a call. One set of keys,
//! checked in one place.

mod asked;
mod control;
mod files;
mod link;
mod republish;
mod schema;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use kvplane_core::{EngineId, EngineKind, default_worker_id};
use kvplane_ingest::{
    CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, Drained, Endpoint, EngineSpec, Published, Relayed,
    SharedRanks, Source,
};
use kvplane_stream::Duplicates;
use kvplane_transport::grpc::GrpcSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use files::ReadOnce;
pub use republish::{AnnounceConfig, RepublishConfig};
pub use worker::WorkerId;

use super::error::EngineConfigError;
use crate::span::Span;
use kvplane_access::pem;
use kvplane_front::{Front, FrontError, FrontOptions};
use kvplane_republish::RepublishSpec;

/// One engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "independent keys of the configuration")]
pub struct EngineConfig {
    /// Its name, unique, without spaces. With `--engine`: the kind and a number (`vllm-0`) unless given.
    pub id: String,
    /// Its software.
    #[schemars(schema_with = "schema::kind")]
    pub kind: EngineKind,
    /// The model it serves: what is asked for by name, and a label in status and metrics.
    #[serde(default)]
    pub model: String,
    /// Where its events come from: `tcp://host:port` or `ipc://path` where it publishes them (`bind:` in
    /// front: kvplane binds and engines connect), `http://…` where they are drained, `grpc://…` or
    /// `grpcs://…` where they are subscribed to. Rank r is at port + r. A wildcard host means this machine
    /// when connecting. Without it the engine is asked, at `http` or `grpc`; some kinds have their events
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<String>,
    /// Anyone who reaches a `bind:` address may publish events: for addresses beyond loopback, on a network
    /// that is trusted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_open: bool,
    /// Its replay socket. Rank r is at port + r. Event and replay ports of the ranks must not meet on one
    /// host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Events that the engine's buffer holds per rank, where they are drained (`event_buffer_max_size`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_buffer: Option<usize>,
    /// Topic prefix. Tells engines apart that share a bound address.
    #[serde(default)]
    pub topic: String,
    /// Data-parallel ranks, 1 to 1024; 1 when absent, or as many as the engine says if it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Whether the engine is asked for what is not said here: `events`, `replay`, `topic`, `ranks`. When
    /// absent, it is asked if `events` is. Kinds `vllm`, `sglang`, `tokenspeed`; needs `http` or `grpc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discover: Option<bool>,
    /// Tokens per block, to be checked; learned when absent. Blocks of another size make trust `unverified`,
    /// and so does an engine that says another size when it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The `worker_id` in Dynamo-shaped JSON, as of `/kv_recover`: 0 to 2^64-1, as text where it does not fit
    /// into 63 bits. A stable 53-bit hash of `id` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<WorkerId>,
    /// Whose prompts it serves, where hints are asked for by tenant; `hints.default_tenant` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What a second store of a held block means. `count`: another physical copy, it takes as many removals.
    /// `presence`: the same copy, announced again. Only for kinds that may hold a block several times (vLLM,
    /// and what is relayed): the others hold it once.
    #[serde(default)]
    pub duplicates: DuplicatesName,
    /// The engine gives up the last block that it finds, as vLLM with EAGLE does: answers count one block
    /// less.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub eagle: bool,
    /// The engine has no tier behind its device (vLLM without a connector that offloads). No event says so. A
    /// clear of an engine whose history is not known then makes it `exact`; else it stays `lower`,
    /// `tier_history`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device_only: bool,
    /// Tokens that a tier behind vLLM's device gives back at once: what its offloading calls `block_size`, a
    /// multiple of the engine's. Learned when absent, as far as the events tell; else trust is `lower`,
    /// `chunk_size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_chunk: Option<u32>,
    /// The longest time without proof that the engine is there (a heartbeat, an answer). A stream with an
    /// older proof is `recovering` and not credited. `follow.max_silence` when absent. Of another kvplane:
    /// from its engines to here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_silence: Option<Span>,
    /// The engine's HTTP server, `http://host:port`. Its `/metrics` give the start time and the number of
    /// device blocks; it is also where the engine is asked where it publishes, and for operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Which engine's service a server of kind `grpc` offers: `vllm`, `sglang`, `tokenspeed`, `trtllm`; all
    /// are tried when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::kind_or_none")]
    pub service: Option<EngineKind>,
    /// The engine's own gRPC server, `http://host:port` or `https://host:port`: for operations, behind
    /// `front`, where events of kind `grpc` come from, and where an engine is asked where it publishes. Of
    /// another kvplane: its gRPC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// Of another kvplane (`kind = "kvplane"`), the only engine that is wanted; all of them when absent. Such
    /// an entry has no other keys but `grpc`, `grpc_ca` and `token_file`: its engines are as they are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// File with the certificates (PEM) to trust for an `https` `grpc`, and for `events = "grpcs://…"`,
    /// instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_ca: Option<PathBuf>,
    /// `host:port` where a transparent gRPC front of this engine listens, for SMG. Needs `grpc`, or `http`:
    /// then it answers events and operations, and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<SocketAddr>,
    /// Callers of the front are not asked who they are, unless they would change the engine: for gateways
    /// that cannot send a token, on a network that is trusted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub front_open: bool,
    /// File with the bearer token that another kvplane wants. It is read again with every connection. Only in
    /// the configuration, not in calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// File with the key that the engine's own HTTP server wants for operations (`SGLang`'s
    /// `--admin-api-key`, vLLM's `--api-key`). Sent as a bearer token, read again with every operation. Only
    /// in the configuration, not in calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Where this engine's events are published again, in vLLM's framing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub republish: Option<RepublishConfig>,
}

/// What a second store of a held hash means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DuplicatesName {
    /// One more copy.
    #[default]
    Count,
    /// Nothing new.
    Presence,
}

/// Below this, scheduling alone would make a healthy engine stale.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);

/// More ranks than any engine has; a typo is likelier.
const MAX_RANKS: u32 = 1024;

/// An engine whose description is right as far as that can be known without touching the network.
#[derive(Debug)]
pub struct EnginePlan {
    pub(super) config: EngineConfig,
    pub(super) files: ReadOnce,
    pub(super) spec: EngineSpec,
    pub(super) front: Option<(SocketAddr, Front)>,
    pub(super) republish: Option<RepublishSpec>,
}

impl EnginePlan {
    /// The engine's id.
    pub fn id(&self) -> &EngineId {
        &self.spec.id
    }

    /// What the plane will listen to.
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }
}

impl EngineConfig {
    /// Finds every mistake that can be found without touching the network. Reads the files that it names, so
    /// it may block.
    pub fn plan(self) -> Result<EnginePlan, EngineConfigError> {
        // Before the files are read for use: a file that is replaced in between differs at the next reload.
        let files = ReadOnce::of(&self);
        let spec = self.spec()?;
        let front = self.front()?;
        let republish = self.republish.clone().map(|config| {
            let RepublishConfig { events, replay, topic, copies, announce, open: _ } = config;
            let (engine, ranks) = (self.id.clone(), self.rank_count());
            RepublishSpec { engine, ranks, events, replay, topic, copies, announce: announce.into() }
        });
        if let Some(republish) = &republish {
            republish.check()?;
        }
        Ok(EnginePlan { spec, front, republish, files, config: self })
    }

    fn spec(&self) -> Result<EngineSpec, EngineConfigError> {
        let wrong = |key, message: String| Err(EngineConfigError::Value { key, message });
        if self.id.is_empty() || self.id.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return wrong("id", "must be a word without spaces, such as vllm-0".to_owned());
        }
        if self.rank_count() == 0 || self.rank_count() > MAX_RANKS {
            return wrong("ranks", format!("must be 1 to {MAX_RANKS}, not {}", self.rank_count()));
        }
        if self.block_size == Some(0) {
            return wrong("block_size", "must not be 0: leave it out, and the events say it".to_owned());
        }
        if self.max_silence.is_some_and(|max| max.0 < SHORTEST_SILENCE) {
            return wrong(
                "max_silence",
                "must be at least 100ms: a healthy engine is silent for that long".to_owned(),
            );
        }
        if self.tenant.as_deref() == Some("") {
            return wrong("tenant", "must not be empty: leave it out".to_owned());
        }
        if self.tenant.as_deref() == Some(kvplane_hints::RESERVED_TENANT) {
            return wrong("tenant", "is reserved for probes: choose another name".to_owned());
        }
        if self.offload_chunk == Some(0) {
            return wrong(
                "offload_chunk",
                "must not be 0: leave it out where nothing is offloaded".to_owned(),
            );
        }
        if let Some(http) = &self.http {
            let uri = http.parse::<Uri>().ok();
            if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some()) {
                return wrong("http", format!("{http:?} is not a URL like http://host:port"));
            }
        }
        let id = EngineId::new(&self.id);
        let source = self.source()?;
        let control = if self.kind == EngineKind::Kvplane { ControlSpec::default() } else { self.control()? };
        Ok(EngineSpec {
            worker_id: self.worker_id.map_or_else(|| default_worker_id(&id), |id| id.0),
            id,
            kind: self.kind,
            model: self.model.clone(),
            routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
            tenant: self.tenant.clone(),
            source,
            topic: self.topic.clone(),
            block_size: self.block_size,
            cache: CacheSpec {
                duplicates: match self.duplicates {
                    DuplicatesName::Count => Duplicates::Count,
                    DuplicatesName::Presence => Duplicates::Presence,
                },
                eagle: self.eagle,
                device_only: self.device_only,
                offload_chunk: self.offload_chunk,
            },
            max_silence: self.max_silence.map(|max| max.0),
            provenance: None,
            http: self.http.clone(),
            control,
        })
    }

    /// Ranks as far as they are configured.
    fn rank_count(&self) -> u32 {
        self.ranks.unwrap_or(1)
    }

    /// How the events come, and where each rank is.
    fn source(&self) -> Result<Source, EngineConfigError> {
        let wrong = |key, message: String| Err(EngineConfigError::Value { key, message });
        if self.kind == EngineKind::Kvplane {
            return Ok(Source::Linked(self.link()?));
        }
        if self.token_file.is_some() {
            return wrong("token_file", format!("is for another kvplane, not for kind {}", self.kind));
        }
        if self.upstream.is_some() {
            return wrong("upstream", format!("is for another kvplane, not for kind {}", self.kind));
        }
        let ranks = SharedRanks::first(self.rank_count());
        if self.is_asked() {
            return self.asked().map(Source::Discovered);
        }
        if let Some((key, url)) = self.subscribed_to() {
            let server = self.subscription(key, &url)?;
            return Ok(Source::Relayed(Relayed { server, ranks }));
        }
        if self.service.is_some() {
            return wrong("service", "is for kind grpc, and for events = \"grpc://…\"".to_owned());
        }
        let events = match (&self.events, self.kind, &self.http) {
            (Some(events), EngineKind::Grpc, _) => {
                return wrong(
                    "events",
                    format!("{events:?} is not grpc://host:port, where kind grpc has them"),
                );
            }
            (Some(events), ..) => events,
            (None, EngineKind::Trtllm, Some(http)) => http,
            (None, ..) => {
                let kind = self.kind;
                return wrong(
                    "events",
                    format!("is missing, and an engine of kind {kind} needs it, or http"),
                );
            }
        };
        if events.starts_with("http://") {
            if self.kind != EngineKind::Trtllm {
                return wrong(
                    "events",
                    format!("{events:?} is a drain, which an engine of kind {} has not", self.kind),
                );
            }
            if self.replay.is_some() {
                return wrong("replay", "a drain has none: leave it out".to_owned());
            }
            let (url, buffer) = (events.clone(), self.event_buffer);
            return Ok(Source::Drained(Drained { url, buffer, ranks }));
        }
        if self.event_buffer.is_some() {
            return wrong("event_buffer", "is for events that are drained: events = \"http://…\"".to_owned());
        }
        if self.events_open && !events.starts_with("bind:") {
            return wrong("events_open", "is for events = \"bind:…\": leave it out".to_owned());
        }
        let events = match events.strip_prefix("bind:") {
            Some(address) => Endpoint::Bind(address.to_owned()),
            None => Endpoint::Connect(events.clone()),
        };
        let published = Published::at_ports(&events, self.replay.as_deref(), self.rank_count())?;
        Ok(Source::Published(published))
    }

    /// The server that events are subscribed to, if they are, and the key that names it.
    fn subscribed_to(&self) -> Option<(&'static str, String)> {
        let Some(events) = &self.events else {
            return self.grpc.clone().filter(|_| self.kind == EngineKind::Grpc).map(|url| ("grpc", url));
        };
        let plain = events.strip_prefix("grpc://").map(|rest| format!("http://{rest}"));
        let url = plain.or_else(|| events.strip_prefix("grpcs://").map(|rest| format!("https://{rest}")));
        url.map(|url| ("events", url))
    }

    /// Checks the address of a gRPC server, and reads the certificates to trust it by.
    fn certificates(&self, key: &'static str, url: &str) -> Result<Option<Vec<u8>>, EngineConfigError> {
        let wrong = |key, message: String| Err(EngineConfigError::Value { key, message });
        let Ok(uri) = url.parse::<Uri>() else {
            return wrong(key, format!("{url:?} is not a URL like http://host:port"));
        };
        let ca = self.grpc_ca.as_deref().filter(|_| url.starts_with("https://"));
        if let Err(error) = kvplane_front::check_upstream(&uri, ca) {
            return match error {
                FrontError::Ca { .. } => Err(EngineConfigError::file("grpc_ca", &error)),
                _ => wrong(key, error.to_string()),
            };
        }
        ca.map(pem::read).transpose().map_err(|error| EngineConfigError::file("grpc_ca", &error))
    }

    /// How the server is subscribed to. Reads certificates.
    fn subscription(&self, key: &'static str, url: &str) -> Result<GrpcSpec, EngineConfigError> {
        let wrong = |key, message: String| Err(EngineConfigError::Value { key, message });
        if self.replay.is_some() {
            return wrong("replay", "a server that is subscribed to has none: leave it out".to_owned());
        }
        if self.event_buffer.is_some() {
            return wrong("event_buffer", "is for events that are drained: events = \"http://…\"".to_owned());
        }
        let ca = self.certificates(key, url)?;
        let named = self.service.map(EngineKind::grpc_service);
        let services = match (self.kind.grpc_service(), named) {
            (_, Some(None)) => {
                return wrong("service", "must be vllm, sglang, tokenspeed or trtllm".to_owned());
            }
            (Some(_), Some(_)) => {
                return wrong(
                    "service",
                    format!("an engine of kind {} has its own: leave it out", self.kind),
                );
            }
            (Some(one), None) | (None, Some(Some(one))) => vec![one],
            (None, None) => EngineKind::ALL.into_iter().filter_map(EngineKind::grpc_service).collect(),
        };
        Ok(GrpcSpec { url: url.to_owned(), ca, services })
    }

    /// The front, ready to listen. Dials nothing.
    fn front(&self) -> Result<Option<(SocketAddr, Front)>, EngineConfigError> {
        let wrong = |key, message: String| Err(EngineConfigError::Value { key, message });
        let Some(address) = self.front else {
            if self.front_open {
                return wrong("front_open", "there is no front: set front, or leave it out".to_owned());
            }
            if self.kind == EngineKind::Kvplane {
                return Ok(None);
            }
            let called = self.subscribed_to().map(|(_, url)| url).or_else(|| self.grpc.clone());
            if self.grpc_ca.is_some() && !called.is_some_and(|url| url.starts_with("https://")) {
                return wrong("grpc_ca", "there is no https server that it could be for: leave it out, or write https:// in the address".to_owned());
            }
            return Ok(None);
        };
        if self.grpc.is_none() && self.http.is_none() {
            return wrong("front", "needs grpc or http, one of the engine's own servers".to_owned());
        }
        let Ok(upstream) = self.grpc.as_deref().map(str::parse::<Uri>).transpose() else {
            return wrong("grpc", "is not a URL like http://host:port".to_owned());
        };
        let named = self.service.and_then(EngineKind::grpc_service);
        let Some(service) = self.kind.grpc_service().or(named) else {
            let message =
                format!("an engine of kind {} has no service of its own: name it by service", self.kind);
            return wrong("front", message);
        };
        let mut options = FrontOptions { upstream, ..FrontOptions::without_upstream(service) };
        options.ca.clone_from(&self.grpc_ca);
        Ok(Some((address, Front::new(options)?)))
    }
}
