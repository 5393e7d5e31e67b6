//! `SubscribeKvEvents` behind a front: kvplane's events, and the loads of the engine's own stream.

use std::time::Duration;

use futures::{Stream as FutureStream, StreamExt as _, future, stream};
use kvplane_core::EngineKind;
use kvplane_proto::engines::vllm::server::vllm_engine_server::{VllmEngine, VllmEngineServer};
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::smg::{KvEventBatch, SubscribeKvEventsRequest};
use tonic::{Code, Request, Response, Status};

use super::service::{Batches, SmgService};
use crate::front::{OwnedCalls, Upstream};

/// How long to wait before an engine's own stream is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// An engine's batch can be as large as the engine made it; only its load is of interest.
const MAX_MESSAGE: usize = 64 << 20;

/// The handler of a front's own calls.
pub(crate) fn own_calls(kind: EngineKind, events: SmgService, upstream: Upstream) -> OwnedCalls {
    match kind {
        EngineKind::Vllm => OwnedCalls::service(VllmEngineServer::new(Fronted { events, upstream })),
    }
}

#[derive(Debug, Clone)]
struct Fronted {
    events: SmgService,
    upstream: Upstream,
}

#[tonic::async_trait]
impl VllmEngine for Fronted {
    type SubscribeKvEventsStream = Batches;

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Batches>, Status> {
        let loads = loads(self.upstream.clone()).boxed();
        self.events.subscribe_with_loads(&request, Some(loads))
    }
}

/// The load records of an engine's own stream, asked for again when it breaks off. An engine without the method has
/// none: then this never yields.
fn loads(upstream: Upstream) -> impl FutureStream<Item = bytes::Bytes> + Send {
    let subscriptions = stream::unfold((upstream, false), async |(upstream, again)| {
        if again {
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let mut client = VllmEngineClient::new(upstream.clone()).max_decoding_message_size(MAX_MESSAGE);
        let request =
            SubscribeKvEventsRequest { start_sequence_number: 0, load_records_before_first_batch: true };
        match client.subscribe_kv_events(request).await {
            Ok(batches) => Some((Some(batches.into_inner()), (upstream, true))),
            Err(status) if status.code() == Code::Unimplemented => None,
            Err(_) => Some((None, (upstream, true))),
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
