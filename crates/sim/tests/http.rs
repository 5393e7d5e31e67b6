//! The engine's HTTP side.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvplane_sim::{SimConfig, SimEngine, SimHandle};
use kvplane_wire::Profile;
use serde_json::{Value, json};

async fn call(engine: &SimHandle, method: Method, path: &str, body: Value) -> (StatusCode, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
    let uri = format!("http://{}{path}", engine.http_address().unwrap());
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
    let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn get(engine: &SimHandle, path: &str) -> (StatusCode, String) {
    call(engine, Method::GET, path, Value::Null).await
}

async fn post(engine: &SimHandle, path: &str, body: Value) -> (StatusCode, Value) {
    let (status, text) = call(engine, Method::POST, path, body).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

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

#[tokio::test]
async fn a_reset_answers_as_its_version_does() {
    let new = engine(Profile::Vllm0_26);
    let held = new.begin(&[1; 9], 2, &kvplane_sim::CompletionOptions::default()).unwrap();
    let reset = |engine| async move { call(engine, Method::POST, "/reset_prefix_cache", Value::Null).await };
    assert_eq!(reset(&new).await, (StatusCode::OK, r#"{"success":false}"#.to_owned()));
    drop(held);
    assert_eq!(reset(&new).await, (StatusCode::OK, r#"{"success":true}"#.to_owned()));
    let old = engine(Profile::Vllm0_24);
    assert_eq!(reset(&old).await, (StatusCode::OK, String::new()));
    assert_eq!(get(&old, "/kv_event_sources").await.0, StatusCode::NOT_FOUND);
}
