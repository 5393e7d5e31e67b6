//! What is refused before an engine is contacted.

use std::time::Duration;

use http::HeaderValue;
use kvplane_gateway::Options;
use kvplane_inference::PickError;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

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
        "content-length: 4\r\ncontent-length: 4\r\n",
        "content-length: 4, 4\r\n",
        "content-length: 4\r\n transfer-encoding: chunked\r\n",
        "transfer-encoding : chunked\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding: chunked\r\n folded: x\r\n",
        "transfer-encoding:\u{b}chunked\r\n",
        "transfer-encoding: chunked\nx: y\r\n",
        "host: other\r\ntransfer-encoding: chunked\r\n",
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

/// A client that sends a part of a body and no more is answered in time, and holds nothing.
#[tokio::test]
async fn slow_and_many_bodies_are_bounded() {
    let body_timeout = Duration::from_millis(100);
    let rig = Rig::with(1, Options { body_timeout, max_bodies: 4_096, ..Options::default() }, &[]).await;
    let mut socket = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3000\r\n\r\n";
    socket.write_all(format!("{head}{}", " ".repeat(2_000)).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::time::timeout(DEADLINE, socket.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    let long = format!(r#"{{"model":"m","messages":[],"x":"{}"}}"#, "x".repeat(5_000));
    let answer = rig.post("/v1/chat/completions", &long).await;
    assert_eq!((answer.status.as_u16(), answer.headers.contains_key("retry-after")), (429, true));
    assert_eq!(rig.contacted(), 0);
    assert_eq!(
        (rig.gateway.stats().in_flight(), rig.gateway.held_bytes()),
        (0, 0),
        "no request, and no byte of one"
    );
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

/// A connection from an address of this machine, with the head of a request and some of its body.
async fn begin(rig: &Rig, from: [u8; 4], length: usize, sent: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(rig.address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{sent}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn answered(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

fn refused(rig: &Rig, reason: &str) -> u64 {
    let counts = rig.gateway.stats().labelled();
    let [.., refused] = counts;
    refused.iter().find(|(name, _)| *name == reason).expect("a reason").1
}

/// One client never has everything: somebody else's request goes through beside it.
#[tokio::test]
async fn one_client_takes_neither_all_bytes_nor_all_places() {
    const HOG: [u8; 4] = [127, 0, 0, 1];
    const OTHER: [u8; 4] = [127, 0, 0, 2];
    let rig = Rig::with(1, Options { max_bodies: 8_000, ..Options::default() }, &[]).await;
    let held = begin(&rig, HOG, 9_000, &" ".repeat(6_900)).await;
    let until = tokio::time::Instant::now() + DEADLINE;
    while rig.gateway.held_bytes() < 6_900 {
        assert!(tokio::time::Instant::now() < until, "{} bytes", rig.gateway.held_bytes());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let more = answered(begin(&rig, HOG, 900, &" ".repeat(900)).await).await;
    assert!(more.starts_with("HTTP/1.1 429"), "{more}");
    assert_eq!(refused(&rig, "body_bytes_of_peer"), 1);
    let good = answered(begin(&rig, OTHER, CHAT.len(), CHAT).await).await;
    assert!(good.starts_with("HTTP/1.1 200"), "{good}");
    drop(held);

    let rig = Rig::with(1, Options { max_requests: 8, ..Options::default() }, &[]).await;
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(begin(&rig, HOG, 9_000, " ").await);
    }
    while rig.gateway.held_bytes() < 7 {
        assert!(tokio::time::Instant::now() < until);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let more = answered(begin(&rig, HOG, CHAT.len(), CHAT).await).await;
    assert!(more.starts_with("HTTP/1.1 429"), "{more}");
    assert_eq!(refused(&rig, "too_many_requests_of_peer"), 1);
    let good = answered(begin(&rig, OTHER, CHAT.len(), CHAT).await).await;
    assert!(good.starts_with("HTTP/1.1 200"), "{good}");
}

#[tokio::test]
async fn what_takes_too_long_or_is_too_long_is_counted() {
    let options = Options {
        max_body: 4_096,
        body_timeout: std::time::Duration::from_millis(100),
        ..Options::default()
    };
    let rig = Rig::with(1, options, &[]).await;
    let late = answered(begin(&rig, [127, 0, 0, 1], 900, "{").await).await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
    let long = answered(begin(&rig, [127, 0, 0, 1], 4_097, "{").await).await;
    assert!(long.starts_with("HTTP/1.1 413"), "{long}");
    assert_eq!((refused(&rig, "body_timeout"), refused(&rig, "body_too_large")), (1, 1));
    assert_eq!(rig.contacted(), 0);
}
