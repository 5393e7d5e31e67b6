//! SMG's own calls, behind a front and by an engine's name.

use std::net::SocketAddr;

use kvplane_core::Reason;
use kvplane_proto::engines::sglang::sglang_scheduler_client::SglangSchedulerClient;
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::smg::{FlushCacheRequest, StartProfileRequest, StopProfileRequest};
use kvplane_server::EngineConfig;
use kvplane_sim::CompletionOptions;
use kvplane_wire::Profile;
use serde_json::json;
use tonic::{Code, Request};

use crate::operations::scripted::{Act, Scripted};
use crate::rig::{Engine, Rig, text};

/// A free address.
fn free() -> SocketAddr {
    kvplane_sim::free_address().unwrap()
}

/// Adds the engine with a front before its HTTP server alone.
async fn fronted(rig: &Rig, engine: &Engine, http: &str) -> SocketAddr {
    let front = free();
    let config: EngineConfig = serde_json::from_value(json!({
        "id": "e0",
        "kind": engine.sim.config().profile.engine().as_str(),
        "model": "sim",
        "events": engine.sim.event_endpoints()[0],
        "replay": engine.sim.replay_endpoints()[0],
        "http": http,
        "front": front.to_string(),
    }))
    .unwrap();
    rig.fleet.add(vec![config.plan().unwrap()], kvplane_ingest::Origin::Config).await.unwrap();
    rig.live(0).await;
    front
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_with_http_alone_is_flushed_through_its_front() {
    let engine = Engine::start(|config| config.profile = Profile::Sglang0_5_22);
    let rig = Rig::over(&[]).await;
    let http = format!("http://{}", engine.sim.http_address().unwrap());
    let front = fronted(&rig, &engine, &http).await;
    engine.repeat_what_nobody_heard();
    let prompt: Vec<u32> = (0..97).collect();
    engine.sim.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
    assert!(rig.exact(0, &engine).await.blocks[0] > 0);
    let mut client = SglangSchedulerClient::connect(format!("http://{front}")).await.unwrap();
    let reported = client.flush_cache(FlushCacheRequest { timeout_s: 5.0 }).await.unwrap().into_inner();
    assert!(reported.success && reported.message.starts_with("rank 0: proven: "), "{reported:?}");
    assert_eq!(rig.exact(0, &engine).await.blocks[0], 0);
    for timeout_s in [-1.0, f32::NAN, f32::INFINITY] {
        let status = client.flush_cache(FlushCacheRequest { timeout_s }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("timeout_s"), "{status}");
    }
    // Nothing else is behind it.
    let status =
        client.get_loads(kvplane_proto::engines::sglang::GetLoadsRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    // By its name, on the port of the plane.
    let mut client = SglangSchedulerClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let mut request = Request::new(FlushCacheRequest { timeout_s: 0.0 });
    request.metadata_mut().insert("kvplane-engine", "e0".parse().unwrap());
    let reported = client.flush_cache(request).await.unwrap().into_inner();
    assert!(reported.success, "{reported:?}");
    let mut request = Request::new(FlushCacheRequest { timeout_s: 0.0 });
    request.metadata_mut().insert("kvplane-rank", "0".parse().unwrap());
    assert_eq!(client.flush_cache(request).await.unwrap_err().code(), Code::InvalidArgument);
    let misnamed = || {
        let mut request = Request::new(());
        request.metadata_mut().insert("kvplane-engine", "e9".parse().unwrap());
        request
    };
    for status in [
        client.flush_cache(misnamed().map(|()| FlushCacheRequest::default())).await.unwrap_err(),
        client.start_profile(misnamed().map(|()| StartProfileRequest::default())).await.unwrap_err(),
        client.stop_profile(misnamed().map(|()| StopProfileRequest {})).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("e9") && status.message().contains("e0"), "{status}");
    }
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(page.contains(r#"kvplane_operation_ranks_total{verb="flush",verdict="proven"} 2"#), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_answers_is_reported_in_the_services_words() {
    let server = Scripted::new(|engine| match engine {
        "busy" => Act::Say(200, r#"{"success": false}"#),
        "yes" => Act::Say(200, r#"{"success": true}"#),
        "slow" => Act::Say(504, "late"),
        _ => Act::Say(404, ""),
    })
    .await;
    for (behaves, code, success) in [
        ("busy", Code::Ok, false),
        ("yes", Code::Ok, true),
        ("slow", Code::DeadlineExceeded, false),
        ("none", Code::Unimplemented, false),
    ] {
        let engine = Engine::plain();
        let rig = Rig::over(&[]).await;
        let front = fronted(&rig, &engine, &server.url(behaves)).await;
        // Something to flush: of an engine that holds nothing it is known at once.
        let prompt: Vec<u32> = (0..97).collect();
        engine.sim.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
        rig.until(0, "filled", |status| status.blocks[0] > 0).await;
        let mut client = VllmEngineClient::connect(format!("http://{front}")).await.unwrap();
        match client.flush_cache(FlushCacheRequest { timeout_s: 0.0 }).await {
            Ok(reported) => {
                let reported = reported.into_inner();
                assert_eq!((Code::Ok, reported.success), (code, success), "{behaves} {reported:?}");
            }
            Err(status) => assert_eq!(status.code(), code, "{behaves} {status}"),
        }
        // Who did not say yes has its verdict before the proof timeout, and is watched on.
        let trust = rig.status(0).trust;
        let doubted = trust.has(Reason::UnprovenFlush) || trust.has(Reason::Flushing);
        assert_eq!(doubted, ["yes", "slow"].contains(&behaves));
        if behaves == "yes" {
            let profile = StartProfileRequest { num_steps: Some(3), ..StartProfileRequest::default() };
            assert!(client.start_profile(profile).await.unwrap().into_inner().success);
            assert!(client.stop_profile(StopProfileRequest {}).await.unwrap().into_inner().success);
            let profile = StartProfileRequest { num_steps: Some(-1), ..StartProfileRequest::default() };
            assert_eq!(client.start_profile(profile).await.unwrap_err().code(), Code::InvalidArgument);
        }
    }
}
