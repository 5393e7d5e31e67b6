//! The four service names under which engines offer `SubscribeKvEvents`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream as FutureStream, StreamExt as _, future, stream};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Engine;
use kvplane_proto::Encoded;
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::SglangScheduler;
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::TokenSpeedScheduler;
use kvplane_proto::engines::trtllm::server::trtllm_service_server::TrtllmService;
use kvplane_proto::engines::vllm::server::vllm_engine_server::VllmEngine;
use kvplane_proto::smg::SubscribeKvEventsRequest;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::follow::{Follower, Source};
use super::loads::load_only;
use crate::error::ApiError;
use crate::select;
use crate::service::Shared;

/// A stream of encoded batches.
pub(crate) type Batches = Pin<Box<dyn FutureStream<Item = Result<Encoded, Status>> + Send>>;

/// Which engine a call is for.
#[derive(Debug, Clone)]
pub(crate) enum SubscribeTo {
    /// The one that the call's metadata name, or the only one.
    Named,
    /// Always this one: behind a front.
    Engine(String),
}

/// `SubscribeKvEvents` under every name.
#[derive(Debug, Clone)]
pub(crate) struct SmgService {
    shared: Arc<Shared>,
    to: SubscribeTo,
}

impl SmgService {
    pub(crate) fn new(shared: Arc<Shared>, to: SubscribeTo) -> Self {
        Self { shared, to }
    }

    /// Answers a subscription, with the load records of the engine's own stream between the events.
    pub(crate) fn subscribe_with_loads(
        &self,
        request: &Request<SubscribeKvEventsRequest>,
        loads: Option<BoxStream<'static, Bytes>>,
    ) -> Result<Response<Batches>, Status> {
        let (source, ends) = self.source(request.metadata()).map_err(ApiError)?;
        let follower = Follower::new(source, request.get_ref().start_sequence_number)?;
        let stop = self.shared.stop.clone().cancelled_owned();
        let farewell =
            Status::from(ApiError(PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down")));
        // The one status that makes a gateway forget what it was told.
        let gone = PublicError::new(ErrorCode::DataLoss, "the engine was removed, or has other ranks now");
        let gone = Status::from(ApiError(gone));
        let events = follower.into_stream().take_until(ends.cancelled_owned());
        let events = events.chain(stream::once(async { Err(gone) }));
        let events: Batches = match loads {
            Some(loads) => {
                // The loads may end (an engine that has none); the events decide when the call ends.
                let loads = loads.map(|load| Some(Ok(Encoded(load_only(&load))))).chain(stream::pending());
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
        let text = |key: &'static str| -> Result<Option<&str>, PublicError> {
            let invalid =
                |_| PublicError::new(ErrorCode::InvalidArgument, format!("metadata {key} is not text"));
            metadata.get(key).map(|value| value.to_str()).transpose().map_err(invalid)
        };
        let name = match &self.to {
            SubscribeTo::Named => text("kvplane-engine")?,
            SubscribeTo::Engine(name) => Some(name.as_str()),
        };
        let engine = select::engine(&self.shared.plane, name)?;
        let rank = text("kvplane-rank")?
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

    fn source_of(
        &self,
        engine: &Engine,
        rank: Option<u32>,
    ) -> Result<(Source, CancellationToken), PublicError> {
        let Shared { plane, options, mergers, stop, .. } = &*self.shared;
        let credit = &options.credit;
        if rank.is_none() && engine.streams.len() > 1 {
            let merger = mergers.of(&engine.spec.id, plane, credit, stop);
            let ends = merger.ended().clone();
            return Ok((Source::Merged(merger), ends));
        }
        let stream = select::stream(engine, rank)?.clone();
        // Who named no rank follows the engine: with a second rank it is another thing.
        let ends = if rank.is_some() { stream.removed() } else { engine.replaced() }.clone();
        Ok((Source::Native { stream, credit: credit.clone() }, ends))
    }
}

/// The same method under each engine's own service.
macro_rules! subscribe_under {
    ($($service:ident),*) => {$(
        #[tonic::async_trait]
        impl $service for SmgService {
            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Result<Response<Batches>, Status> {
                self.subscribe_with_loads(&request, None)
            }
        }
    )*};
}

subscribe_under!(VllmEngine, SglangScheduler, TokenSpeedScheduler, TrtllmService);
