//! `journal.tokens = "drop"`: questions are answered alike, and who needs tokens is told so.

use kvplane_ingest::PlaneOptions;
use kvplane_sim::CompletionOptions;
use kvplane_stream::Limits;
use serde_json::json;
use tonic::Code;

use super::smg;
use crate::rig::{Engine, Rig, call, hasty};

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_without_tokens_answers_alike_and_sends_none() {
    let state = Limits { keep_tokens: false, ..Limits::default() };
    let mut engine = Engine::plain();
    engine.work(20);
    let ids: Vec<u32> = (1_000..1_200).collect();
    engine.sim.complete(&ids, 1, &CompletionOptions::default()).unwrap();
    let keeps = Rig::over(&[&engine]).await;
    let drops = Rig::with_options(&[&engine], PlaneOptions { state, ..hasty() }).await;
    // More follows while both listen: blocks that are known are announced again, and compared.
    engine.work(20);
    engine.sim.complete(&ids, 1, &CompletionOptions::default()).unwrap();
    let (kept, dropped) = (keeps.exact(0, &engine).await, drops.exact(0, &engine).await);
    assert_eq!(kept.digest, dropped.digest);
    assert!(dropped.state_bytes < kept.state_bytes, "{} of {}", dropped.state_bytes, kept.state_bytes);

    let question = json!({"model": "sim", "token_ids": ids});
    let found = |(code, answer): (u16, serde_json::Value)| {
        assert_eq!(code, 200, "{answer}");
        answer["matches"][0]["tokens"].clone()
    };
    let tokens = found(call(drops.http, "POST", "/v1/query", &question).await);
    assert_eq!(tokens, json!(192));
    assert_eq!(tokens, found(call(keeps.http, "POST", "/v1/query", &question).await));

    // A replica has the same blocks.
    let mut subscriber = drops.subscribe(None).await;
    subscriber.catch_up(&drops).await;
    assert_eq!(subscriber.blocks, engine.held());

    let refused = smg::subscribe(&drops, 0, &[]).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("journal.tokens"), "{refused}");
    let again = json!({
        "id": "again", "kind": "vllm", "events": "tcp://127.0.0.1:1",
        "republish": {"events": "tcp://127.0.0.1:7000"},
    });
    let (code, answer) = call(drops.http, "POST", "/v1/engines", &again).await;
    assert_eq!(code, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("journal.tokens"), "{answer}");
}
