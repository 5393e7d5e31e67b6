//! The four service names under which engines offer `SubscribeKvEvents`, and three that have operations.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream as FutureStream, StreamExt as _, future, stream};
use kvplane_access::ApiError;
use kvplane_core::{ErrorCode, PublicError, Trust};
use kvplane_ingest::{Engine, Plane};
use kvplane_proto::Encoded;
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::SglangScheduler;
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::TokenSpeedScheduler;
use kvplane_proto::engines::trtllm::server::trtllm_service_server::TrtllmService;
use kvplane_proto::engines::vllm::server::vllm_engine_server::VllmEngine;
use kvplane_proto::smg::{
    FlushCacheRequest, FlushCacheResponse, ProfileResponse, StartProfileRequest, StopProfileRequest,
    SubscribeKvEventsRequest,
};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::follow::{Follower, Source};
use super::loads::{Loads, load_only};
use super::merger::Mergers;
use crate::ops::Operations;
use crate::select;

/// A stream of encoded batches.
pub(crate) type Batches = Pin<Box<dyn FutureStream<Item = Result<Encoded, Status>> + Send>>;

/// A gateway is sent blocks with their tokens.
const NO_TOKENS: &str = "this plane keeps no tokens: journal.tokens is \"drop\"";

/// Which engine a call is for.
#[derive(Debug, Clone)]
enum SubscribeTo {
    /// The one that the call's metadata name, or the only one.
    Named,
    /// Always this one: behind a front.
    Engine(String),
}

/// What kvplane answers itself, under every name.
#[derive(Debug, Clone)]
pub(crate) struct SmgService {
    plane: Arc<Plane>,
    /// Trust levels whose state is given out.
    credit: Arc<[Trust]>,
    mergers: Arc<Mergers>,
    pub(super) operations: Arc<Operations>,
    stop: CancellationToken,
    to: SubscribeTo,
    loads: Option<Loads>,
}

impl SmgService {
    /// For calls whose metadata name the engine, until `stop`.
    pub(crate) fn new(
        plane: Arc<Plane>,
        credit: &[Trust],
        operations: Arc<Operations>,
        stop: CancellationToken,
    ) -> Self {
        let (credit, mergers) = (credit.into(), Arc::default());
        Self { plane, credit, mergers, operations, stop, to: SubscribeTo::Named, loads: None }
    }

    /// The same, for calls that are always about one engine.
    pub(crate) fn of_engine(&self, engine: &str) -> Self {
        Self { to: SubscribeTo::Engine(engine.to_owned()), ..self.clone() }
    }

    pub(crate) fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Ends every call.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// The same, with the load records of the engine's own stream between the events.
    pub(super) fn with_loads(mut self, loads: Option<Loads>) -> Self {
        self.loads = loads;
        self
    }

