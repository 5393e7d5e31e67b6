//! `inferencecache.v1alpha1.InferenceCache`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kvplane_access::ApiError;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_hints::Stats;
use kvplane_metrics::hint_counters::{Counted as _, Refusal};
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::cache_event::Type as CacheEventType;
use kvplane_proto::inferencecache::server::inference_cache_server::InferenceCache;
use kvplane_report::unix_us;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

use super::lookup::{self, Answer};
use super::{Hints, events, reports, text};

/// Where a response says why a lookup could not be used.
const REASON: &str = "kvplane-reason";

/// A report stream that says nothing for so long is ended: others may want its place.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct HintsService {
    stop: CancellationToken,
    hints: Arc<Hints>,
}

impl HintsService {
    pub(crate) fn new(stop: CancellationToken, hints: Arc<Hints>) -> Self {
        Self { stop, hints }
    }
}

fn accepted() -> Response<proto::Ack> {
    Response::new(proto::Ack { accepted: true, reason_code: String::new() })
}

/// What the contract has and nobody fills.
fn not_here(what: &str) -> Status {
    Status::unimplemented(format!("kvplane {what}"))
}

/// How long the caller waits, as its headers say; nonsense is as long as it takes. Eight digits are as many
/// as gRPC has, so nothing overflows that is added to it.
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let given = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = given.split_at_checked(given.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_hours(number)),
        "M" => Some(Duration::from_mins(number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// When the caller stops to wait.
fn deadline(metadata: &MetadataMap) -> Option<Instant> {
    timeout(metadata).map(|timeout| kvplane_runtime::now() + timeout)
}

#[tonic::async_trait]
impl InferenceCache for HintsService {
    type StreamCacheEventsStream = BoxStream<'static, Result<proto::CacheEvent, Status>>;
    type StreamMetricsStream = BoxStream<'static, Result<proto::Metric, Status>>;

    async fn lookup_route(
        &self,
        request: Request<proto::LookupRouteRequest>,
    ) -> Result<Response<proto::LookupRouteResponse>, Status> {
        let timeout = timeout(request.metadata());
        let Answer { response, unusable } = lookup::route(&self.hints, request.into_inner(), timeout).await;
        let mut response = Response::new(response);
        if let Some(reason) = unusable {
            response.metadata_mut().insert(REASON, MetadataValue::from_static(reason.as_str()));
        }
        Ok(response)
    }

    async fn report_cache_state(
        &self,
        request: Request<Streaming<proto::CacheStateUpdate>>,
    ) -> Result<Response<proto::Ack>, Status> {
        let Hints { book, counters, report_streams, .. } = &*self.hints;
        self.hints.check_writer(request.extensions().get()).map_err(ApiError)?;
        // Engines that are heard speak for themselves.
        self.hints.listen_to_engines();
        let Ok(_permit) = report_streams.try_acquire() else {
            counters.refused.count(Refusal::TooManyReports);
            let message = "too many reports at the same time";
            let error = PublicError::new(ErrorCode::LimitReached, message).with_next("try again shortly");
            return Err(ApiError(error).into());
        };
        let mut updates = request.into_inner();
        let stop = self.stop.clone();
        loop {
            let update = tokio::time::timeout(LONGEST_SILENCE, updates.message());
            let update = stop.run_until_cancelled(update).await.ok_or_else(shutting_down)?;
            let Ok(update) = update else {
                counters.refused.count(Refusal::SilentReport);
                let message = format!("no message for {} s", LONGEST_SILENCE.as_secs());
                let error = PublicError::new(ErrorCode::LimitReached, message).with_next("report again");
                return Err(ApiError(error).into());
            };
            let Some(update) = update? else { break };
            reports::take_update(book, counters, update, unix_us()).await.map_err(ApiError)?;
        }
        Ok(accepted())
    }

    async fn publish_event(
        &self,
        request: Request<proto::CacheEvent>,
    ) -> Result<Response<proto::Ack>, Status> {
        self.hints.check_writer(request.extensions().get()).map_err(ApiError)?;
        self.hints.listen_to_engines();
        let (hints, event) = (self.hints.clone(), request.into_inner());
        if event.r#type == CacheEventType::AllCleared as i32 {
            // As much as the replica held: not on a thread that serves others.
            let clear = move || reports::take_event(&hints.book, &hints.counters, &event, unix_us());
            tokio::task::spawn_blocking(clear).await.map_err(|_| shutting_down())?;
        } else {
            reports::take_event(&hints.book, &hints.counters, &event, unix_us());
        }
        Ok(accepted())
    }

    async fn get_cache_state(
        &self,
        request: Request<proto::GetCacheStateRequest>,
    ) -> Result<Response<proto::GetCacheStateResponse>, Status> {
        self.hints.engines_are_heard(deadline(request.metadata())).await;
        let proto::GetCacheStateRequest { model_id, tenant_id } = request.get_ref();
        let (replicas, prefixes) = self.hints.book.state(tenant_id, model_id);
        let replica = |(replica, stats): (Arc<str>, Stats)| proto::ReplicaStats {
            replica_id: replica.as_ref().to_owned(),
            cache_memory_bytes: stats.cache_memory_bytes,
            hit_rate: stats.hit_rate,
            pressure: stats.pressure,
            client_version: String::new(),
            t2_hit_tokens: stats.t2_hit_tokens,
            t2_query_tokens: stats.t2_query_tokens,
        };
        Ok(Response::new(proto::GetCacheStateResponse {
            replicas: replicas.into_iter().map(replica).collect(),
            summary: Some(proto::CacheSummary { total_prefixes: prefixes as i64, hot_prefixes: 0 }),
        }))
    }

    async fn stream_cache_events(
        &self,
        request: Request<proto::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        // What engines hold already is nothing new.
        self.hints.engines_are_heard(deadline(request.metadata())).await;
        let events = events::listen(&self.hints, request.into_inner()).map_err(ApiError)?;
        let stop = self.stop.clone().cancelled_owned();
        // A listener that was ended gets no second status; one that is left at the end gets its first.
        let farewell = self.stop.clone();
        let farewell = stream::once(async move { farewell.is_cancelled().then(|| Err(shutting_down())) });
        let events = events.take_until(stop).chain(farewell.filter_map(futures::future::ready));
        Ok(Response::new(events.boxed()))
    }

    async fn render_template(
        &self,
        request: Request<proto::RenderTemplateRequest>,
    ) -> Result<Response<proto::RenderTemplateResponse>, Status> {
        Ok(Response::new(text::render(&self.hints, request.into_inner()).await))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<proto::LookupPdRouteRequest>,
    ) -> Result<Response<proto::LookupPdRouteResponse>, Status> {
        Err(not_here("gives no hints for prefill and decode apart: ask LookupRoute"))
    }

    async fn stream_metrics(
        &self,
        _: Request<proto::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Err(not_here("streams no metrics: they are at /metrics over HTTP"))
    }
}

fn shutting_down() -> Status {
    ApiError(PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_say_how_long_they_wait() {
        let given = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", MetadataValue::from_static(text));
            timeout(&metadata)
        };
        assert_eq!(given("5S"), Some(Duration::from_secs(5)));
        assert_eq!(given("2H"), Some(Duration::from_hours(2)));
        assert_eq!(given("1n"), Some(Duration::from_nanos(1)));
        assert_eq!(given("250m"), Some(Duration::from_millis(250)));
        assert_eq!(given("99999999H"), Some(Duration::from_hours(99_999_999)));
        for nonsense in ["", "5", "S", "-1S", "1x", "9223372036854775807S", "99999999999999999999S"] {
            assert_eq!(given(nonsense), None, "{nonsense}");
        }
        assert_eq!(timeout(&MetadataMap::new()), None);
    }
}
