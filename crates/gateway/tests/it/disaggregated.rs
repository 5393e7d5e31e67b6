//! Prefill on one engine, decode on another.

use kvplane_gateway::{Options, Upstream};
use kvplane_inference::Role;
use serde_json::{Value, json};

use crate::engine::Conduct;
use crate::rig::{CHAT, Rig, STREAM};

/// The first engine decodes, the others prefill.
async fn rig(count: usize, kind: &'static str, options: Options) -> Rig {
    let shape = |at: usize, upstream: Upstream| {
        let role = Some(if at == 0 { Role::Decode } else { Role::Prefill });
        let endpoint = kvplane_inference::Endpoint { role, ..upstream.endpoint.clone() };
        Upstream { endpoint, kind, bootstrap_port: 9_000 + at as u16, ..upstream }
    };
    Rig::shaped(count, options, &[], shape).await
}

fn transfer(body: &Value) -> &Value {
    &body["kv_transfer_params"]
}

#[tokio::test]
async fn vllm_decodes_what_another_prefilled() {
    let rig = rig(2, "vllm", Options { prefill_from: 1, ..Options::default() }).await;
    rig.engines[1].set(Conduct::Prefills);
    for body in [CHAT, STREAM] {
        let body =
            body.replace("\"m\",", "\"m\",\"max_tokens\":7,\"stream_options\":{\"include_usage\":true},");
        let mut request = rig.request("/v1/chat/completions", &body);
        request.headers_mut().insert("x-kvplane-receipt", "1".parse().unwrap());
        request.headers_mut().insert("x-request-id", "mine".parse().unwrap());
        let answer = rig.send(request).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
        assert!(answer.headers["x-kvplane-receipt"].to_str().unwrap().ends_with("-e0"));
        assert!(answer.headers["x-kvplane-prefill-receipt"].to_str().unwrap().ends_with("-e1"));
        let prefill = rig.engines[1].requests().pop().unwrap();
        let decode = rig.engines[0].requests().pop().unwrap();
        let (asked, sent) = (prefill.json(), decode.json());
        assert_eq!((asked["max_tokens"].clone(), asked["stream_options"].clone()), (json!(1), json!(null)));
        assert_ne!(asked["stream"], json!(true));
        assert_eq!(transfer(&asked)["do_remote_decode"], json!(true));
        assert_eq!(sent["max_tokens"], json!(7));
        assert_eq!(
            *transfer(&sent),
            json!({"do_remote_prefill": true, "remote_block_ids": [3, 1], "remote_engine_id": "p"})
        );
        assert_eq!(
            (&prefill.headers["x-request-id"], &decode.headers["x-request-id"]),
            (&"mine".parse().unwrap(), &"mine".parse().unwrap())
        );
    }
    rig.plane.heard("ended e0 true").await;
    let of = |name: &str| rig.reports().into_iter().find(|(who, _)| who == name).unwrap().1;
    assert_eq!(of("e1").usage.cached, Some(8), "the one that prefilled says what was cached");
    assert_eq!((of("e0").usage.cached, of("e0").usage.output), (None, Some(3)));
    assert_eq!(rig.gateway.stats().labelled()[5][0], ("apart", 2));
    assert_eq!(rig.gateway.stats().in_flight(), 0);
    assert!(rig.gateway.endpoints().iter().all(|one| one.in_flight == 0));
}

