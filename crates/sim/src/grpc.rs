//! SMG's services: what gateways and operators can call an engine for, or a relay before one.
//!
//! | | flush | profile | info, health | loads | events | generate |
//! |---|---|---|---|---|---|---|
//! | vLLM | every rank has to accept the same attempt; all are asked again every 100 ms, then `DEADLINE_EXCEEDED` | without options, else `INVALID_ARGUMENT` | yes | yes | of a relay | of an engine: plain prompts, with `cached_tokens` |
//! | `SGLang` | each rank waits by itself | with options | yes | yes | of a relay | no |
//! | `TokenSpeed` | asked again every 50 ms, for two seconds at least | with options | yes | yes | of a relay | no |
//! | TensorRT-LLM | no | no | yes | no | of a relay | no |
//! | MLX | no | no | yes | no | no | no |
//!
//! What a service does not have is `UNIMPLEMENTED`.

mod generate;
mod messages;
mod operations;

use std::sync::Arc;

use axum::Router;
use kvplane_proto::Encoded;
use kvplane_proto::engines::mlx::server::mlx_engine_server::{MlxEngine, MlxEngineServer};
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::{
    SglangScheduler, SglangSchedulerServer,
};
use kvplane_proto::engines::tokenspeed::server::token_speed_scheduler_server::{
    TokenSpeedScheduler, TokenSpeedSchedulerServer,
};
use kvplane_proto::engines::trtllm::server::trtllm_service_server::{TrtllmService, TrtllmServiceServer};
use kvplane_proto::engines::vllm::server::vllm_engine_server::{VllmEngine, VllmEngineServer};
use kvplane_proto::engines::{mlx, sglang, tokenspeed, trtllm, vllm};
use kvplane_proto::smg::{
    FlushCacheRequest, FlushCacheResponse, ProfileResponse, StartProfileRequest, StopProfileRequest,
    SubscribeKvEventsRequest,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use self::operations::Maker;
use crate::operate::Operated;
use crate::relay::{Answer, RelayService, Shared};

/// The routes of a service. Without `relay` it has no events.
pub(crate) fn router(service: RelayService, engine: Arc<dyn Operated>, relay: Option<Arc<Shared>>) -> Router {
    let servant = Servant { engine, relay };
    let routes = match service {
        RelayService::Vllm => Routes::new(VllmEngineServer::new(servant)),
        RelayService::Sglang => Routes::new(SglangSchedulerServer::new(servant)),
        RelayService::Tokenspeed => Routes::new(TokenSpeedSchedulerServer::new(servant)),
        RelayService::Trtllm => Routes::new(TrtllmServiceServer::new(servant)),
        RelayService::Mlx => Routes::new(MlxEngineServer::new(servant)),
    };
    routes.into_axum_router()
}

/// The handler of calls.
struct Servant {
    engine: Arc<dyn Operated>,
    relay: Option<Arc<Shared>>,
}

type Messages = BoxStream<Encoded>;
type Answered<T> = Result<Response<T>, Status>;

impl Servant {
    async fn subscribe(&self, start: u64) -> Answered<Messages> {
        let Some(relay) = &self.relay else { return Err(Status::unimplemented("KV cache events are off")) };
        let (answer, messages) = relay.subscribe(start);
        match answer {
            Answer::Serve | Answer::Hang => Ok(Response::new(Box::pin(ReceiverStream::new(messages)))),
            Answer::Refuse(code) => Err(Status::new(code, "simulated")),
            Answer::Mute => std::future::pending().await,
        }
    }

    /// Whether the engine is healthy, and in words.
    fn health(&self) -> (bool, String) {
        let well = self.engine.desk().is_well();
        (well, if well { "Health" } else { "Engine is not alive" }.to_owned())
    }
}

/// The service of an engine whose operators can do everything.
macro_rules! operable_service {
    ($service:ident, $package:ident, $flush:ident, $maker:ident $(, { $($also:tt)* })?) => {
        #[tonic::async_trait]
        impl $service for Servant {
            $($($also)*)?

            async fn health_check(
                &self,
                _: Request<$package::HealthCheckRequest>,
            ) -> Answered<$package::HealthCheckResponse> {
                let (healthy, message) = self.health();
                Ok(Response::new($package::HealthCheckResponse { healthy, message }))
            }

            async fn get_server_info(
                &self,
                _: Request<$package::GetServerInfoRequest>,
            ) -> Answered<$package::GetServerInfoResponse> {
                Ok(Response::new(messages::$package::info(&self.engine.facts(), &self.engine.loads())))
            }

            async fn get_loads(
                &self,
                _: Request<$package::GetLoadsRequest>,
            ) -> Answered<$package::GetLoadsResponse> {
                Ok(Response::new(messages::$package::loads(&self.engine.facts(), &self.engine.loads())))
            }

            async fn flush_cache(&self, request: Request<FlushCacheRequest>) -> Answered<FlushCacheResponse> {
                self.$flush(request.get_ref().timeout_s).await.map(Response::new)
            }

            async fn start_profile(
                &self,
                request: Request<StartProfileRequest>,
            ) -> Answered<ProfileResponse> {
                self.start_profile(Maker::$maker, request.get_ref()).map(Response::new)
            }

            async fn stop_profile(&self, _: Request<StopProfileRequest>) -> Answered<ProfileResponse> {
                self.stop_profile(Maker::$maker).map(Response::new)
            }

            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Answered<Messages> {
                self.subscribe(request.get_ref().start_sequence_number).await
            }
        }
    };
}

operable_service!(VllmEngine, vllm, flush_vllm, Vllm, {
    async fn generate(
        &self,
        request: Request<vllm::GenerateRequest>,
    ) -> Answered<BoxStream<vllm::GenerateResponse>> {
        self.generate_vllm(request.into_inner())
    }
});
operable_service!(SglangScheduler, sglang, flush_sglang, Scheduler);
operable_service!(TokenSpeedScheduler, tokenspeed, flush_tokenspeed, Scheduler);

#[tonic::async_trait]
impl TrtllmService for Servant {
    async fn health_check(
        &self,
        _: Request<trtllm::HealthCheckRequest>,
    ) -> Answered<trtllm::HealthCheckResponse> {
        let (healthy, message) = self.health();
        let status = if healthy { "OK".to_owned() } else { message };
        Ok(Response::new(trtllm::HealthCheckResponse { status }))
    }

    async fn get_server_info(
        &self,
        _: Request<trtllm::GetServerInfoRequest>,
    ) -> Answered<trtllm::GetServerInfoResponse> {
        let facts = self.engine.facts();
        Ok(Response::new(trtllm::GetServerInfoResponse {
            version: facts.release.to_owned(),
            backend: "pytorch".to_owned(),
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            context_parallel_size: 1,
            world_size: facts.ranks as i32,
        }))
    }

    async fn subscribe_kv_events(&self, request: Request<SubscribeKvEventsRequest>) -> Answered<Messages> {
        self.subscribe(request.get_ref().start_sequence_number).await
    }
}

#[tonic::async_trait]
impl MlxEngine for Servant {
    async fn health_check(&self, _: Request<mlx::HealthCheckRequest>) -> Answered<mlx::HealthCheckResponse> {
        let (healthy, message) = self.health();
        Ok(Response::new(mlx::HealthCheckResponse { healthy, message }))
    }

    async fn get_server_info(
        &self,
        _: Request<mlx::GetServerInfoRequest>,
    ) -> Answered<mlx::GetServerInfoResponse> {
        let running: usize = self.engine.loads().iter().map(|load| load.running).sum();
        Ok(Response::new(mlx::GetServerInfoResponse {
            server_type: "mlx-grpc".to_owned(),
            active_requests: running as u32,
            uptime_seconds: self.engine.facts().uptime(),
        }))
    }
}
