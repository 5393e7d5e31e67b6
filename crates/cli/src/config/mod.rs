//! The configuration: one typed tree, from a file, then the environment, then flags. Nothing else reads
//! either.

mod auth;
mod discover;
mod gateway;
mod hints;
mod indexer;
mod layers;
mod model;
mod picker;
mod report;
mod schema;
mod sync;
mod units;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use kvplane_access::{Access, Keys, Networks, Port, Tls, TlsFiles};
use kvplane_core::Trust;
use kvplane_ingest::{DurableOptions, DurableSpec, PeerOptions, PlaneOptions};
use kvplane_prompt::Prompts;
use kvplane_report::ReportSpec;
use kvplane_server::{EngineConfig, EnginePlan, MetricsDetail};
use kvplane_stream::{Limits, OnGap};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use auth::{AuthConfig, client_token, usual_server};
use discover::DiscoverConfig;
#[cfg(feature = "kubernetes")]
pub(crate) use discover::way;
use gateway::GatewayConfig;
pub(crate) use gateway::GatewayPlan;
use hints::HintsConfig;
use indexer::IndexerConfig;
pub(crate) use layers::{engine_flag, environment, load, load_file};
use model::ModelConfig;
use picker::PickerConfig;
pub(crate) use picker::PickerPlan;
#[cfg(feature = "kubernetes")]
pub(crate) use picker::Watched;
use report::ReportConfig;
pub(crate) use report::{CacheTierName, check_times};
pub(crate) use schema::schema;
use sync::SyncRule;
use units::ByteSize;
pub(crate) use units::Span;

/// Everything that can be configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where kvplane listens.
    pub(crate) listen: Listen,
    /// Who may ask.
    pub(crate) auth: AuthConfig,
    /// What is kept of each stream.
    pub(crate) journal: Journal,
    /// How streams are followed.
    pub(crate) follow: Follow,
    /// What each index may use.
    pub(crate) index: IndexConfig,
    /// What may be asked.
    pub(crate) query: QueryConfig,
    /// Which states are credited.
    pub(crate) trust: TrustConfig,
    /// What `/metrics` tells.
    pub(crate) metrics: MetricsConfig,
    /// Engines that come while kvplane runs.
    pub(crate) members: MembersConfig,
    /// In the place of Dynamo's indexer.
    pub(crate) indexer: IndexerConfig,
    /// Hints for gateways.
    pub(crate) hints: HintsConfig,
    /// The endpoint picker of a gateway.
    pub(crate) picker: PickerConfig,
    /// A gateway in front of the engines.
    pub(crate) gateway: GatewayConfig,
    /// The engines.
    pub(crate) engine: Vec<EngineConfig>,
    /// Where engines are found, besides those that are listed.
    pub(crate) discover: Vec<DiscoverConfig>,
    /// Models whose prompts may be given as text.
    pub(crate) model: Vec<ModelConfig>,
    /// What is reported to inference-cache servers elsewhere.
    pub(crate) report: Vec<ReportConfig>,
}

/// Where kvplane listens. Loopback by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    /// Address of the HTTP server. Port 0 lets the system choose; the log says which.
    pub(crate) http: SocketAddr,
    /// Address of the gRPC server.
    pub(crate) grpc: SocketAddr,
    /// How long calls may go on after SIGTERM or SIGINT, those through fronts included. New connections are
    /// refused at once. A second signal ends the process without waiting.
    pub(crate) drain_timeout: Span,
    /// TLS on both; without it they are plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<TlsFiles>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8090)),
            grpc: SocketAddr::from(([127, 0, 0, 1], 50090)),
            drain_timeout: Span(kvplane_server::Options::default().drain_timeout),
            tls: None,
        }
    }
}

