//! `/probe`: whether what is reported is found again.
//!
//! A marker is reported and looked up by the same code as everybody's, in a book of its own: it leaves no
//! traces, neither in what gateways get nor in what is counted. The book that gateways ask is asked once too,
//! for the tenant of probes, of whom nothing is ever known: that it answers at all. What lies behind a
//! replica's device is not looked at.

use std::sync::Arc;

use kvplane_core::PublicError;
use kvplane_hints::{
    Asked, Book, Limits, Policies, Policy, PrefixHash, Question, RESERVED_TENANT, ReasonCode, Verdict,
};
use kvplane_metrics::hint_counters::Counters;
use kvplane_proto::inferencecache as proto;
use kvplane_report::unix_us;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hints::{Hints, take_update};

/// Tokens of the marker's one block.
const TOKENS: u32 = 16;
const TENANT: &str = "marker";

/// What is to be probed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ProbeRequest {
    backend: String,
    model: String,
    hash_scheme: String,
    /// Nothing depends on it here.
    #[serde(default, rename = "backendType")]
    _backend_type: Option<String>,
}

/// What became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProbeResult {
    backend: String,
    ingest: Stage,
    routing: Stage,
    t2: Stage,
    errors: Vec<StageError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Ok,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StageError {
    stage: &'static str,
    message: String,
}

/// Reports a marker and looks it up.
pub(super) async fn run(hints: &Arc<Hints>, asked: ProbeRequest) -> Result<ProbeResult, PublicError> {
    let required = [("backend", &asked.backend), ("model", &asked.model), ("hashScheme", &asked.hash_scheme)];
    if let Some((field, _)) = required.into_iter().find(|(_, value)| value.is_empty()) {
        return Err(PublicError::field(field, "is missing"));
    }
    let mut result = ProbeResult {
        backend: asked.backend.clone(),
        ingest: Stage::Ok,
        routing: Stage::Ok,
        t2: Stage::Skipped,
        errors: Vec::new(),
    };
    if let Err(message) = try_out(hints, &asked).await {
        let (stage, message) = message;
        let failed = if stage == "ingest" { &mut result.ingest } else { &mut result.routing };
        *failed = Stage::Failed;
        if stage == "ingest" {
            result.routing = Stage::Skipped;
        }
        result.errors.push(StageError { stage, message });
    }
    Ok(result)
}

/// Where it failed, and how.
async fn try_out(hints: &Hints, asked: &ProbeRequest) -> Result<(), (&'static str, String)> {
    let policy = Policy { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..Policy::default() };
    let policies = Policies { default: policy, ..Policies::default() };
    let book = Book::new(Limits::default(), policies, None);
    let names = [&asked.backend, &asked.model, &asked.hash_scheme].map(String::as_str).join("\0");
    let marker = kvplane_core::digest(names.as_bytes()).to_be_bytes();
    let update = proto::CacheStateUpdate {
        replica_id: asked.backend.clone(),
        model_id: asked.model.clone(),
        tenant_id: TENANT.to_owned(),
        hash_scheme: asked.hash_scheme.clone(),
        prefixes: vec![proto::PrefixEntry {
            block_hashes: vec![marker.to_vec().into()],
            block_token_counts: vec![TOKENS as i32],
            ..Default::default()
        }],
        ..Default::default()
    };
    let taken = take_update(&book, &Counters::default(), update, unix_us()).await;
    taken.map_err(|error| ("ingest", error.message))?;
    let (_, prefixes) = book.state(TENANT, &asked.model);
    if prefixes != 1 {
        return Err(("ingest", format!("one prefix was reported, but {prefixes} are held")));
    }
    let found = look_up(&book, TENANT, asked, &marker);
    if found.reason != ReasonCode::PrefixMatch
        || found.scores.iter().all(|score| *score.replica != *asked.backend)
    {
        return Err(("routing", format!("the marker was not found again: {}", found.reason)));
    }
    let nobody = look_up(&hints.book, RESERVED_TENANT, asked, &marker);
    if nobody.reason != ReasonCode::NoHint {
        return Err(("routing", format!("something is known of the tenant of probes: {}", nobody.reason)));
    }
    Ok(())
}

fn look_up(book: &Book, tenant: &str, asked: &ProbeRequest, marker: &[u8]) -> Verdict {
    let question = Question {
        tenant,
        model: &asked.model,
        scheme: &asked.hash_scheme,
        adapter: "",
        asked: Asked::Chain { hashes: &[PrefixHash::from_bytes(marker)], counts: &[TOKENS] },
        chain_on_wire: true,
        ttft_ms: 0,
        expired: false,
    };
    book.lookup(&question, unix_us())
}
