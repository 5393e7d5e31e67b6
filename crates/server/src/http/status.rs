//! `/v1/status` and `/v1/engines`.

mod durable;

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_access::{Access, Listener, descriptor_limit, open_descriptors};
use kvplane_catalog::age_ms;
use kvplane_core::{LinkTrouble, PublicError, Tier, Trouble};
use kvplane_ingest::{Engine, Engines, Events, Finding, Plane, RankSpec, Source, Stream};
use kvplane_kubernetes::{Board, SourceReport};
use kvplane_metrics::{COUNTERS, rejected};
use kvplane_prompt::{ParityRow, Standing};
use kvplane_report::{ReplicaReport, Reports};
use kvplane_stream::Group;
use schemars::JsonSchema;
use serde::Serialize;

use durable::JournalStatus;

use crate::listeners::Doors;
use crate::questions::Asker;
use crate::routing::Routing;
use crate::value::ValueStatus;

/// Everything, at one moment per stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PlaneStatus {
    /// This plane's identity; another run has another.
    plane: String,
    /// What was asked for, and what of it the fleet holds.
    queries: ValueStatus,
    /// How often the fleet holds the same blocks.
    duplication: Duplication,
    engines: Vec<EngineStatus>,
    /// How many engines there are, on this page or not.
    engines_total: usize,
    /// There are more: the next page is `?after=` this.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// What is reported to others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reports: Vec<ReportStatus>,
    /// Sockets that others connect to.
    listeners: Vec<Listener>,
    /// Listeners beyond loopback may be without keys (`--insecure`).
    insecure: bool,
    process: ProcessStatus,
    /// The durable journal, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalStatus>,
    routing: RoutingStatus,
    /// Engines that compute other token ids than kvplane for some prompts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contradicted_tokenizers: Vec<ContradictedTokenizer>,
    /// Sources of engines, and how each is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discovery: Vec<SourceReport>,
}

