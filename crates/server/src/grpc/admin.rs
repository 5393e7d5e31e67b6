//! `kvplane.v1.Admin`.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream as FutureStream, StreamExt as _, stream};
use kvplane_access::ApiError;
use kvplane_access::Caller;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ops::{Flush, Profile, Verb};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::server::admin_server::Admin;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::ops::{
    self, Operations, Outcome, Phase, Plan, PlannedRank, RankReport, Selection, Summary, Update, Verdict,
    positive_seconds, seconds,
};

/// The service.
#[derive(Debug)]
pub(crate) struct AdminService {
    operations: Arc<Operations>,
    stop: CancellationToken,
}

type Steps = Pin<Box<dyn FutureStream<Item = Result<proto::Progress, Status>> + Send>>;

impl AdminService {
    pub(crate) fn new(operations: Arc<Operations>, stop: CancellationToken) -> Self {
        Self { operations, stop }
    }

    /// What every operation takes, of a verb that is made of the operation's id.
    fn read(
        &self,
        operation: Option<proto::OperationRequest>,
        verb: impl FnOnce(ops::Id) -> Verb,
    ) -> Result<ops::Request, PublicError> {
        let proto::OperationRequest { selection, deadline_s, dry_run } = operation.unwrap_or_default();
        let proto::EngineSelection { engines, models, kinds } = selection.unwrap_or_default();
        let id = self.operations.mint();
        let mut request = ops::Request::new(id.clone(), verb(id));
        request.selection = Selection::new(engines, models, &kinds, Vec::new())?;
        request.deadline = deadline_s.map(|value| positive_seconds("deadline_s", value)).transpose()?;
        request.dry_run = dry_run;
        Ok(request)
    }

    fn start(
        &self,
        caller: Option<Caller>,
        request: Result<ops::Request, PublicError>,
    ) -> Result<Response<Steps>, Status> {
        let updates = request.and_then(|request| self.operations.start(caller, request)).map_err(ApiError)?;
        let steps = ReceiverStream::new(updates).map(|update| Ok(progress(update)));
        let stop = self.stop.clone().cancelled_owned();
        let farewell = PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down");
        let (stopped, farewell) = (self.stop.clone(), Status::from(ApiError(farewell)));
        let end = stream::once(async move { stopped.is_cancelled().then_some(Err(farewell)) });
        let steps = steps.take_until(stop).chain(end.filter_map(futures::future::ready));
        Ok(Response::new(steps.boxed()))
    }
}

/// Who calls, as the gate has found out.
fn caller<T>(request: &Request<T>) -> Option<Caller> {
    request.extensions().get().cloned()
}

#[tonic::async_trait]
impl Admin for AdminService {
    type FlushStream = Steps;
    type StartProfileStream = Steps;
    type StopProfileStream = Steps;
    type InfoStream = Steps;
    type LoadsStream = Steps;
    type HealthStream = Steps;

    async fn flush(&self, request: Request<proto::FlushRequest>) -> Result<Response<Steps>, Status> {
        let (caller, message) = (caller(&request), request.into_inner());
        let read = || {
            let flush = Flush {
                timeout: seconds("timeout_s", message.timeout_s)?,
                reset_running: message.reset_running,
                reset_external: message.reset_external,
            };
            let mut request = self.read(message.operation, |_| Verb::Flush(flush))?;
            if let Some(value) = message.proof_timeout_s {
                request.proof_timeout = seconds("proof_timeout_s", value)?;
            }
            request.nudge = message.nudge;
            Ok(request)
        };
        self.start(caller, read())
    }

    async fn start_profile(
        &self,
        request: Request<proto::StartProfileRequest>,
    ) -> Result<Response<Steps>, Status> {
        let (caller, message) = (caller(&request), request.into_inner());
        let proto::StartProfileRequest {
            operation,
            output_dir,
            prefix,
            start_step,
            num_steps,
            activities,
            with_stack,
            record_shapes,
            by_stage,
            stages,
            merge,
        } = message;
        let profile = |id| Profile {
            id,
            output_dir,
            prefix,
            start_step,
            num_steps,
            activities,
            with_stack,
            record_shapes,
            by_stage,
            stages,
            merge,
        };
        self.start(caller, self.read(operation, |id| Verb::StartProfile(profile(id))))
    }

