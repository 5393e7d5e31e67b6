//! What is refused before an engine is contacted.

use http::HeaderValue;
use kvplane_gateway::Options;
use kvplane_inference::PickError;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::rig::{CHAT, DEADLINE, Rig};

#[tokio::test]
async fn bad_requests_reach_no_engine() {
    let rig = Rig::with(1, Options { max_body: 4096, ..Options::default() }, &[]).await;
    for (path, body, status, code) in [
        ("/v1/chat/completions", "{", 400, "invalid_request"),
        ("/v1/chat/completions", "not json", 400, "invalid_request"),
        ("/v1/chat/completions", r#"{"model":"m","model":"m","messages":[]}"#, 400, "invalid_request"),
        (
            "/v1/chat/completions",
            r#"{"model":"m","messages":[{"role":"user","role":"system"}]}"#,
            400,
            "invalid_request",
        ),
        ("/v1/chat/completions", r#"{"messages":[]}"#, 400, "invalid_request"),
        ("/v1/chat/completions", r#"{"model":"other","messages":[]}"#, 404, "model_not_found"),
        ("/v1/completions", r#"{"model":"m","prompt":"secret","stream":"x"}"#, 400, "invalid_request"),
    ] {
        let answer = rig.post(path, body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), &error["code"]), (status, &json!(code)), "{body}");
        assert!(error["type"].is_string() && !answer.text().contains("secret"));
    }
    let long = format!(r#"{{"model":"m","messages":[],"x":"{}"}}"#, "x".repeat(5000));
    assert_eq!(rig.post("/v1/chat/completions", &long).await.status.as_u16(), 413);
    let mut zipped = rig.request("/v1/chat/completions", CHAT);
    zipped.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    assert_eq!(rig.send(zipped).await.status.as_u16(), 415);
    let answer = rig.post("/v1/messages", r#"{"messages":[]}"#).await;
    assert_eq!(
        answer.json(),
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": "model: is missing"}})
    );
    assert_eq!(rig.contacted(), 0);
}

/// Two lengths, or a length and chunks: no reader behind the gateway sees another request than it does.
#[tokio::test]
async fn requests_cannot_be_smuggled() {
    let rig = Rig::start(1).await;
    let second = "POST /reset_prefix_cache HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    let chunks = format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len());
    for head in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "content-length: +4\r\n",
    ] {
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        let text = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n{chunks}{second}"
        );
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(DEADLINE, socket.read_to_end(&mut answer)).await;
        // It may be closed with what was not read.
        let _ = read.unwrap();
        let answers = String::from_utf8_lossy(&answer).matches("HTTP/1.1 ").count();
        assert!(answers <= 1, "{head}: {}", String::from_utf8_lossy(&answer));
    }
    for got in rig.engines[0].requests() {
        assert_eq!((got.path.as_str(), &got.body[..]), ("/v1/chat/completions", CHAT.as_bytes()));
        assert!(!got.headers.contains_key("transfer-encoding"));
    }
}

#[tokio::test]
async fn what_the_decision_says_is_said_in_openai_s_words() {
    let rig = Rig::start(1).await;
    *rig.plane.fails.lock() = Some(PickError::Saturated("all over their cap".to_owned()));
    let answer = rig.post("/v1/chat/completions", CHAT).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["type"].clone()),
        (429, json!("rate_limit_error"))
    );
    assert_eq!(answer.headers["retry-after"], "2");
    assert_eq!(rig.contacted(), 0);
    // Nothing is known of the streams: the servers may still be there.
    *rig.plane.fails.lock() = Some(PickError::Nobody("recovering".to_owned()));
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    rig.gateway.set_upstreams(Vec::new());
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 404);
}
