//! Many calls at once.

use futures::future::join_all;
use http_body_util::BodyExt;
use tonic::Code;

use crate::engine::{Engine, EngineOptions, full, message};
use crate::rig::{Client, Fronted, post, within};

const CALLS: usize = 200;

async fn meet(streams: u32) -> u64 {
    // Nobody is answered before all have arrived.
    let engine = Engine::start(EngineOptions { streams, meet: CALLS, ..EngineOptions::default() }).await;
    let front = Fronted::of(engine.addr).await;
    let client = Client::to(front.addr).await;
    let calls = (0..CALLS).map(|_| {
        let mut client = client.clone();
        async move { client.unary("/test.Engine/Meet", message(b"m")).await }
    });
    for answer in within(join_all(calls)).await {
        assert_eq!((answer.status().code(), answer.data), (Code::Ok, message(b"met")));
    }
    assert_eq!(front.counters.forwarded(), CALLS as u64);
    front.counters.connects()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_share_a_connection() {
    assert_eq!(meet(1000).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_limits_calls_gets_more_connections() {
    assert_eq!(meet(50).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stall_hold_up_nobody() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut stalled = Vec::new();
    for _ in 0..30 {
        let mut client = Client::to(front.addr).await;
        let mut response = client.send(post("/test.Engine/Flood"), full(message(b"m"))).await.unwrap();
        within(response.frame()).await.unwrap().unwrap();
        stalled.push((client, response));
    }
    let large = message(&vec![3; 4 << 20]);
    let answer = Client::to(front.addr).await.unary("/test.Engine/Echo", large.clone()).await;
    assert!(answer.data == large);
    assert_eq!(front.counters.connects(), 1);
}