    async fn stop_profile(
        &self,
        request: Request<proto::OperationRequest>,
    ) -> Result<Response<Steps>, Status> {
        self.start(caller(&request), self.read(Some(request.into_inner()), |_| Verb::StopProfile))
    }

    async fn info(&self, request: Request<proto::OperationRequest>) -> Result<Response<Steps>, Status> {
        self.start(caller(&request), self.read(Some(request.into_inner()), |_| Verb::Info))
    }

    async fn loads(&self, request: Request<proto::OperationRequest>) -> Result<Response<Steps>, Status> {
        self.start(caller(&request), self.read(Some(request.into_inner()), |_| Verb::Loads))
    }

    async fn health(&self, request: Request<proto::OperationRequest>) -> Result<Response<Steps>, Status> {
        self.start(caller(&request), self.read(Some(request.into_inner()), |_| Verb::Health))
    }
}

fn progress(update: Update) -> proto::Progress {
    use proto::progress::Item;
    let item = match update {
        Update::Plan(payload) => Item::Plan(plan(payload)),
        Update::Rank(report) => Item::Rank(rank(report)),
        Update::Summary(payload) => Item::Summary(summary(&payload)),
    };
    proto::Progress { item: Some(item) }
}

fn plan(plan: Plan) -> proto::Plan {
    let Plan { operation, verb, ranks, backends } = plan;
    let planned = |rank: PlannedRank| proto::PlannedRank {
        engine: rank.name.engine.clone(),
        rank: rank.name.rank,
        model: rank.name.model.clone(),
        kind: rank.name.kind.to_owned(),
        call: rank.call,
        unsupported: rank.unsupported,
    };
    let ranks = ranks.into_iter().map(planned).collect();
    proto::Plan {
        operation,
        verb: verb.to_owned(),
        ranks,
        backends: u32::try_from(backends).unwrap_or(u32::MAX),
    }
}

fn rank(report: RankReport) -> proto::RankReport {
    let tiers_remaining = report.reach.remaining.iter();
    let tiers_remaining = tiers_remaining
        .map(|(tier, blocks)| proto::TierRemaining { tier: tier.to_string(), blocks: *blocks })
        .collect();
    proto::RankReport {
        engine: report.name.engine.clone(),
        rank: report.name.rank,
        model: report.name.model.clone(),
        kind: report.name.kind.to_owned(),
        phase: match report.phase {
            Phase::Asking => proto::Phase::Asking,
            Phase::Proving => proto::Phase::Proving,
            Phase::Over => proto::Phase::Over,
        }
        .into(),
        verdict: report.verdict.map_or(proto::Verdict::Unspecified, verdict).into(),
        why: report.why,
        asked: report.asked,
        answer_s: report.answered_after.as_secs_f64(),
        proof_s: report.proven_after.as_secs_f64(),
        may_still_complete: report.may_still_complete,
        tiers_cleared: report.reach.cleared.iter().map(ToString::to_string).collect(),
        tiers_remaining,
        detail_json: report.detail.map_or_else(String::new, |detail| detail.to_string()),
        profile_id: report.profile_id.unwrap_or_default(),
    }
}

fn verdict(verdict: Verdict) -> proto::Verdict {
    match verdict {
        Verdict::Proven => proto::Verdict::Proven,
        Verdict::Done => proto::Verdict::Done,
        Verdict::Refused => proto::Verdict::Refused,
        Verdict::Unsupported => proto::Verdict::Unsupported,
        Verdict::Failed => proto::Verdict::Failed,
        Verdict::Timeout => proto::Verdict::Timeout,
        Verdict::Unknown => proto::Verdict::Unknown,
    }
}

fn summary(summary: &Summary) -> proto::Summary {
    proto::Summary {
        verdicts: summary.verdicts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        outcome: match summary.outcome {
            Outcome::All => proto::Outcome::All,
            Outcome::Partly => proto::Outcome::Partly,
            Outcome::None => proto::Outcome::None,
        }
        .into(),
        took_s: summary.took.as_secs_f64(),
    }
}
