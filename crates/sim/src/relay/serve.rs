//! The server's thread, and the four services that offer the method.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

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
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::{Answer, RelayService, Shared};

/// The server's thread.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Server {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, std::io::Error> {
        let listener = TcpListener::bind(shared.config.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => TcpListenerStream::new(listener),
                    Err(error) => return tracing::error!(%error, "cannot listen"),
                };
                let server = tonic::transport::Server::builder().add_routes(routes(shared));
                tokio::select! {
                    served = server.serve_with_incoming(listener) => {
                        if let Err(error) = served {
                            tracing::error!(%error, "grpc server ended");
                        }
                    }
                    // Connections are not drained: an engine that goes, goes.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("sim-relay".to_owned()).spawn(serve)?;
        Ok(Self { address, running: Mutex::new(Some((stop, thread))) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn stop(&self) {
        let Some((stop, thread)) = self.running.lock().take() else { return };
        let _ = stop.send(());
        if thread.join().is_err() {
            tracing::error!("a simulated relay panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
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

type Messages = ReceiverStream<Result<Encoded, Status>>;

impl Relay {
    async fn subscribe(&self, start: u64) -> Result<Response<Messages>, Status> {
        let (answer, messages) = self.shared.subscribe(start);
        match answer {
            Answer::Serve | Answer::Hang => Ok(Response::new(ReceiverStream::new(messages))),
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
            type SubscribeKvEventsStream = Messages;

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