/// What is kept of each stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Journal {
    /// Batches in the replay window. It decides how long a consumer may be away and still resume without a
    /// snapshot.
    pub(crate) max_batches: usize,
    /// Bytes in the replay window.
    pub(crate) max_bytes: ByteSize,
    /// Bytes of the live state, estimated. When it is full, new blocks are not recorded: `lower`, `budget`.
    pub(crate) max_state_bytes: ByteSize,
    /// What a gap does that cannot be filled: `drop` drops what the stream held and goes on as `lower`,
    /// `gap`; `keep` keeps it, and is `unsound`, `gap_kept`.
    pub(crate) on_gap: OnGapName,
    /// Directory of the durable journal: a restarted kvplane goes on where it was, and no consumer is reset. It holds
    /// prompts as token ids. Absent: a restart begins anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<PathBuf>,
    /// How often the durable journal is forced onto the disk: a duration, `always` (before anybody is told), or `off`
    /// (when the system sees fit). It matters where the machine loses its power, and not where kvplane is killed.
    pub(crate) sync: SyncRule,
    /// Bytes that the durable journal may take. Beyond that it is off until the next start.
    pub(crate) max_disk: ByteSize,
    /// Tokens of blocks: `keep` keeps them for subscribers; `drop` compares blocks by the hash of their
    /// content, and answers questions from less memory. SMG's subscriptions, `republish` and `report` need
    /// them.
    pub(crate) tokens: TokensName,
}

impl Default for Journal {
    fn default() -> Self {
        let (options, kept) = (PlaneOptions::default(), DurableOptions::default());
        Self {
            max_batches: options.max_batches,
            max_bytes: ByteSize(options.max_bytes),
            max_state_bytes: ByteSize(options.state.max_bytes),
            on_gap: OnGapName::Drop,
            dir: None,
            sync: SyncRule(kept.sync),
            max_disk: ByteSize(usize::try_from(kept.max_disk).unwrap_or(usize::MAX)),
            tokens: TokensName::Keep,
        }
    }
}

impl Journal {
    /// The durable journal, where there is to be one.
    pub(crate) fn durable(&self) -> Option<DurableSpec> {
        let options = DurableOptions {
            sync: self.sync.0,
            max_disk: self.max_disk.0 as u64,
            ..DurableOptions::default()
        };
        self.dir.clone().map(|dir| DurableSpec { dir, options })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TokensName {
    /// For everybody who may ask for them.
    Keep,
    /// They are gone once the content of their block is known.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnGapName {
    /// Fail closed.
    Drop,
    /// Go on.
    Keep,
}

/// How streams are followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Follow {
    /// A stream whose engine has not been proven to be there for longer than this is `recovering` and not
    /// credited, unless its engine has a `max_silence` of its own.
    pub(crate) max_silence: Span,
    /// Without a verdict for longer than this, a stream is `down`.
    pub(crate) down_after: Span,
    /// One replay may be silent for so long.
    pub(crate) replay_idle: Span,
    /// One replay may take so long in all.
    pub(crate) replay_deadline: Span,
    /// After this `/readyz` says yes even if an engine was never heard.
    pub(crate) ready_deadline: Span,
    /// How often an engine is asked where it publishes while something of it is missing.
    pub(crate) discover_every: Span,
}

impl Default for Follow {
    fn default() -> Self {
        let options = PlaneOptions::default();
        Self {
            max_silence: Span(options.max_silence),
            down_after: Span(options.down_after),
            replay_idle: Span(options.replay_idle),
            replay_deadline: Span(options.replay_deadline),
            ready_deadline: Span(kvplane_server::Options::default().ready_deadline),
            discover_every: Span(options.discover_every),
        }
    }
}

/// What each index may use: there is one per model and block size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct IndexConfig {
    /// Memory. What does not fit is not indexed: answers say `lower`, `budget` of that stream until its next
    /// clear or life. Nothing is evicted.
    pub(crate) max_bytes: ByteSize,
    /// Blocks of a stream that may wait for a parent that nobody holds; beyond that `lower`,
    /// `waiting_overflow`.
    pub(crate) max_waiting: usize,
}

impl Default for IndexConfig {
    fn default() -> Self {
        let options = PlaneOptions::default().index;
        Self { max_bytes: ByteSize(options.max_bytes), max_waiting: options.max_waiting }
    }
}

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QueryConfig {
    /// The longest prompt that may be asked for; also bounds the size of a request.
    pub(crate) max_tokens: usize,
    /// How long the text of a decision (`/v1/pick`) may take to become token ids, before a millisecond for
    /// every 4 KiB of it. A text that takes longer is routed by load: `why` is `no_tokens`.
    pub(crate) tokenize_timeout: Span,
}

