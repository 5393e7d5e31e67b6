//! SMG's services before simulated engines and relays: who has what, and how each flushes.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::net::SocketAddr;
use std::time::Duration;

use kvplane_proto::engines::mlx::mlx_engine_client::MlxEngineClient;
use kvplane_proto::engines::sglang::sglang_scheduler_client::SglangSchedulerClient;
use kvplane_proto::engines::tokenspeed::token_speed_scheduler_client::TokenSpeedSchedulerClient;
use kvplane_proto::engines::trtllm::trtllm_service_client::TrtllmServiceClient;
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::engines::{mlx, sglang, tokenspeed, trtllm, vllm};
use kvplane_proto::smg::{
    FlushCacheRequest, StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use kvplane_sim::{
    ClearEvent, CompletionOptions, Conduct, RelayConfig, RelayService, Reply, SimConfig, SimEngine,
    SimHandle, SimRelay,
};
use kvplane_wire::Profile;
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;

fn engine(profile: Profile) -> SimHandle {
    let grpc = Some("127.0.0.1:0".parse().unwrap());
    SimEngine::start(SimConfig { profile, grpc, ranks: 2, block_size: 4, ..SimConfig::default() }).unwrap()
}

async fn channel(address: Option<SocketAddr>) -> Channel {
    Channel::from_shared(format!("http://{}", address.unwrap())).unwrap().connect().await.unwrap()
}

fn fill(engine: &SimHandle) {
    for rank in 0..2 {
        let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
        engine.complete(&[rank; 9], 1, &options).unwrap();
    }
}

fn filled(engine: &SimHandle) -> Vec<bool> {
    engine.state().iter().map(|rank| !rank.blocks.is_empty()).collect()
}

fn at_once() -> FlushCacheRequest {
    FlushCacheRequest { timeout_s: 0.0 }
}

/// What every engine does whose operators can do everything.
macro_rules! operable {
    ($name:ident, $profile:expr, $client:ident, $package:ident) => {
        #[tokio::test]
        async fn $name() {
            let engine = engine($profile);
            let mut client = $client::new(channel(engine.grpc_address()).await);
            fill(&engine);
            let health = client.health_check($package::HealthCheckRequest {}).await.unwrap();
            assert!(health.get_ref().healthy);
            let loads = client.get_loads($package::GetLoadsRequest::default()).await.unwrap().into_inner();
            assert_eq!((loads.dp_rank_count, loads.loads.len()), (2, 2));
            assert_eq!(loads.loads[1].num_used_tokens, 8);
            client.get_server_info($package::GetServerInfoRequest {}).await.unwrap();
            // Half of the ranks refuse: that is no success, and the others have flushed.
            engine.conduct(Conduct { busy: true, ranks: Some(vec![1]), ..Conduct::default() });
            assert!(!client.flush_cache(at_once()).await.unwrap().get_ref().success);
            assert_eq!(filled(&engine), [false, true]);
            engine.conduct(Conduct { ill: true, ..Conduct::default() });
            assert!(client.flush_cache(at_once()).await.unwrap().get_ref().success);
            assert_eq!(filled(&engine), [false, false]);
            let health = client.health_check($package::HealthCheckRequest {}).await.unwrap();
            assert!(!health.get_ref().healthy);
            // It is asked for events elsewhere.
            let events = client.subscribe_kv_events(SubscribeKvEventsRequest::default()).await;
            assert_eq!(events.unwrap_err().code(), Code::Unimplemented);
        }
    };
}

operable!(vllm_is_operated, Profile::Vllm0_32, VllmEngineClient, vllm);
operable!(sglang_is_operated, Profile::Sglang0_5_22, SglangSchedulerClient, sglang);
operable!(tokenspeed_is_operated, Profile::Tokenspeed0_1_1, TokenSpeedSchedulerClient, tokenspeed);

#[tokio::test]
async fn vllm_is_asked_again_until_the_time_is_over() {
    let engine = engine(Profile::Vllm0_32);
    let mut client = VllmEngineClient::new(channel(engine.grpc_address()).await);
    for (timeout_s, code) in
        [(-1.0, Code::InvalidArgument), (f32::NAN, Code::InvalidArgument), (0.05, Code::DeadlineExceeded)]
    {
        engine.conduct(Conduct { busy: true, ..Conduct::default() });
        let status = client.flush_cache(FlushCacheRequest { timeout_s }).await.unwrap_err();
        assert_eq!(status.code(), code, "{timeout_s}");
    }
    let mut waits = client.clone();
    let waiting =
        tokio::spawn(async move { waits.flush_cache(FlushCacheRequest { timeout_s: 600.0 }).await });
    while engine.asked().len() < 4 {
        tokio::task::yield_now().await;
    }
    engine.conduct(Conduct::default());
    assert!(waiting.await.unwrap().unwrap().get_ref().success);
}

#[tokio::test]
async fn recordings_by_service() {
    let launched = engine(Profile::Vllm0_32);
    let mut client = VllmEngineClient::new(channel(launched.grpc_address()).await);
    let options = StartProfileRequest { num_steps: Some(3), ..StartProfileRequest::default() };
    let refused = client.start_profile(options.clone()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("num_steps")), (Code::InvalidArgument, true));
    for _ in 0..2 {
        let started = client.start_profile(StartProfileRequest::default()).await.unwrap();
        assert!(started.get_ref().success, "the first goes on");
    }
    assert!(client.stop_profile(StopProfileRequest {}).await.unwrap().get_ref().success);

    let scheduler = engine(Profile::Sglang0_5_22);
    let mut client = SglangSchedulerClient::new(channel(scheduler.grpc_address()).await);
    assert!(!client.stop_profile(StopProfileRequest {}).await.unwrap().get_ref().success, "there is none");
    assert!(client.start_profile(options.clone()).await.unwrap().get_ref().success);
    let again = client.start_profile(options).await.unwrap().into_inner();
    assert_eq!((again.success, again.message.contains("already")), (false, true));
    assert_eq!(scheduler.profiles(), (vec![json!({ "num_steps": 3 })], true));
}

