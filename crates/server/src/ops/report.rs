//! What is reported of an operation while it runs, for every protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Tier;
use kvplane_stream::FlushReach;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::verdict::Verdict;

/// One step of an operation: the plan, then reports of ranks, at the end a summary.
#[derive(Debug, Clone)]
pub(crate) enum Update {
    Plan(Plan),
    Rank(RankReport),
    Summary(Summary),
}

/// A rank, by the names that people know it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct RankName {
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) model: String,
    pub(crate) kind: &'static str,
}

/// Who will be asked.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Plan {
    pub(crate) operation: String,
    pub(crate) verb: &'static str,
    pub(crate) ranks: Vec<PlannedRank>,
    /// Servers that will be asked.
    pub(crate) backends: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct PlannedRank {
    #[serde(flatten, serialize_with = "as_name")]
    #[schemars(with = "RankName")]
    pub(crate) name: Arc<RankName>,
    /// How its server will be asked; empty if it will not be.
    pub(crate) call: String,
    /// Why it will not be asked; empty if it will be.
    pub(crate) unsupported: String,
}

/// How far an operation on a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Asking,
    Proving,
    Over,
}

/// What is known of a rank.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RankReport {
    #[serde(flatten, serialize_with = "as_name")]
    #[schemars(with = "RankName")]
    pub(crate) name: Arc<RankName>,
    pub(crate) phase: Phase,
    /// Only in the last report.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) why: String,
    /// What was asked last; empty if nothing was.
    pub(crate) asked: String,
    #[serde(rename = "answer_s", serialize_with = "as_seconds")]
    #[schemars(with = "f64")]
    pub(crate) answered_after: Duration,
    #[serde(rename = "proof_s", serialize_with = "as_seconds")]
    #[schemars(with = "f64")]
    pub(crate) proven_after: Duration,
    pub(crate) may_still_complete: bool,
    #[serde(flatten, serialize_with = "as_tiers")]
    #[schemars(with = "Tiers")]
    pub(crate) reach: FlushReach,
    /// What the engine said of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile_id: Option<String>,
    /// The engine itself says that the rank did it.
    #[serde(skip)]
    pub(crate) reported_success: bool,
}

impl RankReport {
    pub(crate) fn new(name: Arc<RankName>, phase: Phase) -> Self {
        Self {
            name,
            phase,
            verdict: None,
            why: String::new(),
            asked: String::new(),
            answered_after: Duration::ZERO,
            proven_after: Duration::ZERO,
            may_still_complete: false,
            reach: FlushReach::default(),
            detail: None,
            profile_id: None,
            reported_success: false,
        }
    }

    /// Whether the rank did it, as far as that can be known.
    pub(crate) fn is_good(&self) -> bool {
        self.verdict.is_some_and(Verdict::is_good)
    }
}

/// The end of an operation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Ranks by verdict.
    pub(crate) verdicts: BTreeMap<&'static str, u32>,
    pub(crate) outcome: Outcome,
    #[serde(rename = "took_s", serialize_with = "as_seconds")]
    #[schemars(with = "f64")]
    pub(crate) took: Duration,
}

/// Every rank proven or done, some, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    All,
    Partly,
    None,
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Partly => "partly",
            Self::None => "none",
        }
    }
}

fn as_name<S: Serializer>(name: &Arc<RankName>, serializer: S) -> Result<S::Ok, S::Error> {
    name.as_ref().serialize(serializer)
}

fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

#[derive(Serialize, JsonSchema)]
struct Tiers {
    tiers_cleared: Vec<&'static str>,
    tiers_remaining: Vec<Remaining>,
}

#[derive(Serialize, JsonSchema)]
struct Remaining {
    tier: &'static str,
    /// Absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u64>,
}

fn as_tiers<S: Serializer>(reach: &FlushReach, serializer: S) -> Result<S::Ok, S::Error> {
    let remaining = |(tier, blocks): &(Tier, Option<u64>)| Remaining { tier: tier.as_str(), blocks: *blocks };
    Tiers {
        tiers_cleared: reach.cleared.iter().map(|tier| tier.as_str()).collect(),
        tiers_remaining: reach.remaining.iter().map(remaining).collect(),
    }
    .serialize(serializer)
}
