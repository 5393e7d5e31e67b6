//! `SubscribeKvEvents` behind a front: kvplane's events, and the loads of the engine's own stream.

use std::time::Duration;

use futures::{Stream as FutureStream, StreamExt as _, future, stream};
use kvplane_core::EngineKind;
use kvplane_front::{OwnedCalls, Upstream};
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::SglangSchedulerServer;
use kvplane_proto::engines::sglang::sglang_scheduler_client::SglangSchedulerClient;
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::TokenSpeedSchedulerServer;
use kvplane_proto::engines::tokenspeed::token_speed_scheduler_client::TokenSpeedSchedulerClient;
use kvplane_proto::engines::trtllm::server::trtllm_service_server::TrtllmServiceServer;
use kvplane_proto::engines::trtllm::trtllm_service_client::TrtllmServiceClient;
use kvplane_proto::engines::vllm::server::vllm_engine_server::VllmEngineServer;
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::smg::{KvEventBatch, SubscribeKvEventsRequest};
use tonic::{Code, Response, Status, Streaming};

use super::loads::Loads;
use super::service::SmgService;

/// How long to wait before an engine's own stream is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// An engine's batch can be as large as the engine made it; only its load is of interest.
const MAX_MESSAGE: usize = 64 << 20;
/// Requests that a front answers itself are short.
const MAX_REQUEST: usize = 64 << 10;

/// The loads that an engine itself tells under its service.
macro_rules! loads_of {
    ($client:ident, $upstream:ident) => {
        $upstream.cloned().map(|upstream| {
            Loads::new(move || {
                loads(upstream.clone(), async |upstream, request| {
                    let client = $client::new(upstream).max_decoding_message_size(MAX_MESSAGE);
                    { client }.subscribe_kv_events(request).await
                })
                .boxed()
            })
        })
    };
}

/// The handler of a front's own calls, under the service that it stands before.
pub(crate) fn own_calls(service: &str, own: SmgService, upstream: Option<&Upstream>) -> OwnedCalls {
    match EngineKind::ALL.into_iter().find(|kind| kind.grpc_service() == Some(service)) {
        Some(EngineKind::Sglang) => {
            let own = own.with_loads(loads_of!(SglangSchedulerClient, upstream));
            OwnedCalls::service(SglangSchedulerServer::new(own).max_decoding_message_size(MAX_REQUEST))
        }
        Some(EngineKind::Tokenspeed) => {
            let own = own.with_loads(loads_of!(TokenSpeedSchedulerClient, upstream));
            OwnedCalls::service(TokenSpeedSchedulerServer::new(own).max_decoding_message_size(MAX_REQUEST))
        }
        Some(EngineKind::Trtllm) => {
            let own = own.with_loads(loads_of!(TrtllmServiceClient, upstream));
            OwnedCalls::service(TrtllmServiceServer::new(own).max_decoding_message_size(MAX_REQUEST))
        }
        Some(EngineKind::Vllm | EngineKind::Grpc | EngineKind::Kvplane) | None => {
            let own = own.with_loads(loads_of!(VllmEngineClient, upstream));
            OwnedCalls::service(VllmEngineServer::new(own).max_decoding_message_size(MAX_REQUEST))
        }
    }
}

/// The load records of an engine's own stream, asked for again when it breaks off. An engine without the
/// method has none: then this never yields.
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
