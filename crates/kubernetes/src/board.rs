//! What discovery shows: how each source is, and what became of every pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::group::Verdict;
use crate::wanted::{Decided, PodRef, Remark};

/// All sources. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Mutex<Vec<Known>>>);

/// One source, and what became of its pods.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// How it is.
    pub source: SourceReport,
    /// By the engine's name.
    pub pods: BTreeMap<String, PodReport>,
}

/// How a source is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceReport {
    /// Its place under `[[discover]]`, and what it looks at.
    pub name: String,
    /// How it goes.
    pub state: SourceState,
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// Why it is not watching, and what to do.
    pub problem: Option<String>,
    /// Pods that match.
    pub pods: usize,
    /// Those that are engines.
    pub engines: usize,
    /// Counted since the start.
    pub counted: SourceStats,
}

/// Counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceStats {
    /// Lists that ended.
    pub lists: u64,
    /// Changes received.
    pub changes: u64,
    /// Requests without rights (401, 403).
    pub forbidden: u64,
    /// Watches whose past was gone (410).
    pub expired: u64,
    /// Other failures: no connection, a connection that was cut, an invalid answer.
    pub failed: u64,
    /// Pods beyond the bound.
    pub refused: u64,
    /// Engines that the fleet did not take.
    pub conflicts: u64,
}

/// How a source goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// Nothing was listed yet.
    #[default]
    Starting,
    /// Up to date.
    Watching,
    /// Listing again; what is known stays.
    Listing,
    /// The API server refuses; what is known stays.
    Forbidden,
    /// The API server does not answer; what is known stays.
    Unreachable,
    /// The pool that selects the pods does not exist.
    NoPool,
}

impl SourceState {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Watching => "watching",
            Self::Listing => "listing",
            Self::Forbidden => "forbidden",
            Self::Unreachable => "unreachable",
            Self::NoPool => "no_pool",
        }
    }

    /// Whether what is known is what is there.
    pub fn is_current(self) -> bool {
        self == Self::Watching
    }
}

/// What became of a pod, or of a group of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PodReport {
    /// The engine's name, whether there is one or not.
    pub engine: String,
    /// `engine`, `waiting` for its model, `not_added` by the fleet, or `none`.
    pub verdict: &'static str,
    /// Why there is no engine.
    pub reason: Option<String>,
    /// The pods, the leader first.
    pub pods: Vec<PodRef>,
    /// What was decided, key by key.
    pub decided: Vec<Decided>,
    /// What is wrong, and how to fix it.
    pub remarks: Vec<Remark>,
}

impl PodReport {
    fn of(engine: &str, verdict: Verdict) -> Self {
        let (verdict, reason, pods, decided, remarks) = match verdict {
            Verdict::Engine(wanted) => ("engine", None, wanted.pods, wanted.decided, wanted.remarks),
            Verdict::Asking(url, decided, remarks) => {
                let reason = format!(
                    "waiting for {url}/v1/models to say the model; annotation kvplane.io/model says it at once"
                );
                ("waiting", Some(reason), Vec::new(), decided, remarks)
            }
            Verdict::None(reason, remarks) => ("none", Some(reason), Vec::new(), Vec::new(), remarks),
        };
        Self { engine: engine.to_owned(), verdict, reason, pods, decided, remarks }
    }

    /// Whether it is about this pod: by its name, with or without the namespace, or the engine's.
    pub fn is_about(&self, name: &str) -> bool {
        let named = |place: &str| place == name || place.rsplit('/').next() == Some(name);
        named(&self.engine) || self.pods.iter().any(|pod| named(&pod.pod) || pod.uid == name)
    }
}

impl Board {
    /// A new source's place.
    pub fn add(&self, name: String, now_ms: u64) -> usize {
        let mut sources = self.0.lock();
        let source = SourceReport { name, since_ms: now_ms, ..SourceReport::default() };
        sources.push(Known { source, pods: BTreeMap::new() });
        sources.len() - 1
    }

    /// Changes how a source is. True if its state or its problem is another one.
    pub fn report(&self, at: usize, now_ms: u64, change: impl FnOnce(&mut SourceReport)) -> bool {
        let mut sources = self.0.lock();
        let Some(known) = sources.get_mut(at) else { return false };
        let before = (known.source.state, known.source.problem.clone());
        change(&mut known.source);
        let changed = before != (known.source.state, known.source.problem.clone());
        if before.0 != known.source.state {
            known.source.since_ms = now_ms;
        }
        changed
    }

    /// What became of a pod.
    pub fn judged(&self, at: usize, engine: &str, verdict: Option<Verdict>) {
        let mut sources = self.0.lock();
        let Some(known) = sources.get_mut(at) else { return };
        match verdict {
            Some(verdict) => known.pods.insert(engine.to_owned(), PodReport::of(engine, verdict)),
            None => known.pods.remove(engine),
        };
    }

    /// The fleet did not take an engine.
    pub fn not_added(&self, at: usize, engine: &str, why: &str) {
        let mut sources = self.0.lock();
        let Some(known) = sources.get_mut(at) else { return };
        known.source.counted.conflicts += 1;
        if let Some(report) = known.pods.get_mut(engine) {
            report.verdict = "not_added";
            report.reason = Some(why.to_owned());
        }
    }

    /// How every source is.
    pub fn sources(&self) -> Vec<SourceReport> {
        self.0.lock().iter().map(|known| known.source.clone()).collect()
    }

    /// What became of pods: of all, or of those that are named so. At most `limit`.
    pub fn pods(&self, name: Option<&str>, limit: usize) -> Vec<PodReport> {
        let sources = self.0.lock();
        let all = sources.iter().flat_map(|known| known.pods.values());
        let wanted = all.filter(|report| name.is_none_or(|name| report.is_about(name)));
        wanted.take(limit).cloned().collect()
    }

    /// Whether anything is looked for.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
