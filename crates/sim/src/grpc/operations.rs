//! What SMG's servicers do with calls for operations.

use std::time::Duration;

use kvplane_proto::smg::{FlushCacheResponse, ProfileResponse, StartProfileRequest};
use serde_json::{Map, Value, json};
use tonic::Status;

use super::Servant;
use crate::operate::{Desk, ProfileError, flush_ranks, flush_together};

/// How often the servicer of vLLM asks again.
const VLLM_AGAIN: Duration = Duration::from_millis(100);
/// How often that of `TokenSpeed` does.
const TOKENSPEED_AGAIN: Duration = Duration::from_millis(50);
/// How long it does so at least: a request that has ended holds its blocks for a moment.
const TOKENSPEED_GRACE: Duration = Duration::from_secs(2);

/// Whose profiler it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// vLLM's, which has its options from its launch.
    Vllm,
    /// That of `SGLang` and `TokenSpeed`, which takes them with every recording.
    Scheduler,
}

fn timeout(seconds: f32) -> Result<Duration, Status> {
    Duration::try_from_secs_f32(seconds)
        .map_err(|_| Status::invalid_argument("timeout_s must be finite and non-negative"))
}

fn flushed(success: bool, message: &str) -> FlushCacheResponse {
    FlushCacheResponse { success, message: message.to_owned() }
}

impl Servant {
    pub(super) async fn flush_vllm(&self, timeout_s: f32) -> Result<FlushCacheResponse, Status> {
        let timeout = timeout(timeout_s)?;
        if flush_together(&self.engine, timeout, VLLM_AGAIN).await {
            Ok(flushed(true, "Local KV prefix cache flushed successfully"))
        } else if timeout.is_zero() {
            Ok(flushed(false, "KV prefix cache reset refused; requests may be in flight"))
        } else {
            let late = "Flush cache timed out; the engine may still complete an issued reset";
            Err(Status::deadline_exceeded(late))
        }
    }

    pub(super) async fn flush_sglang(&self, timeout_s: f32) -> Result<FlushCacheResponse, Status> {
        // It is passed on as it is, and a scheduler does not wait for less than nothing.
        let done = flush_ranks(&self.engine, timeout(timeout_s).unwrap_or_default()).await;
        Ok(match done.iter().filter(|done| !**done).count() {
            0 => flushed(true, "Cache flushed successfully"),
            _ => flushed(false, "Flush cache failed: there are running or waiting requests."),
        })
    }

    pub(super) async fn flush_tokenspeed(&self, timeout_s: f32) -> Result<FlushCacheResponse, Status> {
        let patience = timeout(timeout_s)?.max(TOKENSPEED_GRACE);
        let done = flush_together(&self.engine, patience, TOKENSPEED_AGAIN).await;
        let said =
            if done { "Cache flushed successfully" } else { "Cache flush refused: requests still in flight" };
        Ok(flushed(done, said))
    }

    pub(super) fn start_profile(
        &self,
        maker: Maker,
        request: &StartProfileRequest,
    ) -> Result<ProfileResponse, Status> {
        let options = options(request);
        if maker == Maker::Vllm && !options.is_empty() {
            let named = options.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Status::invalid_argument(format!(
                "StartProfile options {named} cannot be set per request on this engine"
            )));
        }
        self.profiled(maker, "Start profiling", |desk| desk.start_profile(options.into()))
    }

    pub(super) fn stop_profile(&self, maker: Maker) -> Result<ProfileResponse, Status> {
        self.profiled(maker, "Stop profiling", Desk::stop_profile)
    }

    fn profiled(
        &self,
        maker: Maker,
        what: &str,
        change: impl FnOnce(&Desk) -> Result<(), ProfileError>,
    ) -> Result<ProfileResponse, Status> {
        if !self.engine.facts().has_profiler {
            return Err(Status::internal(format!("{what} failed: the profiler is not enabled")));
        }
        Ok(match change(self.engine.desk()) {
            Err(error) if maker == Maker::Scheduler => {
                ProfileResponse { success: false, message: error.to_string() }
            }
            // vLLM lets a recording that is under way go on, and has nothing against ending none.
            _ => ProfileResponse { success: true, message: format!("{what} succeeded") },
        })
    }
}

/// The options that are set.
fn options(request: &StartProfileRequest) -> Map<String, Value> {
    let StartProfileRequest {
        output_dir,
        start_step,
        num_steps,
        activities,
        with_stack,
        record_shapes,
        profile_by_stage,
    } = request;
    let all = [
        ("output_dir", json!(output_dir)),
        ("start_step", json!(start_step)),
        ("num_steps", json!(num_steps)),
        ("activities", if activities.is_empty() { Value::Null } else { json!(activities) }),
        ("with_stack", json!(with_stack)),
        ("record_shapes", json!(record_shapes)),
        ("profile_by_stage", if *profile_by_stage { json!(true) } else { Value::Null }),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_null());
    set.map(|(name, value)| (name.to_owned(), value)).collect()
}