/// What came of decisions.
#[derive(Debug, Serialize, JsonSchema)]
struct RoutingStatus {
    /// Receipts with a report of delivered tokens.
    settled: u64,
    /// Of those, exact predictions that differ from what was delivered, without any event of the engine that
    /// says why.
    drifts: u64,
    /// The last of those; null where there is none.
    last_drift: Option<DriftStatus>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DriftStatus {
    receipt: String,
    engine: String,
    rank: u32,
    kind: &'static str,
    at_ms: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContradictedTokenizer {
    model: String,
    engine: String,
    /// The kinds of prompts.
    dimensions: Vec<&'static str>,
}

/// Blocks that several engines hold. All models together.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Duplication {
    /// Blocks, once per stream that holds them.
    blocks: usize,
    /// Different blocks.
    distinct_blocks: usize,
}

impl Duplication {
    pub(crate) fn of(plane: &Plane) -> Self {
        plane.catalog().stats().iter().fold(Self::default(), |sum, index| Self {
            blocks: sum.blocks + index.stats.blocks,
            distinct_blocks: sum.distinct_blocks + index.stats.distinct,
        })
    }
}

/// What the system allows the process, and what it uses; null where the system does not say.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessStatus {
    open_files: Option<u64>,
    open_files_limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReportStatus {
    server: String,
    engine: String,
    tenant: String,
    model: String,
    scheme: String,
    replica: String,
    /// `told`, `telling`, `failing` or `unreachable`.
    state: &'static str,
    pending_adds: usize,
    pending_evictions: usize,
    blocks: usize,
    seconds_since_last_taken: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct EngineStatus {
    id: String,
    kind: &'static str,
    model: String,
    /// Where it comes from, if it is an engine of another plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<OriginStatus>,
    /// How the way to it is, if it is another plane itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<LinkStatus>,
    /// Who found it, if nobody listed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<FoundStatus>,
    ranks: Vec<RankStatus>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OriginStatus {
    link: String,
    /// Its name there.
    engine: String,
    /// The planes that it came through, this one last.
    via: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LinkStatus {
    connected: bool,
    /// The other plane's identity, as last heard.
    plane: Option<String>,
    trouble: Option<&'static str>,
    /// Its engines that came through this plane.
    refused: Vec<String>,
    connects: u64,
    loops: u64,
    voids: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RankStatus {
    rank: u32,
    /// How old all of this is, because the stream is busy with a batch; absent if it was read just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_before_ms: Option<u64>,
    continuity: &'static str,
    /// How old the proof is that the engine is there, milliseconds; null before the first, 0 where the source
    /// cannot fall silent. Beyond `max_silence_ms` the stream is recovering.
    age_ms: Option<u64>,
    /// The longest age at which the stream is credited; null where the source cannot fall silent.
    max_silence_ms: Option<u64>,
    trust: &'static str,
    reason: Option<&'static str>,
    since_ms: Option<u64>,
    /// All reasons, oldest first.
    reasons: Vec<ReasonSince>,
    /// What keeps the source from being heard.
    trouble: Option<&'static str>,
    /// Why the index knows less of the stream than its journal does.
    index_reason: Option<&'static str>,
    epoch: u64,
    /// The engine's own number; null before the first batch.
    last_sequence: Option<u64>,
    known_from: Option<u64>,
    /// kvplane's own position; a string, because it is beyond 2^53.
    cursor: String,
    /// Order-independent digest of what is resident at the cursor.
    digest: String,
    blocks: BTreeMap<&'static str, u64>,
    /// Device blocks in use: every copy, in all groups.
    used_blocks: u64,
    /// Device blocks that the engine has; null where it does not say.
    capacity_blocks: Option<u64>,
    block_size: Option<u32>,
    groups: Vec<GroupStatus>,
    /// Since it was applied, or since the engine's stamp if a replay brought it; null where that is no time
    /// of day.
    seconds_since_last_event: Option<f64>,
    window: WindowStatus,
    state: StateStatus,
    counters: CounterStatus,
}

/// A group of the engine's cache.
#[derive(Debug, Serialize, JsonSchema)]
struct GroupStatus {
    group: Option<u32>,
    kind: &'static str,
    /// The engine's word for the kind.
    spec_kind: Option<String>,
    sliding_window: Option<u32>,
    block_size: Option<u32>,
    /// Prompts are told in its blocks.
    main: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReasonSince {
    reason: &'static str,
    since_ms: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WindowStatus {
    batches: usize,
    bytes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StateStatus {
    dictionary: usize,
    waiting: usize,
    unjoined: u64,
    bytes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CounterStatus {
    #[serde(flatten)]
    plain: BTreeMap<&'static str, u64>,
    rejected: BTreeMap<String, u64>,
    /// How often each kind of trouble began.
    troubles: BTreeMap<&'static str, u64>,
}

/// Engines on a page where nobody says how many: some 3 KiB for each of their streams.
const PAGE: usize = 1_000;
/// The longest page.
const MAX_PAGE: usize = 10_000;

/// How many engines a page is to have.
pub(super) fn limit(text: &str) -> Result<usize, PublicError> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    limit.ok_or_else(|| PublicError::field("limit", format!("must be a whole number from 1 to {MAX_PAGE}")))
}

/// The engines of one page, and whether more follow. All of them in the order of the plane, if they fit; else
/// by name.
fn on_page(engines: &Engines, after: Option<&str>, limit: usize) -> (Vec<Arc<Engine>>, bool) {
    if after.is_none() && engines.len() <= limit {
        return (engines.to_vec(), false);
    }
    let name = |engine: &Arc<Engine>| engine.spec.id.as_str().to_owned();
    let follows = |engine: &&Arc<Engine>| after.is_none_or(|after| engine.spec.id.as_str() > after);
    let mut page: Vec<Arc<Engine>> = engines.iter().filter(follows).cloned().collect();
    page.sort_by_cached_key(name);
    let more = page.len() > limit;
    page.truncate(limit);
    (page, more)
}

/// What the page is read off.
#[derive(Debug)]
pub(crate) struct StatusPage {
    pub(crate) asker: Arc<Asker>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) doors: Arc<Doors>,
    pub(crate) access: Arc<Access>,
    pub(crate) discovery: Board,
}

impl StatusPage {
    pub(super) fn plane(&self) -> &Plane {
        &self.asker.plane
    }

    /// A page of engines, from behind the one that is named on, and what is to be said of the whole.
    pub(super) fn read(&self, after: Option<&str>, limit: Option<usize>) -> PlaneStatus {
        let plane = self.plane();
        let engines = plane.engines();
        let (page, more) = on_page(&engines, after, limit.unwrap_or(PAGE));
        PlaneStatus {
            plane: plane.id().to_string(),
            queries: self.queries(),
            duplication: Duplication::of(plane),
            engines_total: engines.len(),
            next: page.last().filter(|_| more).map(|last| last.spec.id.to_string()),
            engines: page.iter().map(|member| engine(member)).collect(),
            reports: self.reports.replicas().iter().map(|replica| report(replica)).collect(),
            listeners: self.doors.listeners(),
            insecure: self.access.is_insecure(),
            process: ProcessStatus { open_files: open_descriptors(), open_files_limit: descriptor_limit() },
            journal: plane.durable().map(|durable| JournalStatus::of(durable)),
            routing: self.routing(),
            contradicted_tokenizers: self.contradicted(),
            discovery: self.discovery.sources(),
        }
    }

    pub(super) fn queries(&self) -> ValueStatus {
        self.asker.value.status()
    }

    fn routing(&self) -> RoutingStatus {
        let totals = self.routing.totals();
        let last_drift = self.routing.last_drift().map(|last| DriftStatus {
            receipt: last.receipt,
            engine: last.engine,
            rank: last.rank,
            kind: last.kind,
            at_ms: last.at_ms,
        });
        RoutingStatus { settled: totals.settled, drifts: totals.drifts, last_drift }
    }

    fn contradicted(&self) -> Vec<ContradictedTokenizer> {
        let of = |row: ParityRow| {
            let standings = row.standings.iter().filter(|(_, standing)| *standing == Standing::Contradicted);
            let dimensions: Vec<&'static str> = standings.map(|(dimension, _)| dimension.as_str()).collect();
            let (model, engine) = (row.model, row.engine);
            (!dimensions.is_empty()).then_some(ContradictedTokenizer { model, engine, dimensions })
        };
        self.asker.prompts.parity().into_iter().filter_map(of).collect()
    }
}

fn report(report: &ReplicaReport) -> ReportStatus {
    let (identity, pending) = (&report.identity, report.pending());
    ReportStatus {
        server: report.link.address().url().to_owned(),
        engine: report.engine.clone(),
        tenant: identity.tenant.clone(),
        model: identity.model.clone(),
        scheme: identity.scheme.clone(),
        replica: identity.replica.clone(),
        state: report.state(),
        pending_adds: pending.adds,
        pending_evictions: pending.evictions,
        blocks: pending.maybe_reported,
        seconds_since_last_taken: report.since_last_taken().as_secs_f64(),
    }
}

fn engine(engine: &Engine) -> EngineStatus {
    EngineStatus {
        id: engine.spec.id.to_string(),
        kind: engine.spec.kind.as_str(),
        model: engine.spec.model.clone(),
        from: engine.spec.source.mirrored().map(|spec| OriginStatus {
            link: spec.link.to_string(),
            engine: spec.engine.clone(),
            via: engine.streams.first().map(|stream| via(stream)).unwrap_or_default(),
        }),
        link: engine.link.as_ref().map(|state| link(state.status())),
        found: found(engine),
        ranks: engine.streams.iter().map(|stream| rank(stream)).collect(),
    }
}

fn via(stream: &Stream) -> Vec<String> {
    stream.via().iter().map(ToString::to_string).collect()
}

fn link(status: kvplane_ingest::LinkStatus) -> LinkStatus {
    LinkStatus {
        connected: status.connected,
        plane: status.plane.map(|plane| plane.to_string()),
        trouble: status.trouble.map(LinkTrouble::as_str),
        refused: status.refused.into_iter().collect(),
        connects: status.connects,
        loops: status.loops,
        voids: status.voids.into_iter().collect(),
    }
}

fn rank(stream: &Stream) -> RankStatus {
    let status = stream.glance();
    let worst = status.trust.worst();
    RankStatus {
        rank: stream.id().rank,
        read_before_ms: status.read_before.map(|age| age.as_millis() as u64),
        continuity: status.continuity.as_str(),
        age_ms: status.age.map(age_ms),
        max_silence_ms: stream.freshness().max_silence().map(age_ms),
        trust: status.trust.level().as_str(),
        reason: worst.map(|worst| worst.reason.as_str()),
        since_ms: worst.map(|worst| worst.since_ms),
        reasons: status
            .trust
            .active()
            .iter()
            .map(|d| ReasonSince { reason: d.reason.as_str(), since_ms: d.since_ms })
            .collect(),
        trouble: status.trouble.map(Trouble::as_str),
        index_reason: status.index_lacking.map(kvplane_core::Reason::as_str),
        epoch: status.epoch.as_u64(),
        last_sequence: status.engine_sequence,
        known_from: status.known_from,
        cursor: status.cursor.sequence.to_string(),
        digest: status.digest.to_string(),
        blocks: Tier::ALL.iter().map(|tier| (tier.as_str(), status.blocks[tier.index()])).collect(),
        used_blocks: status.used_blocks,
        capacity_blocks: status.capacity_blocks,
        block_size: status.block_size,
        groups: status.groups.iter().map(group).collect(),
        seconds_since_last_event: status.since_last_event.map(|since| since.as_secs_f64()),
        window: WindowStatus { batches: status.window_entries, bytes: status.window_bytes },
        state: StateStatus {
            dictionary: status.dictionary,
            waiting: status.waiting,
            unjoined: status.unjoined,
            bytes: status.state_bytes,
        },
        counters: CounterStatus {
            plain: COUNTERS.iter().map(|(family, value)| (family.name_in_status(), value(&status))).collect(),
            rejected: rejected(&status),
            troubles: status.troubles.iter().map(|(trouble, count)| (trouble.as_str(), *count)).collect(),
        },
    }
}

fn group(group: &Group) -> GroupStatus {
    GroupStatus {
        group: group.group,
        kind: group.kind().as_str(),
        spec_kind: group.spec_kind.as_deref().map(str::to_owned),
        sliding_window: group.sliding_window,
        block_size: group.block_size,
        main: group.is_main,
    }
}

/// Who found an engine, and which rule decided each key.
#[derive(Debug, Serialize, JsonSchema)]
struct FoundStatus {
    /// The entry of `[[discover]]`.
    source: String,
    /// `namespace/pod`, the leader first.
    pods: Vec<String>,
    decided: Vec<DecidedStatus>,
    /// What is wrong with the pods, and how to fix it.
    remarks: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DecidedStatus {
    key: &'static str,
    value: String,
    rule: String,
}

fn found(engine: &Engine) -> Option<FoundStatus> {
    let Finding { source, places, decided, remarks, .. } = engine.spec.provenance.as_ref()?.get();
    let decided = decided.into_iter().map(|(key, value, rule)| DecidedStatus { key, value, rule });
    Some(FoundStatus { source, pods: places, decided: decided.collect(), remarks })
}

/// An engine as it was described, and by whom.
pub(super) fn described(engine: &Engine) -> serde_json::Value {
    let spec = &engine.spec;
    let ranks = spec.source.ranks().into_iter().map(|RankSpec { rank, events, replay }| {
        let events = (events != Events::Awaited).then(|| events.to_string());
        serde_json::json!({"rank": rank, "events": events, "replay": replay})
    });
    serde_json::json!({
        "id": spec.id.as_str(),
        "kind": spec.kind.as_str(),
        "model": spec.model,
        "ranks": ranks.collect::<Vec<_>>(),
        "topic": spec.topic,
        "block_size": spec.block_size,
        "worker_id": spec.worker_id,
        "tenant": spec.tenant,
        "http": spec.http,
        "grpc": match &spec.source { Source::Linked(link) => Some(&link.url), _ => None },
        "added_by": engine.origin.as_str(),
        "found": found(engine),
    })
}

#[cfg(test)]
mod tests;
