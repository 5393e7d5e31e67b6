//! Operations on the fleet, in the shapes of SMG's pages, with a status that says how it went: 200 if every
//! rank is proven or done, 207 if some are, 502 if none is.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvplane_access::ApiError;
use kvplane_access::Caller;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ops::{Flush, Profile, Verb, VerbName};
use serde_json::{Map, Value, json};

use super::members::changing;
use super::parameters::{Pairs, Parameters};
use crate::ops::{self, Operations, Outcome, Plan, RankReport, Selection, Summary, Update, Verdict};
use crate::parts::Parts;

pub(super) fn routes() -> Router<Parts> {
    Router::new()
        .route("/flush_cache", changing(post(flush_cache)))
        .route("/start_profile", changing(post(start_profile)))
        .route("/stop_profile", changing(post(stop_profile)))
        .route("/server_info", get(server_info))
        .route("/get_loads", get(get_loads))
}

type Who = Option<Extension<Caller>>;
type Body = Result<Bytes, BytesRejection>;

async fn flush_cache(
    State(operations): State<Arc<Operations>>,
    caller: Who,
    query: Pairs,
    body: Body,
) -> Result<Response, ApiError> {
    let (mut proof_timeout, mut nudge) = (None, false);
    let mut request = read(&operations, query, body, |given, _| {
        proof_timeout = given.seconds("proof_timeout_s", &["proof_timeout"])?;
        nudge = given.flag("nudge", &[])?.unwrap_or(false);
        Ok(Verb::Flush(Flush {
            timeout: given.seconds("timeout_s", &["timeout"])?.unwrap_or_default(),
            reset_running: given.flag("reset_running", &[])?.unwrap_or(false),
            reset_external: given.flag("reset_external", &[])?.unwrap_or(false),
        }))
    })?;
    request.proof_timeout = proof_timeout.unwrap_or(request.proof_timeout);
    request.nudge = nudge;
    operate(&operations, caller, request).await
}

async fn start_profile(
    State(operations): State<Arc<Operations>>,
    caller: Who,
    query: Pairs,
    body: Body,
) -> Result<Response, ApiError> {
    let request = read(&operations, query, body, |given, id| {
        Ok(Verb::StartProfile(Profile {
            id,
            output_dir: given.text("output_dir", &[])?,
            prefix: given.text("prefix", &["profile_prefix"])?,
            start_step: given.number("start_step")?,
            num_steps: given.number("num_steps")?,
            activities: given.list("activities", &[])?,
            with_stack: given.flag("with_stack", &[])?,
            record_shapes: given.flag("record_shapes", &[])?,
            by_stage: given.flag("by_stage", &["profile_by_stage"])?.unwrap_or(false),
            stages: given.list("stages", &["profile_stages"])?,
            merge: given.flag("merge", &["merge_profiles"])?.unwrap_or(false),
        }))
    })?;
    operate(&operations, caller, request).await
}

async fn stop_profile(
    State(operations): State<Arc<Operations>>,
    caller: Who,
    query: Pairs,
    body: Body,
) -> Result<Response, ApiError> {
    let request = read(&operations, query, body, |_, _| Ok(Verb::StopProfile))?;
    operate(&operations, caller, request).await
}

async fn server_info(
    State(operations): State<Arc<Operations>>,
    caller: Who,
    query: Pairs,
) -> Result<Response, ApiError> {
    let request = read(&operations, query, Ok(Bytes::new()), |_, _| Ok(Verb::Info))?;
    operate(&operations, caller, request).await
}

async fn get_loads(
    State(operations): State<Arc<Operations>>,
    caller: Who,
    query: Pairs,
) -> Result<Response, ApiError> {
    let request = read(&operations, query, Ok(Bytes::new()), |_, _| Ok(Verb::Loads))?;
    operate(&operations, caller, request).await
}

/// A verb's own parameters, and those that every operation takes. Nothing else may be given.
fn read(
    operations: &Operations,
    query: Pairs,
    body: Body,
    verb: impl FnOnce(&mut Parameters, ops::Id) -> Result<Verb, PublicError>,
) -> Result<ops::Request, PublicError> {
    let body = body.map_err(|rejection| PublicError::field("body", rejection.body_text()))?;
    let mut given = Parameters::read(query, &body)?;
    let id = operations.mint();
    let mut request = ops::Request::new(id.clone(), verb(&mut given, id)?);
    request.selection = Selection::new(
        given.list("engine", &[])?,
        given.list("model", &[])?,
        &given.list("kind", &[])?,
        given.list("url", &[])?,
    )?;
    request.deadline = given.positive_seconds("deadline_s", &["deadline"])?;
    request.dry_run = given.flag("dry_run", &[])?.unwrap_or(false);
    given.finish()?;
    Ok(request)
}