impl Default for QueryConfig {
    fn default() -> Self {
        let options = kvplane_server::Options::default();
        Self { max_tokens: options.max_tokens, tokenize_timeout: Span(options.tokenize_timeout) }
    }
}

/// Which states are credited in answers, and given out where an answer cannot carry a flag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrustConfig {
    /// Levels that are credited in answers to questions, and whose state is given out by formats that cannot
    /// carry a flag: the routes of an indexer, `/kv_recover` and SMG's `SubscribeKvEvents`. kvplane.v1 always
    /// gives the state and says what it is worth; `republish` gives it at any level.
    pub(crate) credit: Vec<TrustName>,
}

impl Default for TrustConfig {
    fn default() -> Self {
        Self { credit: vec![TrustName::Exact, TrustName::Lower, TrustName::Unverified] }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TrustName {
    Exact,
    Lower,
    Unverified,
    Unsound,
}

/// What `/metrics` tells.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MetricsConfig {
    /// What has series of its own: every `stream`, every `engine` with its ranks together, or the `fleet`,
    /// model by model. `auto` is the finest of them that has at most 500 rows. `/metrics?detail=stream` asks
    /// for another one.
    pub(crate) detail: DetailName,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DetailName {
    #[default]
    Auto,
    Stream,
    Engine,
    Fleet,
}

/// Engines that come while the plane runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MembersConfig {
    /// Engines at the same time, however they were added.
    pub(crate) max_engines: usize,
}

impl Default for MembersConfig {
    fn default() -> Self {
        Self { max_engines: PlaneOptions::default().max_engines }
    }
}

impl Config {
    /// The engines. Finds every mistake that can be found without touching the network.
    pub(crate) fn plans(&self) -> anyhow::Result<Vec<EnginePlan>> {
        self.hints.check()?;
        let mut plans: Vec<EnginePlan> = Vec::new();
        for (at, engine) in self.engine.iter().enumerate() {
            let plan = engine.clone().plan().with_context(|| format!("engine[{at}] ({:?})", engine.id))?;
            if let Some(first) = plans.iter().position(|other| other.id() == plan.id()) {
                bail!(
                    "engine[{at}].id: {:?} is used twice (first by engine[{first}]): give one of them another",
                    engine.id
                );
            }
            ensure!(
                engine.republish.is_none() || self.keeps_tokens(),
                "engine[{at}] ({:?}): republish: needs tokens, and journal.tokens is \"drop\"",
                engine.id
            );
            plans.push(plan);
        }
        Ok(plans)
    }

    /// Who may ask, and whether the listeners may be where they are to be.
    pub(crate) fn access(&self, insecure: bool) -> anyhow::Result<Access> {
        let access = Access::new(self.keys()?, insecure);
        access.open_to(self.networks(insecure)?);
        access.check_listener("listen.http", Port::Http, self.listen.http)?;
        access.check_listener("listen.grpc", Port::Grpc, self.listen.grpc)?;
        Ok(access)
    }

    /// Networks whose callers need no key on the routes of an indexer.
    pub(crate) fn networks(&self, insecure: bool) -> anyhow::Result<Networks> {
        self.indexer.networks(insecure)
    }

    /// Other indexers, and how they are asked.
    pub(crate) fn peers(&self) -> anyhow::Result<PeerOptions> {
        self.indexer.peers()
    }

    /// The keys of those who may ask, read from their files and the environment.
    pub(crate) fn keys(&self) -> anyhow::Result<Keys> {
        let shown = self.listen.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        self.auth.keys(shown)
    }

    /// TLS of the listeners. Reads certificates.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Arc<Tls>>> {
        let tls = self.listen.tls.clone().map(Tls::load).transpose().context("listen.tls")?;
        Ok(tls.map(Arc::new))
    }

    /// What is reported to others. Finds every mistake that can be found without touching the network.
    pub(crate) fn reports(&self) -> anyhow::Result<Vec<ReportSpec>> {
        ensure!(
            self.report.is_empty() || self.keeps_tokens(),
            "report: tells of blocks by their tokens, and journal.tokens is \"drop\""
        );
        let reports = self.report.iter().enumerate();
        let reports = reports.map(|(at, report)| report.spec().with_context(|| format!("report[{at}]")));
        let reports: Vec<ReportSpec> = reports.collect::<anyhow::Result<_>>()?;
        report::check_distinct(&reports, &self.engine)?;
        Ok(reports)
    }

