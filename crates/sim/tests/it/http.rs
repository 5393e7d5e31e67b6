//! The engine's HTTP side.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::client::{call, get, post};
use http::{Method, StatusCode};
use kvplane_sim::{SimConfig, SimEngine, SimHandle};
use kvplane_wire::Profile;
use serde_json::{Value, json};

fn engine(profile: Profile) -> SimHandle {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let loras = vec!["lora-a".to_owned()];
    SimEngine::start(SimConfig { profile, http, loras, block_size: 4, ..SimConfig::default() }).unwrap()
}

#[tokio::test]
async fn completions_tell_what_was_cached() {
    let engine = engine(Profile::Vllm0_32);
    let request = json!({ "model": "sim", "prompt": (0..10).collect::<Vec<u32>>(), "max_tokens": 3 });
    let cached = |body: &Value| body["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let (status, first) = post(&engine, "/v1/completions", request.clone()).await;
    assert_eq!((status, cached(&first)), (StatusCode::OK, json!(0)));
    let (_, second) = post(&engine, "/v1/completions", request.clone()).await;
    assert_eq!(cached(&second), json!(8));
    assert_eq!(first["choices"][0]["token_ids"], second["choices"][0]["token_ids"]);
    assert_eq!(second["usage"]["prompt_tokens"], json!(10));
    assert_eq!(second["usage"]["completion_tokens"], json!(3));
    for changed in [json!({ "cache_salt": "s" }), json!({ "model": "lora-a" })] {
        let mut other = request.clone();
        other.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        assert_eq!(cached(&post(&engine, "/v1/completions", other).await.1), json!(0));
    }
    let text = json!({ "model": "sim", "prompt": "a prompt in words" });
    assert_eq!(post(&engine, "/v1/completions", text).await.1["usage"]["prompt_tokens"], json!(17));
    let unknown = json!({ "model": "other", "prompt": "x" });
    assert_eq!(post(&engine, "/v1/completions", unknown).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn images_embeddings_reports_and_tiers_are_asked_for() {
    let host = kvplane_sim::HostOptions { blocks: 100, ..Default::default() };
    let vllm = kvplane_sim::VllmOptions { host, ..Default::default() };
    let engine = start(SimConfig { vllm, ..SimConfig::default() });
    let prompt: Vec<u32> = (0..10).collect();
    let ask = |extra: Value| {
        let mut request = json!({ "prompt": prompt, "max_tokens": 4 });
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        request
    };
    let image = json!({ "extra": { "images": [{ "id": "cat", "offset": 0, "length": 3 }] } });
    for extra in [json!({}), image, json!({ "extra": { "embeddings": "00ff" } })] {
        for found in [0, 8] {
            let (status, body) = post(&engine, "/v1/completions", ask(extra.clone())).await;
            let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
            assert_eq!((status, cached), (StatusCode::OK, &json!(found)), "{extra}");
        }
    }
    let before = engine.state()[0].next_sequence;
    post(&engine, "/v1/completions", ask(json!({ "vllm_xargs": { "kv_cache_report_mode": "full" } }))).await;
    assert!(engine.state()[0].next_sequence > before, "what was found is told again");
    let bad = ask(json!({ "extra": { "embeddings": "0x" } }));
    assert_eq!(post(&engine, "/v1/completions", bad).await.0, StatusCode::BAD_REQUEST);

    let state: Value = serde_json::from_str(&get(&engine, "/sim/state").await.1).unwrap();
    let group = &state["ranks"][0]["groups"][0];
    assert_eq!(
        (&group["device"], &group["host"]),
        (&state["ranks"][0]["blocks"], &state["ranks"][0]["host_blocks"])
    );
    post(&engine, "/reset_prefix_cache", Value::Null).await;
    assert!(!engine.state()[0].host_blocks.is_empty());
    post(&engine, "/reset_prefix_cache?reset_external=true", Value::Null).await;
    assert!(engine.state()[0].host_blocks.is_empty());
}

#[tokio::test]
async fn state_faults_and_lives_are_served() {
    let engine = engine(Profile::Vllm0_32);
    post(&engine, "/v1/completions", json!({ "prompt": [1, 2, 3, 4, 5], "max_tokens": 1 })).await;
    let state: Value = serde_json::from_str(&get(&engine, "/sim/state").await.1).unwrap();
    assert_eq!(state["ranks"][0]["next_sequence"], json!(1));
    let (hash, copies) = state["ranks"][0]["blocks"].as_object().unwrap().iter().next().unwrap();
    assert_eq!((hash.parse(), copies), (Ok(*engine.state()[0].blocks.keys().next().unwrap()), &json!(1)));

    let metrics = get(&engine, "/metrics").await.1;
    assert!(metrics.contains("vllm:cache_config_info{block_size=\"4\",num_gpu_blocks=\"257\"} 1"));
    let restart = json!({ "restart": { "first_sequence": 3, "same_content": true } });
    assert_eq!(post(&engine, "/sim/fault", restart).await.0, StatusCode::OK);
    assert_eq!(engine.state()[0].next_sequence, 3);
    assert_ne!(get(&engine, "/metrics").await.1, metrics, "another start time");

    for good in
        [json!({ "drop": 3 }), json!({ "delay_ms": 5, "count": 2 }), json!({ "replay": "off", "rank": 0 })]
    {
        assert_eq!(post(&engine, "/sim/fault", good).await.0, StatusCode::OK);
    }
    for bad in
        [json!({}), json!({ "dorp": 3 }), json!({ "replay": "maybe" }), json!({ "drop": 1, "rank": 1 })]
    {
        assert!(post(&engine, "/sim/fault", bad).await.0.is_client_error());
    }
    let sources: Value = serde_json::from_str(&get(&engine, "/kv_event_sources").await.1).unwrap();
    assert_eq!(sources["0"]["endpoint"], json!(engine.event_endpoints()[0]));
    assert_eq!(get(&engine, "/health").await.0, StatusCode::OK);
    assert_eq!(get(&engine, "/version").await.1, r#"{"version":"0.32"}"#);
    engine.stop();
}

fn start(config: SimConfig) -> SimHandle {
    let http = Some("127.0.0.1:0".parse().unwrap());
    SimEngine::start(SimConfig { http, block_size: 4, ..config }).unwrap()
}

#[tokio::test]
async fn sglang_tells_where_its_events_are_and_flushes_when_idle() {
    let engine = start(SimConfig {
        profile: Profile::Sglang0_5_22,
        ranks: 2,
        topic: "kv".to_owned(),
        sglang: kvplane_sim::SglangOptions { eagle: true, ..Default::default() },
        ..SimConfig::default()
    });
    let info: Value = serde_json::from_str(&get(&engine, "/server_info").await.1).unwrap();
    assert_eq!(info["speculative_algorithm"], json!("EAGLE"));
    let source = &info["kv_events"];
    assert_eq!(
        (&source["block_size"], &source["dp_size"], &source["topic"]),
        (&json!(4), &json!(2), &json!("kv"))
    );
    let ports = |base: &Value| -> Vec<Option<String>> {
        let base = base.as_u64().unwrap();
        (0..2)
            .map(|rank| Some(format!("tcp://{}:{}", source["endpoint_host"].as_str().unwrap(), base + rank)))
            .collect()
    };
    let reported: Vec<_> = engine.event_endpoints().into_iter().map(Some).collect();
    assert_eq!(ports(&source["endpoint_port_base"]), reported);
    assert_eq!(ports(&source["replay_endpoint_port_base"]), engine.replay_endpoints());

    let request = json!({ "prompt": (0..10).collect::<Vec<u32>>(), "max_tokens": 2, "rank": 0 });
    post(&engine, "/v1/completions", request.clone()).await;
    let again = post(&engine, "/v1/completions", request).await.1;
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], json!(8));

    let running = engine.begin(&[1; 9], 2, &kvplane_sim::CompletionOptions::default()).unwrap();
    let loads: Value = serde_json::from_str(&get(&engine, "/v1/loads").await.1).unwrap();
    assert_eq!(loads["loads"].as_array().unwrap().len(), 2);
    let (status, text) = get(&engine, "/flush_cache").await;
    assert_eq!((status, text.starts_with("Flush cache failed")), (StatusCode::BAD_REQUEST, true));
    drop(running);
    assert_eq!(call(&engine, Method::POST, "/flush_cache", Value::Null).await.0, StatusCode::OK);
    assert!(engine.state().iter().all(|rank| rank.blocks.is_empty()));
    assert!(get(&engine, "/metrics").await.1.contains("sglang:num_running_reqs{dp_rank=\"1\"} 0"));
    for path in ["/health", "/get_server_info"] {
        assert_eq!(get(&engine, path).await.0, StatusCode::OK, "{path}");
    }
    assert_eq!(get(&engine, "/kv_event_sources").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn others_serve_what_they_have() {
    let tokenspeed = start(SimConfig { profile: Profile::Tokenspeed0_1_1, ..SimConfig::default() });
    for path in ["/health", "/flush_cache", "/get_server_info", "/v1/loads"] {
        assert_eq!(get(&tokenspeed, path).await.0, StatusCode::OK, "{path}");
    }
    let old = engine(Profile::Vllm0_24);
    assert_eq!(get(&old, "/kv_event_sources").await.0, StatusCode::NOT_FOUND);
    let trtllm = start(SimConfig { profile: Profile::TrtllmZmq, ..SimConfig::default() });
    post(&trtllm, "/v1/completions", json!({ "prompt": [1, 2, 3, 4, 5] })).await;
    assert_eq!(trtllm.state()[0].blocks.len(), 5);
    assert_eq!(post(&trtllm, "/kv_cache_events", Value::Null).await, (StatusCode::OK, json!([])));
    assert_eq!(get(&trtllm, "/flush_cache").await.0, StatusCode::NOT_FOUND, "it has none");
}
