//! What a running plane says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvplane_core::{LinkTrouble, Reason, Trouble, Trust};
use serde::Deserialize;
use serde_json::Value;

use super::remedy::{remedy, remedy_of_trouble};
use super::replay::window_too_short;
use super::setup::{descriptors_for, open_socket};
use super::shape::foreign_rank;
use crate::seen::PlaneSeen;
use crate::{Code, Finding, OpenSocket, Severity};

/// A stream whose past is unknown for longer does not heal by itself soon.
const LONG: Duration = Duration::from_mins(2);

/// The part of `/v1/status` that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    engines: Vec<Engine>,
    listeners: Vec<Listener>,
    process: Process,
    journal: Option<Journal>,
    routing: Routing,
    contradicted_tokenizers: Vec<ContradictedTokenizer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Routing {
    settled: u64,
    drifts: u64,
    last_drift: Option<LastDrift>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Journal {
    state: String,
    reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LastDrift {
    receipt: String,
    engine: String,
    rank: u32,
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContradictedTokenizer {
    model: String,
    engine: String,
    dimensions: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listener {
    name: String,
    address: String,
    loopback: bool,
    keys: bool,
    opened: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    open_files: Option<u64>,
    open_files_limit: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    id: String,
    kind: String,
    link: Option<Link>,
    ranks: Vec<Stream>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Link {
    connected: bool,
    trouble: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Stream {
    rank: u32,
    continuity: String,
    reasons: Vec<ReasonSince>,
    trouble: Option<String>,
    index_reason: Option<String>,
    window: Held,
    counters: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReasonSince {
    reason: String,
    since_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Held {
    batches: u64,
}

/// The part of `/v1/engines` that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    engines: Vec<ListedEngine>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListedEngine {
    id: String,
    ranks: Vec<ListedRank>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListedRank {
    rank: u32,
    events: Option<String>,
    replay: Option<String>,
}

impl Stream {
    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Whether its engine is not heard, and the plane has not said why yet.
    fn is_unheard(&self) -> bool {
        self.trouble.is_none() && matches!(self.continuity.as_str(), "recovering" | "connecting")
    }

    /// Whether its window has let go of something.
    fn is_cut(&self) -> bool {
        self.counter("batches") > self.window.batches
    }
}

impl PlaneSeen {
    /// Whether the plane has heard a stream, `engine/rank`.
    pub fn has_heard(&self, stream: &str) -> bool {
        let status = status(&self.status);
        let heard =
            status.engines.iter().flat_map(|engine| engine.ranks.iter().map(move |rank| (engine, rank)));
        let mut heard = heard.filter(|(_, rank)| rank.counter("batches") > 0);
        heard.any(|(engine, rank)| stream == format!("{}/{}", engine.id, rank.rank))
    }

    /// The streams, `engine/rank`, that the plane follows without trouble.
    pub fn hears(&self) -> BTreeSet<String> {
        let status = status(&self.status);
        let streams = status.engines.iter().flat_map(|engine| {
            let live = engine.ranks.iter().filter(|rank| rank.continuity == "live" && rank.trouble.is_none());
            live.map(|rank| format!("{}/{}", engine.id, rank.rank))
        });
        streams.collect()
    }

    /// Whether it takes a second look: to tell how long windows last, and whether a stream that is not live
    /// stays so.
    pub fn needs_a_second_look(&self) -> bool {
        let status = status(&self.status);
        status.engines.iter().flat_map(|engine| &engine.ranks).any(|rank| rank.is_cut() || rank.is_unheard())
    }
}

/// What is wrong with a running plane and its streams.
pub fn judge_plane(seen: &PlaneSeen) -> Vec<Finding> {
    let now = status(&seen.status);
    let mut found = open_listeners(&now);
    // One that listens on loopback alone, and is reached from elsewhere by way of another.
    if seen.answers_strangers && found.is_empty() {
        found.push(Finding::new(
            Code::OpenListenerWithoutRoles,
            Severity::Error,
            &seen.address,
            "the plane answers beyond loopback, and asked for no key",
            "give callers roles in [auth] (docs/guide/security.md)",
        ));
    }
    found.extend(super::cluster::judge(seen));
    found.extend(descriptors(&now, &seen.address));
    found.extend(now.journal.as_ref().and_then(|journal| journal_off(journal, &seen.address)));
    found.extend(drift(&now.routing, &seen.address));
    found.extend(now.contradicted_tokenizers.iter().map(tokenizer));
    let listed: Listed = Listed::deserialize(&seen.engines).unwrap_or_default();
    let later = seen.later.as_ref().map(|(later, elapsed)| (status(later), *elapsed));
    for engine in &now.engines {
        found.extend(link(engine));
        for rank in &engine.ranks {
            let subject = format!("{}/{}", engine.id, rank.rank);
            let again =
                later.as_ref().and_then(|(later, elapsed)| Some((find(later, engine, rank)?, *elapsed)));
            found.extend(trouble(rank, &subject).or_else(|| unheard(rank, again, &subject)));
            found.extend(reasons(rank, &subject, seen.looked_at_ms));
            found.extend(foreign_batches(engine, rank, &subject));
            found.extend(without_replay(&listed, engine, rank, &subject));
            found.extend(again.and_then(|(later, elapsed)| window(rank, later, elapsed, subject)));
        }
    }
    found
}

fn status(value: &Value) -> Status {
    Status::deserialize(value).unwrap_or_default()
}

fn open_listeners(status: &Status) -> Vec<Finding> {
    let open = status.listeners.iter().filter(|listener| !listener.loopback && !listener.keys);
    open.map(|Listener { name, address, opened, .. }| {
        open_socket(&OpenSocket { key: name.clone(), address: address.clone(), on_purpose: *opened })
    })
    .collect()
}

/// Whether the plane can open what it needs.
fn descriptors(status: &Status, address: &str) -> Option<Finding> {
    let Process { open_files, open_files_limit } = status.process;
    let (limit, open) = (open_files_limit?, open_files.unwrap_or(0));
    let streams = status.engines.iter().map(|engine| engine.ranks.len()).sum();
    let needed = descriptors_for(streams);
    let is_short = open.saturating_mul(10) >= limit.saturating_mul(9);
    let severity = match (is_short, limit < needed) {
        (true, _) => Severity::Error,
        (false, true) => Severity::Warning,
        (false, false) => return None,
    };
    Some(Finding::new(
        Code::DescriptorLimit,
        severity,
        address,
        format!(
            "the plane has {open} descriptors open and may have {limit}; {streams} streams and their consumers need about {needed}"
        ),
        format!(
            "raise it to {} or more: LimitNOFILE in its unit, or ulimit -n where it is started; and restart it",
            needed.max(open.saturating_mul(2))
        ),
    ))
}

/// A durable journal that was given up.
fn journal_off(journal: &Journal, address: &str) -> Option<Finding> {
    if journal.state != "off" {
        return None;
    }
    let reason = journal.reason.as_deref().unwrap_or("unknown");
    let todo = match reason {
        "full" => "make room on the disk of journal.dir, and restart kvplane",
        "limit" => "raise journal.max_disk, and restart kvplane",
        "slow" => "give journal.dir a disk that keeps up (the log says how much waited), and restart kvplane",
        "damaged" => "remove the files in journal.dir after `kvplane journal verify`, and restart kvplane",
        _ => "look at the disk of journal.dir and at kvplane's log, and restart kvplane",
    };
    let seen = format!("the durable journal is off: {reason}");
    Some(Finding::new(Code::JournalOff, Severity::Warning, address, seen, todo))
}

/// Exact predictions that nothing explains.
fn drift(routing: &Routing, address: &str) -> Option<Finding> {
    let Routing { settled, drifts, last_drift } = routing;
    if *drifts == 0 {
        return None;
    }
    let (subject, last) = match last_drift {
        Some(LastDrift { receipt, engine, rank, kind }) => {
            (format!("{engine}/{rank}"), format!(", the last of them {kind} (receipt {receipt})"))
        }
        None => (address.to_owned(), String::new()),
    };
    Some(Finding::new(
        Code::PredictionDrift,
        Severity::Error,
        subject,
        format!("{drifts} of {settled} settled receipts contradict an exact prediction{last}"),
        "GET /v1/receipts/{id} has the account, and the plane's log the stream's position: report both, with the engine's version",
    ))
}

/// An engine that cuts text into other tokens.
fn tokenizer(ContradictedTokenizer { model, engine, dimensions }: &ContradictedTokenizer) -> Finding {
    Finding::new(
        Code::TokenizerContradicted,
        Severity::Error,
        engine,
        format!("it computes other token ids for {model}: {}", dimensions.join(", ")),
        "give [[model]] the tokenizer and the chat template that the engine has, and its chat options; until then send token_ids",
    )
}

fn find<'s>(status: &'s Status, engine: &Engine, rank: &Stream) -> Option<&'s Stream> {
    let engine = status.engines.iter().find(|other| other.id == engine.id)?;
    engine.ranks.iter().find(|other| other.rank == rank.rank)
}

fn link(engine: &Engine) -> Option<Finding> {
    let link = engine.link.as_ref()?;
    let trouble = match link.trouble.as_deref() {
        None if link.connected => return None,
        trouble => trouble.unwrap_or("unreached"),
    };
    let code = if trouble == "refused" { Code::PlaneUnauthorised } else { Code::PlaneUnreachable };
    Some(Finding::new(
        code,
        Severity::Error,
        &engine.id,
        {
            let known = LinkTrouble::ALL.into_iter().find(|known| known.as_str() == trouble);
            format!("{trouble}: {}", known.map_or("the other kvplane is not followed", LinkTrouble::words))
        },
        "start the other kvplane, or correct its address, token and role here",
    ))
}

/// The plane's words for what keeps a source from being heard, as codes.
fn trouble(rank: &Stream, subject: &str) -> Option<Finding> {
    let trouble = match (rank.trouble.as_deref(), rank.continuity.as_str()) {
        (Some(trouble), _) => trouble,
        (None, "down") => "down",
        (None, _) => return None,
    };
    let code = match trouble {
        "no_sources" | "shared_address" => Code::RankMissing,
        "events_disabled" => Code::EventsDisabled,
        "bad_answer" => Code::SourcesUntold,
        "block_size" => Code::BlockSizeContradiction,
        "defect" => Code::StreamNotExact,
        _ => Code::EndpointUnreachable,
    };
    Some(Finding::new(
        code,
        Severity::Error,
        subject,
        {
            let known = Trouble::ALL.into_iter().find(|known| known.as_str() == trouble);
            format!("{trouble}: {}", known.map_or("no events from the engine", Trouble::words))
        },
        remedy_of_trouble(trouble),
    ))
}

/// A stream that the plane does not hear, before it has a word for the trouble: an engine that was killed a
/// second ago. One that is live again at the second look was only catching up.
fn unheard(rank: &Stream, again: Option<(&Stream, Duration)>, subject: &str) -> Option<Finding> {
    if !rank.is_unheard() || again.is_some_and(|(later, _)| later.continuity == "live") {
        return None;
    }
    if let Some(said) = again.and_then(|(later, _)| trouble(later, subject)) {
        return Some(said);
    }
    let continuity = &rank.continuity;
    let seen = match again {
        Some((_, elapsed)) => {
            format!("{continuity}: no sign of the engine for {:.0} s", elapsed.as_secs_f64())
        }
        None => format!("{continuity}: no sign of the engine now"),
    };
    Some(Finding::new(
        Code::EndpointUnreachable,
        Severity::Error,
        subject,
        seen,
        "check that the engine runs and can be reached from kvplane; kvplane doctor --engines checks the engine itself",
    ))
}

/// Why a stream is not exact; each reason under the code that is nearest to it.
fn reasons(rank: &Stream, subject: &str, now_ms: u64) -> Vec<Finding> {
    let mut words: Vec<(&str, u64)> =
        rank.reasons.iter().map(|since| (since.reason.as_str(), since.since_ms)).collect();
    words.extend(rank.index_reason.as_deref().map(|reason| (reason, now_ms)));
    words.dedup_by_key(|(word, _)| *word);
    let known = words.into_iter().filter_map(|(word, since_ms)| {
        let reason = Reason::ALL.into_iter().find(|reason| reason.as_str() == word)?;
        Some((reason, Duration::from_millis(now_ms.saturating_sub(since_ms))))
    });
    known
        // What a source in trouble leads to is said already.
        .filter(|(reason, _)| {
            rank.trouble.is_none()
                || !matches!(reason, Reason::Unheard | Reason::EventsDisabled | Reason::BlockSize)
        })
        // A flush that somebody ordered is under way.
        .filter(|(reason, age)| *reason != Reason::Flushing || *age >= LONG)
        .map(|(reason, age)| {
            if is_missing_history(reason) && age >= LONG {
                return missing_history(reason, age, subject);
            }
            let severity = if reason.trust() == Trust::Unsound { Severity::Error } else { Severity::Warning };
            Finding::new(
                code_of(reason),
                severity,
                subject,
                format!("{} ({}): {}", reason.trust().as_str(), reason.as_str(), reason.words()),
                remedy(reason),
            )
        })
        .collect()
}

/// Whether blocks may be held that were cached before the stream was followed without a gap. A clear ends it.
fn is_missing_history(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::History | Reason::Gap | Reason::Unproven | Reason::Undecodable | Reason::UnprovenFlush
    )
}

/// What was not stored again by now stays invisible until it is evicted.
fn missing_history(reason: Reason, age: Duration, subject: &str) -> Finding {
    let engine = subject.rsplit_once('/').map_or(subject, |(engine, _)| engine);
    Finding::new(
        Code::HistoryMissing,
        Severity::Warning,
        subject,
        format!(
            "{} ({}) for {} minutes: {}",
            reason.trust().as_str(),
            reason.as_str(),
            age.as_secs() / 60,
            reason.words()
        ),
        format!(
            "kvplane flush --engine {engine} --nudge empties the engine's cache and proves it, so that answers are exact from then on; it costs the engine what it has cached. Otherwise wait: every block is known once it was stored again"
        ),
    )
}

fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::StolenDrain | Reason::SuspectedDrain => Code::StolenDrain,
        Reason::EventsDisabled => Code::EventsDisabled,
        Reason::BlockSize => Code::BlockSizeContradiction,
        Reason::Unheard => Code::Silent,
        Reason::Undecodable
        | Reason::MalformedStore
        | Reason::MalformedRemoval
        | Reason::UnknownEvent
        | Reason::UnknownMedium
        | Reason::UnknownGroup
        | Reason::NoFullGroup
        | Reason::GroupLayout => Code::UnsupportedLayout,
        _ => Code::StreamNotExact,
    }
}

/// Batches of another rank on this one's socket.
fn foreign_batches(engine: &Engine, rank: &Stream, subject: &str) -> Option<Finding> {
    let foreign = rank.counter("foreign_rank_batches");
    let seen = format!("{foreign} batches named another rank than this stream's");
    (foreign > 0).then(|| foreign_rank(engine.ranks.len() == 1, subject, seen))
}

fn without_replay(listed: &Listed, engine: &Engine, rank: &Stream, subject: &str) -> Option<Finding> {
    let listed = listed.engines.iter().find(|other| other.id == engine.id)?;
    let listed = listed.ranks.iter().find(|other| other.rank == rank.rank)?;
    let published = listed.events.as_deref()?.trim_start_matches("bind:");
    let is_published = published.starts_with("tcp://") || published.starts_with("ipc://");
    (is_published && engine.kind != "kvplane" && listed.replay.is_none()).then(|| {
        Finding::new(
            Code::ReplayAbsent,
            Severity::Warning,
            subject,
            "no replay is configured",
            "start the engine with a replay_endpoint in --kv-events-config, and configure it as `replay`",
        )
    })
}

/// Of a window that is full, how long it lasts at the rate of two looks.
fn window(rank: &Stream, later: &Stream, elapsed: Duration, subject: String) -> Option<Finding> {
    let batches = later.counter("batches").checked_sub(rank.counter("batches"))?;
    if !later.is_cut() || batches == 0 || elapsed.is_zero() {
        return None;
    }
    window_too_short(subject, batches as f64 / elapsed.as_secs_f64(), later.window.batches as f64)
}
