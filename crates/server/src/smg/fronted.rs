//! `SubscribeKvEvents` behind a front: kvplane's events, and the loads of the engine's own stream.

use std::time::Duration;

use futures::{Stream as FutureStream, StreamExt as _, future, stream};
use kvplane_core::EngineKind;
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::{
    SglangScheduler, SglangSchedulerServer,
};
use kvplane_proto::engines::sglang::sglang_scheduler_client::SglangSchedulerClient;
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::{
    TokenSpeedScheduler, TokenSpeedSchedulerServer,
};
use kvplane_proto::engines::tokenspeed::token_speed_scheduler_client::TokenSpeedSchedulerClient;
use kvplane_proto::engines::trtllm::server::trtllm_service_server::{TrtllmService, TrtllmServiceServer};
use kvplane_proto::engines::trtllm::trtllm_service_client::TrtllmServiceClient;
use kvplane_proto::engines::vllm::server::vllm_engine_server::{VllmEngine, VllmEngineServer};
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::smg::{KvEventBatch, SubscribeKvEventsRequest};
use tonic::{Code, Request, Response, Status, Streaming};

use super::service::{Batches, SmgService};
use crate::front::{OwnedCalls, Upstream};

/// How long to wait before an engine's own stream is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// An engine's batch can be as large as the engine made it; only its load is of interest.
const MAX_MESSAGE: usize = 64 << 20;

/// The handler of a front's own calls, under the service that it stands before.
pub(crate) fn own_calls(service: &str, events: SmgService, upstream: Upstream) -> OwnedCalls {
    let fronted = Fronted { events, upstream };
    match EngineKind::ALL.into_iter().find(|kind| kind.grpc_service() == Some(service)) {
        Some(EngineKind::Sglang) => OwnedCalls::service(SglangSchedulerServer::new(fronted)),
        Some(EngineKind::Tokenspeed) => OwnedCalls::service(TokenSpeedSchedulerServer::new(fronted)),
        Some(EngineKind::Trtllm) => OwnedCalls::service(TrtllmServiceServer::new(fronted)),
        Some(EngineKind::Vllm | EngineKind::Grpc | EngineKind::Kvplane) | None => {
            OwnedCalls::service(VllmEngineServer::new(fronted))
        }
    }
}

#[derive(Debug, Clone)]
struct Fronted {
    events: SmgService,
    upstream: Upstream,
}

/// Each engine's own service: our events, with the loads that the engine itself tells under that name.
macro_rules! front_under {
    ($($service:ident, $client:ident);*) => {$(
        #[tonic::async_trait]
        impl $service for Fronted {
            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Result<Response<Batches>, Status> {
                let loads = loads(self.upstream.clone(), async |upstream, request| {
                    let client = $client::new(upstream).max_decoding_message_size(MAX_MESSAGE);
                    { client }.subscribe_kv_events(request).await
                });
                self.events.subscribe_with_loads(&request, Some(loads.boxed()))
            }
        }
    )*};
}

front_under!(
    VllmEngine, VllmEngineClient;
    SglangScheduler, SglangSchedulerClient;
    TokenSpeedScheduler, TokenSpeedSchedulerClient;
    TrtllmService, TrtllmServiceClient
);

/// The load records of an engine's own stream, asked for again when it breaks off. An engine without the method has
/// none: then this never yields.
fn loads<F, A>(upstream: Upstream, subscribe: F) -> impl FutureStream<Item = bytes::Bytes> + Send
where
    F: Fn(Upstream, SubscribeKvEventsRequest) -> A + Clone + Send,
    A: Future<Output = Result<Response<Streaming<KvEventBatch>>, Status>> + Send,
{
    let subscriptions = stream::unfold((upstream, false), move |(upstream, again)| {
        let subscribe = subscribe.clone();
        async move {
            if again {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            let request =
                SubscribeKvEventsRequest { start_sequence_number: 0, load_records_before_first_batch: true };
            match subscribe(upstream.clone(), request).await {
                Ok(batches) => Some((Some(batches.into_inner()), (upstream, true))),
                Err(status) if status.code() == Code::Unimplemented => None,
                Err(_) => Some((None, (upstream, true))),
            }
        }
    });
    subscriptions
        .flat_map(|batches| match batches {
            Some(batches) => batches.take_while(|batch| future::ready(batch.is_ok())).boxed(),
            None => stream::empty().boxed(),
        })
        .filter_map(|batch: Result<KvEventBatch, Status>| {
            future::ready(batch.ok().and_then(|batch| batch.load))
        })
}
