//! Calls of each shape pass as they are.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Frame;
use tonic::Code;

use crate::engine::{Engine, full, message};
use crate::rig::{Client, Fronted, Outcome, nobody, post, within};

#[tokio::test]
async fn unary() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let answer = Client::to(front.addr).await.unary("/test.Engine/Echo", message(b"hello")).await;
    assert_eq!(answer.data, message(b"hello"));
    assert_eq!(answer.status().code(), Code::Ok);
    let (uri, headers) = engine.head().await;
    assert_eq!(uri.to_string(), format!("http://{}/test.Engine/Echo", engine.addr));
    assert_eq!(headers["te"], "trailers");
    assert!(!headers.contains_key("host"));
    assert_eq!((front.counters.forwarded(), front.counters.own(), front.counters.connects()), (1, 0, 1));
}

/// The same call, direct and through the front: no header more, none less.
#[tokio::test]
async fn nothing_is_added() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut sides = Vec::new();
    for addr in [engine.addr, front.addr] {
        let mut client = Client::to(addr).await;
        let mut all = Vec::new();
        for method in ["Echo", "Fail", "FailLate", "Nothing"] {
            let (sender, response) = client.open(&format!("/test.Engine/{method}")).await;
            drop(sender);
            let mut answer = Outcome::of(response).await.unwrap();
            answer.headers.remove("date").expect("hyper's own, in the engine");
            all.push((sorted(&engine.head().await.1), sorted(&answer.headers), answer.data, answer.trailers));
        }
        sides.push(all);
    }
    assert_eq!(sides[0], sides[1]);
}

fn sorted(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn server_streaming() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let request = message(&5000u32.to_be_bytes());
    let answer = Client::to(front.addr).await.unary("/test.Engine/Count", request).await;
    assert_eq!(answer.data, message(b"token").repeat(5000));
    assert_eq!(answer.status().code(), Code::Ok);
}

#[tokio::test]
async fn client_streaming() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let (sender, body) = crate::rig::channel();
    let send = async move {
        for _ in 0..1000 {
            sender.send(Ok(Frame::data(message(b"part")))).await.unwrap();
        }
    };
    let (response, ()) = tokio::join!(client.send(post("/test.Engine/Sum"), body), send);
    let answer = Outcome::of(response.unwrap()).await.unwrap();
    assert_eq!(answer.data, message(&9000u64.to_be_bytes()));
}

#[tokio::test]
async fn both_directions_stream_at_once() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, mut response) = Client::to(front.addr).await.open("/test.Engine/Echo").await;
    // Headers came before the first message was sent, and each answer before the next question.
    for turn in 0..50u8 {
        sender.send(Ok(Frame::data(message(&[turn])))).await.unwrap();
        let frame = within(response.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), message(&[turn]));
    }
    drop(sender);
    let trailers = within(response.frame()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert!(within(response.frame()).await.is_none());
}

/// A client that does not read its answer can still send its request.
#[tokio::test]
async fn the_directions_do_not_wait_for_each_other() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, response) = Client::to(front.addr).await.open("/test.Engine/Flood").await;
    for _ in 0..100 {
        within(sender.send(Ok(Frame::data(message(&[1; 1000]))))).await.unwrap();
    }
    drop(response);
}

#[tokio::test]
async fn metadata_passes_both_ways() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let request = post("/test.Engine/Echo")
        .header("x-text", "one")
        .header("x-text", "two")
        .header("x-data-bin", "AAEC//79")
        .header("user-agent", "grpc-test/1")
        .header("authorization", "Bearer secret");
    let answer = Outcome::of(client.send(request, full(message(b"m"))).await.unwrap()).await.unwrap();
    assert_eq!(answer.headers.get_all("x-text").iter().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(answer.headers["x-data-bin"], "AAEC//79");
    assert_eq!(answer.trailers.unwrap()["x-trailer-bin"], "AAEC/w");
    let (_, headers) = engine.head().await;
    assert_eq!(headers["user-agent"], "grpc-test/1");
    assert_eq!(headers["authorization"], "Bearer secret");
}

#[tokio::test]
async fn errors_pass_with_their_details() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;

    let at_once = client.unary("/test.Engine/Fail", message(b"m")).await;
    assert!(at_once.trailers.is_none() && at_once.data.is_empty());
    assert_eq!((at_once.status().code(), at_once.status().message()), (Code::FailedPrecondition, "not now"));
    assert_eq!(at_once.headers["grpc-status-details-bin"].len(), 30_000);

    let late = client.unary("/test.Engine/FailLate", message(b"m")).await;
    assert_eq!(late.data, message(b"part").repeat(2));
    assert_eq!((late.status().code(), late.status().message()), (Code::DataLoss, "lost"));
    assert_eq!(late.trailers.unwrap()["grpc-status-details-bin"].len(), 30_000);
    assert_eq!(front.counters.unavailable(), 0);
}

#[tokio::test]
async fn a_deadline_is_the_engines_to_keep() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let request = post("/test.Engine/Deadline").header("grpc-timeout", "40m");
    let answer = Outcome::of(client.send(request, full(message(b"m"))).await.unwrap()).await.unwrap();
    assert_eq!((answer.status().code(), answer.status().message()), (Code::DeadlineExceeded, "too late"));
    assert_eq!(engine.head().await.1["grpc-timeout"], "40m");
}

/// Marked as compressed, and not even valid: nobody on the way looks.
#[tokio::test]
async fn compressed_messages_are_not_touched() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let mut compressed = message(b"\x1f\x8b\x08 whatever is in here").to_vec();
    compressed[0] = 1;
    let request =
        post("/test.Engine/Echo").header("grpc-encoding", "gzip").header("grpc-accept-encoding", "gzip,zstd");
    let answer = client.send(request, full(compressed.clone())).await.unwrap();
    let answer = Outcome::of(answer).await.unwrap();
    assert_eq!(answer.data, compressed);
    assert_eq!(answer.headers["grpc-encoding"], "gzip");
    assert_eq!(engine.head().await.1["grpc-accept-encoding"], "gzip,zstd");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_64_mib() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut payload: Vec<u8> = (0..64u32 << 20).map(|n| (n ^ (n >> 11)) as u8).collect();
    let sent = message(&payload);
    payload.clear();
    let answer = Client::to(front.addr).await.unary("/test.Engine/Echo", sent.clone()).await;
    assert!(answer.data == sent);
}

#[tokio::test]
async fn an_engine_that_is_away_is_unavailable() {
    let front = Fronted::of(nobody().await).await;
    let mut client = Client::to(front.addr).await;
    for call in 1..=3 {
        let answer = client.unary("/test.Engine/Echo", Bytes::new()).await;
        assert!(answer.trailers.is_none());
        assert_eq!(answer.headers["content-type"], "application/grpc");
        let status = answer.status();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().starts_with("the engine cannot be reached: "), "{status}");
        assert_eq!(front.counters.connect_failures(), call);
    }
}