    /// The keys that need a restart and have another value in `other`.
    pub(crate) fn differs_in(&self, other: &Self) -> anyhow::Result<Vec<String>> {
        let (mine, theirs) = (toml::Table::try_from(self)?, toml::Table::try_from(other)?);
        let mut keys = Vec::new();
        let fixed = |section: &str| !["engine", "report", "auth"].contains(&section);
        let all: BTreeSet<&String> =
            mine.keys().chain(theirs.keys()).filter(|section| fixed(section)).collect();
        for section in all {
            let is_list = |tree: &toml::Table| tree.get(section).is_some_and(toml::Value::is_array);
            if is_list(&mine) || is_list(&theirs) {
                keys.extend((mine.get(section) != theirs.get(section)).then(|| section.clone()));
                continue;
            }
            let values = |tree: &toml::Table| tree.get(section).and_then(toml::Value::as_table).cloned();
            let (mine, theirs) = (values(&mine).unwrap_or_default(), values(&theirs).unwrap_or_default());
            let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
            let differ = names.into_iter().filter(|name| mine.get(*name) != theirs.get(*name));
            keys.extend(differ.map(|name| format!("{section}.{name}")));
        }
        keys.retain(|key| !["indexer.open", "indexer.open_read"].contains(&key.as_str()));
        Ok(keys)
    }

    fn keeps_tokens(&self) -> bool {
        self.journal.tokens == TokensName::Keep
    }

    pub(crate) fn plane_options(&self) -> PlaneOptions {
        PlaneOptions {
            max_batches: self.journal.max_batches.max(1),
            max_bytes: self.journal.max_bytes.0,
            state: Limits {
                max_bytes: self.journal.max_state_bytes.0,
                keep_tokens: self.keeps_tokens(),
                ..Limits::default()
            },
            index: kvplane_index::Options {
                max_bytes: self.index.max_bytes.0,
                max_waiting: self.index.max_waiting,
            },
            on_gap: match self.journal.on_gap {
                OnGapName::Drop => OnGap::Drop,
                OnGapName::Keep => OnGap::Keep,
            },
            max_silence: self.follow.max_silence.0,
            down_after: self.follow.down_after.0,
            replay_idle: self.follow.replay_idle.0,
            replay_deadline: self.follow.replay_deadline.0,
            max_engines: self.members.max_engines,
            discover_every: self.follow.discover_every.0,
            peers: PeerOptions::default(),
            durable: None,
        }
    }

    /// Tokenizers and templates. Reads files, and takes seconds for large vocabularies.
    pub(crate) fn prompts(&self) -> anyhow::Result<Prompts> {
        model::load(&self.model)
    }

    pub(crate) fn server_options(
        &self,
        access: Arc<Access>,
        tls: Option<Arc<Tls>>,
        prompts: Prompts,
    ) -> kvplane_server::Options {
        let credit = self.trust.credit.iter().map(|name| match name {
            TrustName::Exact => Trust::Exact,
            TrustName::Lower => Trust::Lower,
            TrustName::Unverified => Trust::Unverified,
            TrustName::Unsound => Trust::Unsound,
        });
        kvplane_server::Options {
            credit: credit.collect(),
            max_tokens: self.query.max_tokens,
            tokenize_timeout: self.query.tokenize_timeout.0,
            ready_deadline: self.follow.ready_deadline.0,
            drain_timeout: self.listen.drain_timeout.0,
            hints: self.hints.options(),
            prompts,
            access,
            tls,
            bounds: kvplane_access::Bounds::default(),
            metrics_detail: match self.metrics.detail {
                DetailName::Auto => None,
                DetailName::Stream => Some(MetricsDetail::Stream),
                DetailName::Engine => Some(MetricsDetail::Engine),
                DetailName::Fleet => Some(MetricsDetail::Fleet),
            },
            indexer_metrics: self.indexer.metrics,
            commit: crate::version::COMMIT,
            discovery: kvplane_kubernetes::Board::default(),
        }
    }
}