#[tokio::test]
async fn what_nobody_prefills_the_decoder_computes() {
    let rig = rig(2, "vllm", Options { prefill_from: 1, ..Options::default() }).await;
    // No kv_transfer_params in its answer, an error, and nobody there.
    for conduct in [Conduct::Well, Conduct::Status(500), Conduct::Status(400), Conduct::Well] {
        rig.engines[1].set(conduct);
        assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
        let sent = rig.engines[0].requests().pop().unwrap();
        assert_eq!(sent.body, CHAT.as_bytes(), "untouched");
    }
    rig.engines[1].kill();
    for _ in 0..4 {
        assert_eq!(rig.post("/v1/chat/completions", STREAM).await.status.as_u16(), 200);
    }
    assert_eq!(rig.gateway.stats().labelled()[5], [("apart", 0), ("in_place", 0), ("failed", 8)]);
    // Other APIs, several answers at once, and what is worth no transfer.
    let several = CHAT.replace("\"m\",", "\"m\",\"n\":2,");
    assert_eq!(rig.post("/v1/chat/completions", &several).await.status.as_u16(), 200);
    assert_eq!(rig.post("/v1/messages", CHAT).await.status.as_u16(), 200);
    assert_eq!(rig.gateway.stats().labelled()[5][1], ("in_place", 2));
    // A client does not say what engines tell one another.
    let forged = CHAT.replace("\"m\",", "\"m\",\"kv_transfer_params\":{\"do_remote_prefill\":true},");
    let answer = rig.post("/v1/chat/completions", &forged).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["param"]),
        (400, &json!("kv_transfer_params"))
    );
}

#[tokio::test]
async fn an_engine_that_prefills_is_never_asked_for_an_answer() {
    let rig = rig(2, "vllm", Options { prefill_from: 0, ..Options::default() }).await;
    for _ in 0..4 {
        assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    }
    assert_eq!((rig.engines[0].requests().len(), rig.engines[1].requests().len()), (4, 0));
    rig.engines[0].kill();
    assert_eq!(rig.post("/v1/chat/completions", CHAT).await.status.as_u16(), 503);
    assert_eq!(rig.engines[1].requests().len(), 0);
}

#[tokio::test]
async fn sglang_s_two_engines_meet() {
    let rig = rig(2, "sglang", Options::default()).await;
    let mut rooms = Vec::new();
    for body in [CHAT, STREAM] {
        let answer = rig.post("/v1/chat/completions", body).await;
        assert_eq!(answer.status.as_u16(), 200);
        rig.engines[1].contacted(rooms.len() + 1).await;
        let prefill = rig.engines[1].requests().pop().unwrap().json();
        let decode = rig.engines[0].requests().pop().unwrap().json();
        assert_eq!(prefill, decode, "both are sent the same");
        assert_eq!(
            (&decode["bootstrap_host"], &decode["bootstrap_port"]),
            (&json!("127.0.0.1"), &json!(9_001))
        );
        rooms.push(decode["bootstrap_room"].as_u64().unwrap());
        assert!(decode["bootstrap_room"].as_i64().is_some(), "of 63 bits");
    }
    assert_ne!(rooms[0], rooms[1]);
    rig.plane.heard("ended e1 true").await;
    assert_eq!(
        rig.reports().iter().filter(|(who, report)| who == "e0" && report.usage.cached.is_none()).count(),
        2
    );
}

#[tokio::test]
async fn another_sglang_prefills_where_one_fails() {
    let rig = rig(3, "sglang", Options::default()).await;
    rig.engines[1].set(Conduct::Status(500));
    // The decoder waits for the prompt, as a real one does.
    rig.engines[0].set(Conduct::DecodesOf(rig.engines[2].clone()));
    let answer = rig.post("/v1/chat/completions", CHAT).await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
    assert!(!rig.engines[2].requests().is_empty());
    // With nobody left the client is told, and the decoder is not kept waiting.
    rig.engines[2].set(Conduct::Status(500));
    rig.engines[0].set(Conduct::DecodesOf(rig.engines[1].clone()));
    let before = *rig.engines[0].dropped.borrow();
    let answer = rig.post("/v1/chat/completions", CHAT).await;
    assert!(answer.status.is_server_error());
    let mut dropped = rig.engines[0].dropped.subscribe();
    let gone = dropped.wait_for(|count| *count > before);
    tokio::time::timeout(crate::rig::DEADLINE, gone).await.unwrap().unwrap();
    assert!(rig.gateway.endpoints().iter().all(|one| one.in_flight == 0));
}
