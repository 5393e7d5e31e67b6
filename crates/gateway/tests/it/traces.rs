//! Traces, at a collector.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use kvplane_gateway::{Options, TraceOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::rig::{DEADLINE, Rig, STREAM};

type Collected = Arc<watch::Sender<Vec<Value>>>;

/// Keeps every span that it is sent.
async fn collector() -> (String, Collected) {
    async fn take(State(collected): State<Collected>, body: Bytes) {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        collected.send_modify(|all| all.extend(spans));
    }
    let collected = Collected::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/traces", axum::routing::post(take)).with_state(collected.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (format!("http://{address}"), collected)
}

fn attribute<'s>(span: &'s Value, name: &str) -> &'s Value {
    let all = span["attributes"].as_array().unwrap();
    all.iter().find(|one| one["key"] == name).map_or(&Value::Null, |one| &one["value"])
}

#[tokio::test]
async fn a_request_is_one_trace_with_the_engine_s_below_it() {
    let (endpoint, collected) = collector().await;
    let traces = Some(TraceOptions { endpoint, sample: 0.0 });
    let rig = Rig::with(1, Options { traces, ..Options::default() }, &[]).await;
    let exporting = rig.gateway.clone();
    tokio::spawn(async move { exporting.export().await });
    // Not sampled: passed on as it is, and not exported.
    let send = async |flags: &str| {
        let mut request = rig.request("/v1/chat/completions", STREAM);
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        request.headers_mut().insert("traceparent", parent.parse().unwrap());
        assert_eq!(rig.send(request).await.status.as_u16(), 200);
        let got = rig.engines[0].requests().pop().unwrap();
        (parent, got.headers["traceparent"].to_str().unwrap().to_owned())
    };
    let (given, reported) = send("00").await;
    assert_eq!(given, reported);
    let (given, reported) = send("01").await;
    assert_ne!(given, reported);
    let mut arrived = collected.subscribe();
    let spans = tokio::time::timeout(DEADLINE, arrived.wait_for(|spans| !spans.is_empty()));
    let spans = spans.await.unwrap().unwrap().clone();
    let named = |kind: u8, name: &str| {
        spans
            .iter()
            .find(|span| span["kind"] == kind && span["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {spans:?}"))
    };
    let (server, client) = (named(2, "chat m"), named(3, "chat m"));
    assert!(spans.iter().all(|span| span["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"));
    assert_eq!(server["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(client["parentSpanId"], server["spanId"]);
    assert_eq!(
        reported.split('-').nth(2).unwrap(),
        client["spanId"],
        "the engine's spans are below this one"
    );
    for name in ["tokenize", "decide", "queue"] {
        assert_eq!(named(1, name)["parentSpanId"], server["spanId"], "{name}");
    }
    assert_eq!(named(1, "first_byte")["parentSpanId"], client["spanId"]);
    for (name, value) in [
        ("gen_ai.operation.name", json!({"stringValue": "chat"})),
        ("gen_ai.provider.name", json!({"stringValue": "vllm"})),
        ("gen_ai.request.model", json!({"stringValue": "m"})),
        ("gen_ai.usage.input_tokens", json!({"intValue": "10"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "3"})),
        ("gen_ai.usage.cache_read.input_tokens", json!({"intValue": "8"})),
        ("kvplane.predicted_tokens", json!({"intValue": "8"})),
        ("http.response.status_code", json!({"intValue": "200"})),
        ("kvplane.ended", json!({"stringValue": "finished"})),
    ] {
        assert_eq!(*attribute(server, name), value, "{name}");
    }
    assert!(!format!("{spans:?}").contains("\"hi\""), "no text");
    let at = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    assert!(spans.iter().all(|span| at(span, "startTimeUnixNano") <= at(span, "endTimeUnixNano")));
}