/// Runs an operation to its end. A caller that hangs up ends what was not asked yet.
async fn operate(
    operations: &Arc<Operations>,
    caller: Who,
    request: ops::Request,
) -> Result<Response, ApiError> {
    let (verb, dry_run) = (request.verb.name(), request.dry_run);
    let mut updates = operations.start(caller.map(|Extension(caller)| caller), request)?;
    let (mut plan, mut summary, mut ranks) = (None, None, Vec::new());
    while let Some(update) = updates.recv().await {
        match update {
            Update::Plan(payload) => plan = Some(payload),
            Update::Rank(report) if report.verdict.is_some() => ranks.push(report),
            Update::Rank(_) => {}
            Update::Summary(payload) => summary = Some(payload),
        }
    }
    match (plan, summary) {
        (Some(plan), None) if dry_run => Ok(Json(json!({"status": "dry_run", "plan": plan})).into_response()),
        (Some(plan), Some(summary)) => Ok(answer(verb, &plan, ranks, &summary)),
        _ => Err(PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down").into()),
    }
}

fn answer(verb: VerbName, plan: &Plan, mut ranks: Vec<RankReport>, summary: &Summary) -> Response {
    ranks.sort_by(|one, other| (&one.name.engine, one.name.rank).cmp(&(&other.name.engine, other.name.rank)));
    let (code, status) = match summary.outcome {
        Outcome::All => (StatusCode::OK, "success"),
        Outcome::Partly => (StatusCode::MULTI_STATUS, "partial"),
        Outcome::None => (StatusCode::BAD_GATEWAY, "error"),
    };
    let workers = Workers::of(&ranks);
    let (successful, failed) = (workers.successful(), workers.failed());
    let total = workers.0.len();
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("status", status.into());
    put("message", format!("{verb}: {} of {total} engines, {} ranks", successful.len(), ranks.len()).into());
    if verb == VerbName::Flush {
        put("workers_flushed", successful.len().into());
    }
    put("total_http_workers", workers.asked_over(false).into());
    put("total_grpc_workers", workers.asked_over(true).into());
    // Every engine is asked or answered for.
    put("total_zmq_workers_skipped", 0.into());
    put("total_workers", total.into());
    put("successful", json!(successful));
    put("failed", json!(failed));
    put("operation", json!(plan.operation));
    put("summary", json!(summary));
    put("ranks", json!(ranks));
    (code, Json(body)).into_response()
}

/// Ranks by engine, which is what SMG calls a worker.
struct Workers<'r>(BTreeMap<&'r str, Vec<&'r RankReport>>);

impl<'r> Workers<'r> {
    fn of(ranks: &'r [RankReport]) -> Self {
        let mut workers: BTreeMap<&str, Vec<&RankReport>> = BTreeMap::new();
        for report in ranks {
            workers.entry(&report.name.engine).or_default().push(report);
        }
        Self(workers)
    }

    fn successful(&self) -> Vec<&'r str> {
        self.0
            .iter()
            .filter(|(_, ranks)| ranks.iter().all(|rank| rank.is_good()))
            .map(|(engine, _)| *engine)
            .collect()
    }

    /// The first rank of each engine that is not as it should be.
    fn failed(&self) -> Vec<Value> {
        let bad = |ranks: &Vec<&RankReport>| {
            let report = ranks.iter().find(|report| !report.is_good())?;
            let verdict = report.verdict.map_or("", Verdict::as_str);
            Some(format!("rank {}: {verdict}: {}", report.name.rank, report.why))
        };
        let failed = self.0.iter().filter_map(|(engine, ranks)| Some((engine, bad(ranks)?)));
        failed.map(|(worker, error)| json!({"worker": worker, "error": error})).collect()
    }

    fn asked_over(&self, grpc: bool) -> usize {
        let over =
            |report: &&RankReport| !report.asked.is_empty() && report.asked.starts_with("gRPC") == grpc;
        self.0.values().filter(|ranks| ranks.first().is_some_and(over)).count()
    }
}
