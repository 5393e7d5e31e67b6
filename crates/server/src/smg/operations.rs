//! SMG's `FlushCache`, `StartProfile` and `StopProfile`, for one engine: behind its front, or named by
//! metadata.
//!
//! They are operations as any other, fenced and audited, whatever the engine is asked over. The service has
//! one answer for the whole engine:
//!
//! | what became of it | answer |
//! |---|---|
//! | every rank is proven or done, or the engine reports success and its stream has shown nothing yet | `success: true` |
//! | no answer in time | `DEADLINE_EXCEEDED` |
//! | the engine cannot be asked that | `UNIMPLEMENTED` |
//! | metadata name an engine that does not exist | `INVALID_ARGUMENT` |
//! | anything else | `success: false` |
//!
//! The message has the verdicts.

use std::sync::Arc;
use std::time::Duration;

use kvplane_access::ApiError;
use kvplane_access::Caller;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Engine;
use kvplane_ops::{Flush, Profile, Verb};
use kvplane_proto::smg::{
    FlushCacheRequest, FlushCacheResponse, ProfileResponse, StartProfileRequest, StopProfileRequest,
};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::service::{RANK, SmgService, text};
use crate::ops::{self, RankReport, Selection, Update, Verdict};

/// How long the stream may take to show a flush after the engine's answer. Gateways give up on the whole call
/// after 45 s.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// Ranks whose verdicts fit into a message.
const RANKS_NAMED: usize = 8;

impl SmgService {
    pub(super) async fn flush(
        &self,
        request: &Request<FlushCacheRequest>,
    ) -> Result<FlushCacheResponse, Status> {
        let timeout = ops::seconds("timeout_s", f64::from(request.get_ref().timeout_s)).map_err(ApiError)?;
        let flush = Flush { timeout, ..Flush::default() };
        let (success, message) = self.operate(request, |_| Verb::Flush(flush)).await?;
        Ok(FlushCacheResponse { success, message })
    }

    pub(super) async fn begin_profile(
        &self,
        request: &Request<StartProfileRequest>,
    ) -> Result<ProfileResponse, Status> {
        let StartProfileRequest {
            output_dir,
            start_step,
            num_steps,
            activities,
            with_stack,
            record_shapes,
            profile_by_stage,
        } = request.get_ref().clone();
        let steps = |field, value: Option<i32>| {
            let negative = |_| ApiError(PublicError::field(field, "must not be negative"));
            value.map(u32::try_from).transpose().map_err(negative)
        };
        let (start_step, num_steps) = (steps("start_step", start_step)?, steps("num_steps", num_steps)?);
        let verb = |id| {
            Verb::StartProfile(Profile {
                output_dir,
                start_step,
                num_steps,
                activities,
                with_stack,
                record_shapes,
                by_stage: profile_by_stage,
                ..Profile::new(id)
            })
        };
        let (success, message) = self.operate(request, verb).await?;
        Ok(ProfileResponse { success, message })
    }

    pub(super) async fn end_profile(
        &self,
        request: &Request<StopProfileRequest>,
    ) -> Result<ProfileResponse, Status> {
        let (success, message) = self.operate(request, |_| Verb::StopProfile).await?;
        Ok(ProfileResponse { success, message })
    }

    /// The engine that an operation is for. A name in metadata that no engine has is a wrong argument.
    fn operated(&self, metadata: &MetadataMap) -> Result<Arc<Engine>, PublicError> {
        self.engine(metadata).map_err(|error| match error.code {
            ErrorCode::NotFound if self.is_named_by(metadata) => {
                PublicError { code: ErrorCode::InvalidArgument, ..error }
            }
            _ => error,
        })
    }

    /// Runs an operation on the engine that the call is for.
    async fn operate<T>(
        &self,
        request: &Request<T>,
        verb: impl FnOnce(ops::Id) -> Verb,
    ) -> Result<(bool, String), Status> {
        if text(request.metadata(), RANK).map_err(ApiError)?.is_some() {
            let whole = PublicError::new(
                ErrorCode::InvalidArgument,
                format!("metadata {RANK}: an engine is asked as a whole"),
            );
            return Err(ApiError(whole.with_next("leave it out")).into());
        }
        let engine = self.operated(request.metadata()).map_err(ApiError)?;
        let id = self.operations.mint();
        let mut wanted = ops::Request::new(id.clone(), verb(id));
        wanted.selection = Selection::engine(engine.spec.id.as_str());
        wanted.proof_timeout = PROOF_TIMEOUT;
        let caller = request.extensions().get::<Caller>().cloned();
        let mut updates = self.operations.start(caller, wanted).map_err(ApiError)?;
        let (mut ranks, mut ended) = (Vec::new(), false);
        while let Some(update) = updates.recv().await {
            match update {
                Update::Rank(report) if report.verdict.is_some() => ranks.push(report),
                Update::Summary(_) => ended = true,
                Update::Plan(_) | Update::Rank(_) => {}
            }
        }
        if !ended {
            let gone = PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down");
            return Err(ApiError(gone).into());
        }
        answer(&ranks)
    }
}

/// One answer for all ranks.
fn answer(ranks: &[RankReport]) -> Result<(bool, String), Status> {
    let are_all = |verdict| ranks.iter().all(|rank| rank.verdict == Some(verdict));
    let is_late = |rank: &RankReport| rank.verdict == Some(Verdict::Timeout) && !rank.reported_success;
    let is_good = |rank: &RankReport| rank.reported_success || rank.is_good();
    let message = message(ranks);
    if are_all(Verdict::Unsupported) {
        return Err(Status::unimplemented(message));
    }
    if ranks.iter().any(is_late) {
        return Err(Status::deadline_exceeded(message));
    }
    Ok((ranks.iter().all(is_good), message))
}

fn message(ranks: &[RankReport]) -> String {
    let named = ranks.iter().take(RANKS_NAMED).map(|rank| {
        let verdict = rank.verdict.map_or("", Verdict::as_str);
        format!("rank {}: {verdict}: {}", rank.name.rank, rank.why)
    });
    let mut named: Vec<_> = named.collect();
    if ranks.len() > RANKS_NAMED {
        named.push(format!("and {} ranks more", ranks.len() - RANKS_NAMED));
    }
    named.join("; ")
}
