//! Engines that fail, and clients that go.

use std::time::Duration;

use http_body_util::BodyExt as _;
use kvplane_gateway::{HealthOptions, Options};
use serde_json::json;

use crate::engine::Conduct;
use crate::rig::{CHAT, DEADLINE, Rig, STREAM};

#[tokio::test]
async fn an_engine_that_is_gone_costs_an_attempt_and_no_request() {
    let health = HealthOptions {
        open: Duration::from_mins(1),
        open_max: Duration::from_mins(1),
        ..HealthOptions::default()
    };
    let rig = Rig::with(2, Options { health, ..Options::default() }, &[]).await;
    rig.engines[0].kill();
    for _ in 0..5 {
        let answer = rig.post("/v1/chat/completions", CHAT).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["engine"]),
            (200, &json!(rig.engines[1].address.to_string()))
        );
    }
    rig.plane.heard("ended e0 false").await;
    rig.plane.heard("ended e1 true").await;
    // Its breaker is open by now: it is not asked any more.
    let picks = rig.plane.said().iter().filter(|said| *said == "pick e0").count();
    assert_eq!(picks, 3);
    assert_eq!(rig.gateway.endpoints()[0].in_flight, 0);
}

#[tokio::test]
async fn an_engine_that_is_busy_passes_requests_on() {
    let rig = Rig::start(2).await;
    for status in [503, 429, 502, 504] {
        rig.engines[0].set(Conduct::Status(status));
        let answer = rig.post("/v1/chat/completions", CHAT).await;
        assert_eq!(answer.status.as_u16(), 200, "{status}");
    }
    // Its own error is an answer, and with nobody left its refusal is one, too.
    rig.engines[0].set(Conduct::Well);
    let one = Rig::with(1, Options { attempts: 3, ..Options::default() }, &[]).await;
    for status in [500, 503, 418] {
        one.engines[0].set(Conduct::Status(status));
        let answer = one.post("/v1/chat/completions", CHAT).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["message"]),
            (status, &json!("engine's own"))
        );
    }
    assert_eq!(one.contacted(), 3);
    one.engines[0].set(Conduct::Status(429));
    let answer = one.post("/v1/chat/completions", CHAT).await;
    assert_eq!((answer.status.as_u16(), answer.headers.contains_key("retry-after")), (429, true));
}

#[tokio::test]
async fn retries_have_a_budget() {
    let options = Options { retry_budget: 0.0, ..Options::default() };
    let rig = Rig::with(2, options, &[]).await;
    rig.engines[0].set(Conduct::Status(503));
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 503);
    assert_eq!(rig.gateway.stats().counts()[0], 1);
}

#[tokio::test]
async fn an_engine_that_dies_within_its_answer_is_reported_as_an_event() {
    let rig = Rig::start(2).await;
    rig.engines[0].set(Conduct::DiesAfter(2));
    let (response, _connection) = rig.open(rig.request("/v1/chat/completions", STREAM)).await;
    assert_eq!(response.status().as_u16(), 200);
    let mut body = response.into_body();
    let (mut text, mut cut) = (Vec::new(), false);
    while let Some(frame) = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap() {
        let Ok(frame) = frame else {
            cut = true;
            break;
        };
        text.extend_from_slice(frame.data_ref().unwrap());
    }
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("\"content\":\"0\"") && text.contains("engine_lost") && !text.contains("[DONE]"),
        "{text}"
    );
    assert!(cut, "the answer has no proper end");
    rig.plane.heard("ended e0 false").await;
    assert_eq!(rig.engines[1].requests().len(), 0, "nothing is sent again behind the first byte");
    assert_eq!(rig.gateway.stats().in_flight(), 0);
}

/// Engines send the head before they begin: as long as nothing else came, nothing was passed on.
#[tokio::test]
async fn an_engine_that_dies_behind_the_head_costs_no_request() {
    let rig = Rig::start(2).await;
    rig.engines[0].set(Conduct::DiesAfter(0));
    let answer = rig.post("/v1/chat/completions", STREAM).await;
    assert!(answer.status.as_u16() == 200 && answer.text().ends_with("[DONE]\n\n"), "{}", answer.text());
    assert_eq!((rig.engines[0].requests().len(), rig.engines[1].requests().len()), (1, 1));
    rig.plane.heard("ended e0 false").await;
    rig.plane.heard("ended e1 true").await;
}

#[tokio::test]
async fn a_client_that_goes_ends_the_work_of_the_engine() {
    let rig = Rig::start(1).await;
    rig.engines[0].set(Conduct::Hangs);
    let (response, connection) = rig.open(rig.request("/v1/chat/completions", STREAM)).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    let mut dropped = rig.engines[0].dropped.subscribe();
    drop((body, connection));
    tokio::time::timeout(DEADLINE, dropped.wait_for(|count| *count == 1)).await.unwrap().unwrap();
    rig.plane.heard("ended e0 false").await;
    assert_eq!(rig.gateway.endpoints()[0].in_flight, 0);
}

#[tokio::test]
async fn a_silent_engine_is_given_up() {
    let options = Options { idle_timeout: Duration::from_millis(50), ..Options::default() };
    let rig = Rig::with(1, options, &[]).await;
    rig.engines[0].set(Conduct::Hangs);
    let (response, _connection) = rig.open(rig.request("/v1/chat/completions", STREAM)).await;
    let ended = tokio::time::timeout(DEADLINE, response.into_body().collect()).await.unwrap();
    assert!(ended.is_err());
    rig.plane.heard("ended e0 false").await;
}

/// A client that reads nothing costs what the sockets hold, and not what the engine could send.
#[tokio::test]
async fn a_slow_reader_costs_a_bounded_buffer() {
    let rig = Rig::start(1).await;
    rig.engines[0].set(Conduct::Floods);
    let (response, _connection) = rig.open(rig.request("/v1/chat/completions", STREAM)).await;
    let mut sent = rig.engines[0].sent.subscribe();
    tokio::time::timeout(DEADLINE, sent.wait_for(|sent| *sent > 0)).await.unwrap().unwrap();
    let mut before;
    // It goes on as long as there is room, and then stands still.
    while tokio::time::timeout(Duration::from_millis(500), sent.changed()).await.is_ok() {
        before = *sent.borrow_and_update();
        assert!(before < 64 << 20, "{before} bytes are held for nobody");
    }
    drop(response);
}

#[tokio::test]
async fn an_answer_is_complete_though_the_gateway_stops() {
    let rig = Rig::start(1).await;
    let (response, _connection) = rig.open(rig.request("/v1/chat/completions", STREAM)).await;
    rig.stop.cancel();
    let body =
        tokio::time::timeout(DEADLINE, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
    tokio::time::timeout(DEADLINE, rig.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_breaker_closes_again() {
    let health = HealthOptions { failures: 1, open: Duration::ZERO, ..HealthOptions::default() };
    let rig = Rig::with(2, Options { health, ..Options::default() }, &[]).await;
    rig.engines[0].set(Conduct::Status(503));
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    rig.engines[0].set(Conduct::Well);
    let answer = rig.post("/v1/chat/completions", CHAT).await;
    assert_eq!(answer.json()["engine"], json!(rig.engines[0].address.to_string()));
    assert_eq!(rig.gateway.endpoints()[0].standing, "up");
}