#[tokio::test]
async fn calls_that_go_wrong() {
    let engine = engine(Profile::Sglang0_5_22);
    let mut client = SglangSchedulerClient::new(channel(engine.grpc_address()).await);
    for (answer, code, done) in [
        (Reply::Error, Code::Internal, false),
        (Reply::Garbage, Code::Internal, true),
        (Reply::Broken, Code::Unknown, true),
    ] {
        fill(&engine);
        engine.conduct(Conduct { answer, ..Conduct::default() });
        let status = client.flush_cache(at_once()).await.unwrap_err();
        assert_eq!((status.code(), filled(&engine)[0]), (code, !done), "{answer:?}: {status:?}");
    }
    engine.conduct(Conduct { answer: Reply::Hang, ..Conduct::default() });
    let mut hung = tonic::Request::new(at_once());
    hung.set_timeout(Duration::from_millis(20));
    assert!(client.flush_cache(hung).await.is_err());
    engine.conduct(Conduct::default());
    assert!(client.flush_cache(at_once()).await.unwrap().get_ref().success);
}

#[tokio::test]
async fn services_without_operations() {
    let trtllm = engine(Profile::TrtllmZmq);
    let mut client = TrtllmServiceClient::new(channel(trtllm.grpc_address()).await);
    let health = client.health_check(trtllm::HealthCheckRequest {}).await.unwrap();
    assert_eq!(health.get_ref().status, "OK");
    assert_eq!(
        client.get_server_info(trtllm::GetServerInfoRequest {}).await.unwrap().get_ref().world_size,
        2
    );

    let mlx = SimRelay::start(RelayConfig { service: RelayService::Mlx, ..RelayConfig::default() }).unwrap();
    let channel = channel(Some(mlx.address())).await;
    let mut client = MlxEngineClient::new(channel.clone());
    assert!(client.health_check(mlx::HealthCheckRequest {}).await.unwrap().get_ref().healthy);
    client.get_server_info(mlx::GetServerInfoRequest {}).await.unwrap();
    let other = VllmEngineClient::new(channel).flush_cache(at_once()).await;
    assert_eq!(other.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_relay_tells_a_flush_as_the_engine_behind_it_does() {
    for (service, at_once_reported) in
        [(RelayService::Vllm, 0), (RelayService::Sglang, 1), (RelayService::Tokenspeed, 1)]
    {
        for (clear, reported) in [
            (ClearEvent::Usual, at_once_reported),
            (ClearEvent::Early, 1),
            (ClearEvent::NextStep, 0),
            (ClearEvent::Lost, 0),
        ] {
            let relay = SimRelay::start(RelayConfig { service, ..RelayConfig::default() }).unwrap();
            relay.conduct(Conduct { clear, ..Conduct::default() });
            relay.complete(0, &[1; 40], 1).unwrap();
            let before = relay.next_sequence(0);
            let channel = channel(Some(relay.address())).await;
            let answer = match service {
                RelayService::Vllm => VllmEngineClient::new(channel).flush_cache(at_once()).await,
                RelayService::Sglang => SglangSchedulerClient::new(channel).flush_cache(at_once()).await,
                _ => TokenSpeedSchedulerClient::new(channel).flush_cache(at_once()).await,
            };
            assert!(answer.unwrap().get_ref().success);
            assert_eq!(
                (relay.next_sequence(0) - before, relay.held(0).len()),
                (reported, 0),
                "{service:?} {clear:?}"
            );
            relay.complete(0, &[2; 40], 1).unwrap();
            assert_eq!(relay.held(0).len(), 2);
        }
    }
}
