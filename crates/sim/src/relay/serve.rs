//! The server, and the four services that offer the method.

use std::sync::Arc;

use kvplane_proto::Encoded;
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::{
    SglangScheduler, SglangSchedulerServer,
};
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::{
    TokenSpeedScheduler, TokenSpeedSchedulerServer,
};
use kvplane_proto::engines::trtllm::server::trtllm_service_server::{TrtllmService, TrtllmServiceServer};
use kvplane_proto::engines::vllm::server::vllm_engine_server::{VllmEngine, VllmEngineServer};
use kvplane_proto::smg::SubscribeKvEventsRequest;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::{Answer, RelayService, Shared};
use crate::serve::ServerThread;

/// Starts the server.
pub(super) fn serve(shared: Arc<Shared>) -> Result<ServerThread, std::io::Error> {
    let address = shared.config.address;
    ServerThread::start("sim-relay", address, async move |listener| {
        let server = tonic::transport::Server::builder().add_routes(routes(shared));
        server.serve_with_incoming(TcpListenerStream::new(listener)).await
    })
}

fn routes(shared: Arc<Shared>) -> Routes {
    let service = shared.config.service;
    let relay = Relay { shared };
    match service {
        RelayService::Vllm => Routes::new(VllmEngineServer::new(relay)),
        RelayService::Sglang => Routes::new(SglangSchedulerServer::new(relay)),
        RelayService::Tokenspeed => Routes::new(TokenSpeedSchedulerServer::new(relay)),
        RelayService::Trtllm => Routes::new(TrtllmServiceServer::new(relay)),
    }
}

#[derive(Debug, Clone)]
struct Relay {
    shared: Arc<Shared>,
}

type Messages = BoxStream<Encoded>;

impl Relay {
    async fn subscribe(&self, start: u64) -> Result<Response<Messages>, Status> {
        let (answer, messages) = self.shared.subscribe(start);
        match answer {
            Answer::Serve | Answer::Hang => Ok(Response::new(Box::pin(ReceiverStream::new(messages)))),
            Answer::Refuse(code) => Err(Status::new(code, "simulated")),
            Answer::Mute => std::future::pending().await,
        }
    }
}

/// The same method under each engine's own service.
macro_rules! subscribe_under {
    ($($service:ident),*) => {$(
        #[tonic::async_trait]
        impl $service for Relay {
            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Result<Response<Messages>, Status> {
                self.subscribe(request.get_ref().start_sequence_number).await
            }
        }
    )*};
}

subscribe_under!(VllmEngine, SglangScheduler, TokenSpeedScheduler, TrtllmService);