    fn subscribe(&self, request: &Request<SubscribeKvEventsRequest>) -> Result<Response<Batches>, Status> {
        if !self.plane.keeps_tokens() {
            return Err(Status::failed_precondition(NO_TOKENS));
        }
        let (source, ends) = self.source(request.metadata()).map_err(ApiError)?;
        let follower = Follower::new(source, request.get_ref().start_sequence_number)?;
        let stop = self.stop.clone().cancelled_owned();
        let farewell =
            Status::from(ApiError(PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down")));
        // The one status that makes a gateway drop its state.
        let gone = PublicError::new(ErrorCode::DataLoss, "the engine was removed, or has other ranks now");
        let gone = Status::from(ApiError(gone));
        let events = follower.into_stream().take_until(ends.cancelled_owned());
        let events = events.chain(stream::once(async { Err(gone) }));
        let events: Batches = match &self.loads {
            Some(loads) => {
                // The loads may end (an engine that has none); the events decide when the call ends.
                let loads =
                    loads.follow().map(|load| Some(Ok(Encoded(load_only(&load))))).chain(stream::pending());
                let events = events.map(Some).chain(stream::once(async { None }));
                stream::select(events, loads)
                    .take_while(|item| future::ready(item.is_some()))
                    .filter_map(future::ready)
                    .boxed()
            }
            None => events.boxed(),
        };
        Ok(Response::new(events.take_until(stop).chain(stream::once(async { Err(farewell) })).boxed()))
    }

    /// What a call is about, and when there is no such thing any more.
    fn source(&self, metadata: &MetadataMap) -> Result<(Source, CancellationToken), PublicError> {
        let engine = self.engine(metadata)?;
        let rank = text(metadata, RANK)?
            .map(|text| {
                let invalid = |_| {
                    let message = format!("metadata kvplane-rank: {text:?} is not a number");
                    PublicError::new(ErrorCode::InvalidArgument, message)
                };
                text.parse::<u32>().map_err(invalid)
            })
            .transpose()?;
        self.source_of(&engine, rank)
    }

    /// Which engine a call is for.
    pub(super) fn engine(&self, metadata: &MetadataMap) -> Result<Arc<Engine>, PublicError> {
        let name = match &self.to {
            SubscribeTo::Named => text(metadata, ENGINE)?,
            SubscribeTo::Engine(name) => Some(name.as_str()),
        };
        select::engine(&self.plane, name)
    }

    /// Whether the call's metadata say which engine it is for.
    pub(super) fn is_named_by(&self, metadata: &MetadataMap) -> bool {
        matches!(self.to, SubscribeTo::Named) && metadata.contains_key(ENGINE)
    }

    fn source_of(
        &self,
        engine: &Engine,
        rank: Option<u32>,
    ) -> Result<(Source, CancellationToken), PublicError> {
        if rank.is_none() && engine.streams.len() > 1 {
            let merger = self.mergers.of(&engine.spec.id, &self.plane, &self.credit, &self.stop);
            let ends = merger.ended().clone();
            return Ok((Source::Merged(merger), ends));
        }
        let stream = select::stream(engine, rank)?.clone();
        // Who named no rank follows the engine: with a second rank it is another thing.
        let ends = if rank.is_some() { stream.removed() } else { engine.replaced() }.clone();
        Ok((Source::Native { stream, credit: self.credit.to_vec() }, ends))
    }
}

/// Metadata that names an engine, and one of its ranks.
const ENGINE: &str = "kvplane-engine";
pub(super) const RANK: &str = "kvplane-rank";

pub(super) fn text<'m>(metadata: &'m MetadataMap, key: &'static str) -> Result<Option<&'m str>, PublicError> {
    let invalid = |_| PublicError::new(ErrorCode::InvalidArgument, format!("metadata {key} is not text"));
    metadata.get(key).map(|value| value.to_str()).transpose().map_err(invalid)
}

#[tonic::async_trait]
impl TrtllmService for SmgService {
    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Batches>, Status> {
        self.subscribe(&request)
    }
}

/// The same methods under each service that has operations.
macro_rules! serve_under {
    ($($service:ident),*) => {$(
        #[tonic::async_trait]
        impl $service for SmgService {
            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Result<Response<Batches>, Status> {
                self.subscribe(&request)
            }

            async fn flush_cache(
                &self,
                request: Request<FlushCacheRequest>,
            ) -> Result<Response<FlushCacheResponse>, Status> {
                self.flush(&request).await.map(Response::new)
            }

            async fn start_profile(
                &self,
                request: Request<StartProfileRequest>,
            ) -> Result<Response<ProfileResponse>, Status> {
                self.begin_profile(&request).await.map(Response::new)
            }

            async fn stop_profile(
                &self,
                request: Request<StopProfileRequest>,
            ) -> Result<Response<ProfileResponse>, Status> {
                self.end_profile(&request).await.map(Response::new)
            }
        }
    )*};
}

serve_under!(VllmEngine, SglangScheduler, TokenSpeedScheduler);
