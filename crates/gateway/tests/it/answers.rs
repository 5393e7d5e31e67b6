//! Answers, whole and as events.

use http_body_util::Full;
use serde_json::json;

use crate::engine::Conduct;
use crate::rig::{CHAT, DEADLINE, Rig, STREAM};
use kvplane_gateway::{Forward, Options};
use kvplane_inference::Usage;

const USAGE: Usage = Usage { prompt: Some(10), cached: Some(8), output: Some(3) };

#[tokio::test]
async fn an_answer_passes_and_its_usage_is_reported() {
    let rig = Rig::start(2).await;
    let mut request = rig.request("/v1/chat/completions?x=1", CHAT);
    let headers = request.headers_mut();
    for (name, value) in [
        ("x-request-id", "mine"),
        ("traceparent", "00-1-2-01"),
        ("authorization", "Bearer client-key"),
        ("x-data-parallel-rank", "7"),
        ("x-kvplane-receipt", "1"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let answer = rig.send(request).await;
    assert_eq!((answer.status.as_u16(), answer.json()["usage"]["prompt_tokens"].clone()), (200, json!(10)));
    assert_eq!(answer.headers["x-request-id"], "mine");
    assert!(answer.headers["x-kvplane-receipt"].to_str().unwrap().ends_with("-e0"));
    rig.plane.heard("ended e0 true").await;
    let (_, report) = rig.reports().remove(0);
    assert_eq!(
        (report.usage, report.served, report.any_rank),
        (USAGE, Some(rig.engines[0].address.to_string()), false)
    );
    let got = rig.engines[0].requests().remove(0);
    assert_eq!(got.body, CHAT.as_bytes(), "untouched");
    assert_eq!(
        (&got.headers["x-request-id"], &got.headers["traceparent"]),
        (&"mine".parse().unwrap(), &"00-1-2-01".parse().unwrap())
    );
    assert_eq!(got.headers["authorization"], "Bearer engine-key");
    assert!(
        !got.headers.contains_key("x-data-parallel-rank")
            && !format!("{:?}", got.headers).contains("client-key")
    );
}

#[tokio::test]
async fn the_usage_is_asked_for_and_withheld_unless_the_client_did() {
    let rig = Rig::start(1).await;
    let answer = rig.post("/v1/chat/completions", STREAM).await;
    assert!(
        answer.text().ends_with("data: [DONE]\n\n") && !answer.text().contains("prompt_tokens"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.text().matches("data: ").count(), 4);
    rig.plane.heard("ended e0 true").await;
    assert_eq!(rig.plane.said(), ["pick e0", "first e0", "ended e0 true"]);
    assert_eq!(rig.reports()[0].1.usage, USAGE);
    assert!(rig.reports()[0].1.first_byte_ms.is_some());
    let wanted =
        STREAM.replace("\"stream\":true", r#""stream":true,"stream_options":{"include_usage":true}"#);
    let answer = rig.post("/v1/chat/completions", &wanted).await;
    assert!(answer.text().contains("prompt_tokens"));
    assert_eq!(rig.engines[0].requests()[1].body, wanted.as_bytes(), "untouched");
}

#[tokio::test]
async fn connections_are_kept_and_ranks_named() {
    let rig = Rig::start(1).await;
    *rig.plane.rank.lock() = Some(3);
    for _ in 0..3 {
        assert_eq!(rig.post("/v1/chat/completions", STREAM).await.status.as_u16(), 200);
    }
    assert!(rig.engines[0].requests().iter().all(|got| got.headers["x-data-parallel-rank"] == "3"));
    // A rank that the engine refuses is not the client's mistake, and not delivered by it.
    rig.engines[0].set(Conduct::NoRank);
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    let mut said = rig.plane.said.subscribe();
    let four = said.wait_for(|said| said.iter().filter(|one| *one == "ended e0 true").count() == 4);
    tokio::time::timeout(DEADLINE, four).await.unwrap().unwrap();
    assert!(rig.reports()[3].1.any_rank && !rig.reports()[2].1.any_rank);
}

#[tokio::test]
async fn ids_are_sent_until_they_are_refused() {
    let rig = Rig::with(1, Options { forward: Forward::Ids, ..Options::default() }, &[]).await;
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    let ids = json!({"prompt_token_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]});
    assert_eq!(rig.engines[0].requests()[0].json()["kv_transfer_params"], ids);
    let text = r#"{"model":"m","prompt":"hi"}"#;
    assert_eq!(rig.post("/v1/completions", text).await.status.as_u16(), 200);
    assert_eq!(rig.engines[0].requests()[1].json()["prompt"], ids["prompt_token_ids"]);
    rig.engines[0].set(Conduct::NoIds);
    for _ in 0..2 {
        assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    }
    let bodies: Vec<bool> = rig.engines[0].requests()[2..]
        .iter()
        .map(|got| got.json().get("kv_transfer_params").is_some())
        .collect();
    assert_eq!(bodies, [true, false, false], "refused once, then text");
    assert_eq!(rig.gateway.stats().counts()[2], 1);
}

/// The engine of these tests always counts 10: as many as there are ids.
#[tokio::test]
async fn ids_are_sent_once_an_engine_has_shown_that_it_takes_them() {
    let rig = Rig::with(1, Options { forward: Forward::Auto, ..Options::default() }, &[]).await;
    let sends = async || {
        assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
        rig.engines[0].requests().pop().unwrap().json().get("kv_transfer_params").is_some()
    };
    let until_sent = async {
        while !sends().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, until_sent).await.unwrap();
}

#[tokio::test]
async fn models_are_those_of_all_engines() {
    let rig = Rig::start(2).await;
    let mut names = Vec::new();
    // Adapters are known once an engine was asked.
    for _ in 0..600 {
        let request =
            http::Request::get("/v1/models").header("host", "localhost").body(Full::default()).unwrap();
        let page = rig.send(request).await.json();
        names = page["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        if names.len() == 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(names, [json!("lora"), json!("m")]);
    let answer = rig.post("/v1/chat/completions", &CHAT.replace("\"m\"", "\"lora\"")).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(*rig.plane.adapters.lock(), [Some("lora".to_owned())]);
    let health = http::Request::get("/health").header("host", "localhost").body(Full::default()).unwrap();
    assert_eq!(rig.send(health).await.status.as_u16(), 200);
}

#[tokio::test]
async fn what_is_not_known_here_passes_untouched() {
    let rig = Rig::start(1).await;
    let body = r#" {"model":"m","input":["a"] , "x":1} "#;
    for path in ["/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/rerank", "/tokenize", "/score"] {
        assert_eq!(rig.post(path, body).await.status.as_u16(), 200, "{path}");
        let got = rig.engines[0].requests().pop().unwrap();
        assert_eq!((got.path.as_str(), &got.body[..]), (path, body.as_bytes()));
    }
}
