//! How calls end otherwise: given up, reset, cut off, stopped.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http_body_util::BodyExt;
use hyper::body::Frame;
use kvplane_front::FrontOptions;
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use crate::engine::{Engine, EngineOptions, Seen, full, message};
use crate::rig::{Client, Fronted, Outcome, SERVICE, channel, post, reset, within};

#[tokio::test]
async fn a_client_gives_up_before_the_answer() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let call = tokio::spawn(async move { client.send(post("/test.Engine/Hang"), full(message(b"m"))).await });
    engine.head().await;
    call.abort();
    assert!(matches!(engine.seen().await, Seen::Cancelled));
}

#[tokio::test]
async fn a_client_gives_up_during_the_answer() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, mut response) = Client::to(front.addr).await.open("/test.Engine/Drip").await;
    assert_eq!(within(response.frame()).await.unwrap().unwrap().into_data().unwrap(), message(b"drop"));
    engine.head().await;
    assert_eq!(front.counters.in_flight(), 1);
    drop((sender, response));
    assert!(matches!(engine.seen().await, Seen::Cancelled));
}

/// Half a request must not look like a whole one, and the code is the client's.
#[tokio::test]
async fn a_client_breaks_off_its_request() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    for reason in [Reason::CANCEL, Reason::INTERNAL_ERROR, Reason::NO_ERROR] {
        let (sender, response) = Client::to(front.addr).await.open("/test.Engine/Echo").await;
        engine.head().await;
        sender.send(Ok(Frame::data(message(b"half")))).await.unwrap();
        sender.send(Err(reason.into())).await.unwrap();
        let expected = if reason == Reason::NO_ERROR { Reason::CANCEL } else { reason };
        match engine.seen().await {
            Seen::BrokenOff(Some(seen)) => assert_eq!(seen, expected),
            other => panic!("{other:?}"),
        }
        drop(response);
    }
}

#[tokio::test]
async fn a_client_goes_away() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let socket = TcpStream::connect(front.addr).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = post("/test.Engine/Drip").method("POST").body(()).unwrap();
    let (response, mut stream) = send.send_request(request, false).unwrap();
    stream.send_data(message(b"m"), false).unwrap();
    within(response).await.unwrap();
    engine.head().await;
    connection.abort();
    assert!(matches!(engine.seen().await, Seen::Cancelled));
}

#[tokio::test]
async fn the_engine_resets_before_the_answer() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let error = client.send(post("/test.Engine/Refuse"), full(message(b"m"))).await.unwrap_err();
    assert_eq!(reset(&error), Some(Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn the_engine_resets_during_the_answer() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, mut response) = Client::to(front.addr).await.open("/test.Engine/Break").await;
    assert_eq!(within(response.frame()).await.unwrap().unwrap().into_data().unwrap(), message(b"part"));
    drop(sender);
    let error = Outcome::of(response).await.unwrap_err();
    assert_eq!(reset(&error), Some(Reason::INADEQUATE_SECURITY));
}

/// The answer is whole although the request is not, and the client is asked to stop sending.
#[tokio::test]
async fn the_engine_answers_early() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, body) = channel();
    let response = Client::to(front.addr).await.send(post("/test.Engine/Early"), body).await.unwrap();
    let answer = Outcome::of(response).await.unwrap();
    assert_eq!((answer.status().code(), answer.status().message()), (Code::ResourceExhausted, "enough"));
    within(sender.closed()).await;
}

#[tokio::test]
async fn the_engine_dies_and_comes_back() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let (sender, response) = client.open("/test.Engine/Drip").await;
    let mut hanging = client.clone();
    let hanging =
        tokio::spawn(async move { hanging.send(post("/test.Engine/Hang"), full(message(b"m"))).await });
    while !engine.head().await.0.path().ends_with("Hang") {}

    let addr = engine.kill().await;
    let cut = Outcome::of(response).await.unwrap();
    assert_eq!(cut.data, message(b"drop"));
    assert_eq!(cut.status().code(), Code::Unavailable);
    let cut = Outcome::of(hanging.await.unwrap().unwrap()).await.unwrap();
    assert_eq!(cut.status().code(), Code::Unavailable);
    drop(sender);

    let away = client.unary("/test.Engine/Echo", message(b"m")).await;
    assert_eq!(away.status().code(), Code::Unavailable);

    let _engine = Engine::start(EngineOptions { at: addr, ..EngineOptions::default() }).await;
    let back = client.unary("/test.Engine/Echo", message(b"m")).await;
    assert_eq!((back.status().code(), back.data), (Code::Ok, message(b"m")));
    assert_eq!(front.counters.connects(), 2);
}

/// Calls go on where they are; new ones go elsewhere, and none is lost.
#[tokio::test]
async fn the_engine_wants_no_more_calls_on_a_connection() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;
    let (sender, mut response) = client.open("/test.Engine/Echo").await;
    engine.head().await;
    engine.drain();
    within(async {
        while front.counters.connects() == 1 {
            let answer = client.unary("/test.Engine/Echo", message(b"m")).await;
            assert_eq!((answer.status().code(), answer.data), (Code::Ok, message(b"m")));
        }
    })
    .await;
    sender.send(Ok(Frame::data(message(b"still here")))).await.unwrap();
    let frame = within(response.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), message(b"still here"));
    drop(sender);
    assert_eq!(within(response.frame()).await.unwrap().unwrap().into_trailers().unwrap()["grpc-status"], "0");
}

/// A stopped process still has a kernel that accepts connections.
#[tokio::test]
async fn an_engine_that_does_not_speak_is_unavailable() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
    let mut options = FrontOptions::new(upstream, SERVICE);
    options.connect_timeout = Duration::from_millis(50);
    let front = Fronted::with(options).await;
    let client = Client::to(front.addr).await;
    let calls = (0..20).map(|_| {
        let mut client = client.clone();
        async move { client.unary("/test.Engine/Echo", Bytes::new()).await.status().code() }
    });
    assert_eq!(within(futures::future::join_all(calls)).await, [Code::Unavailable; 20]);
    assert!(front.counters.connect_failures() < 20, "calls that wait share a dial");
}

#[tokio::test]
async fn running_calls_may_finish_after_stop() {
    let mut engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let (sender, mut response) = Client::to(front.addr).await.open("/test.Engine/Echo").await;
    engine.head().await;
    front.stop.cancel();
    // Refused once the listener is closed.
    within(async { while TcpStream::connect(front.addr).await.is_ok() {} }).await;
    sender.send(Ok(Frame::data(message(b"still here")))).await.unwrap();
    let frame = within(response.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), message(b"still here"));
    drop(sender);
    assert_eq!(within(response.frame()).await.unwrap().unwrap().into_trailers().unwrap()["grpc-status"], "0");
    front.ended().await;
}

#[tokio::test]
async fn grace_is_not_endless() {
    let mut engine = Engine::default().await;
    let mut options = FrontOptions::new(format!("http://{}", engine.addr).parse().unwrap(), SERVICE);
    options.grace = Duration::from_millis(50);
    let front = Fronted::with(options).await;
    let (_sender, response) = Client::to(front.addr).await.open("/test.Engine/Drip").await;
    engine.head().await;
    front.stop.cancel();
    front.ended().await;
    Outcome::of(response).await.unwrap_err();
    assert!(matches!(engine.seen().await, Seen::Cancelled));
}
