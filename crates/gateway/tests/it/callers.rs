//! Keys, and what their owners may do.

use std::collections::{HashMap, HashSet};

use kvplane_gateway::{Limits, Options};
use serde_json::json;

use crate::rig::{CHAT, Rig, STREAM};

fn limits() -> HashMap<String, Limits> {
    HashMap::from([
        ("one".to_owned(), Limits { requests_per_minute: Some(1), ..Limits::default() }),
        ("few".to_owned(), Limits { tokens_per_minute: Some(10), ..Limits::default() }),
        ("other".to_owned(), Limits { models: Some(HashSet::from(["n".to_owned()])), ..Limits::default() }),
        ("tenant".to_owned(), Limits { tenant: Some("t".to_owned()), ..Limits::default() }),
    ])
}

async fn rig() -> Rig {
    let options = Options { callers: limits(), ..Options::default() };
    Rig::with(1, options, &["one", "few", "other", "tenant", "free"]).await
}

#[tokio::test]
async fn without_a_key_nothing_is_served() {
    let rig = rig().await;
    let answer = rig.post("/v1/chat/completions", CHAT).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(rig.post_as("nobody", "/v1/chat/completions", CHAT).await.status.as_u16(), 401);
    // Anthropic's way to say it.
    let mut request = rig.request("/v1/messages", r#"{"model":"m"}"#);
    request.headers_mut().insert("x-api-key", "key-of-free".parse().unwrap());
    assert_eq!(rig.send(request).await.status.as_u16(), 200);
    // What changes engines is not for those who may infer.
    for path in ["/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/load_lora_adapter/", "/sleep"] {
        assert_eq!(rig.post_as("free", path, "{}").await.status.as_u16(), 403, "{path}");
    }
    // Nor is what an engine would take for the same.
    for path in
        ["/v1/load%5Flora_adapter", "/v1/%6coad_lora_adapter", "/v1/../sleep", "/v1//load_lora_adapter"]
    {
        assert_eq!(rig.post_as("free", path, r#"{"model":"m"}"#).await.status.as_u16(), 400, "{path}");
    }
    let got = rig.engines[0].requests();
    assert_eq!(got.len(), 1);
    assert!(!format!("{:?}", got[0].headers).contains("key-of"), "no key reaches an engine");
}

#[tokio::test]
async fn limits_are_those_of_the_key() {
    let rig = rig().await;
    assert_eq!(rig.post_as("one", "/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    let answer = rig.post_as("one", "/v1/chat/completions", CHAT).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (429, &json!("rate_limit_exceeded"))
    );
    assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 30);
    // A request took 13 of 10 tokens.
    assert_eq!(rig.post_as("few", "/v1/chat/completions", STREAM).await.status.as_u16(), 200);
    rig.plane.heard("ended e0 true").await;
    let answer = rig.post_as("few", "/v1/chat/completions", CHAT).await;
    assert_eq!(answer.status.as_u16(), 429);
    assert_eq!(rig.post_as("other", "/v1/chat/completions", CHAT).await.status.as_u16(), 403);
    // A form may name any model.
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nlora\r\n--x--";
    assert_eq!(rig.post_as("other", "/v1/audio/transcriptions", form).await.status.as_u16(), 403);
    assert_eq!(rig.post_as("free", "/v1/audio/transcriptions", form).await.status.as_u16(), 200);
    for _ in 0..3 {
        assert_eq!(rig.post_as("free", "/v1/chat/completions", CHAT).await.status.as_u16(), 200);
    }
}

#[tokio::test]
async fn tenants_share_no_cache() {
    let rig = rig().await;
    let salted = CHAT.replace("\"m\",", r#""m","cache_salt":"1:t","#);
    for (name, body) in [("tenant", CHAT), ("tenant", &salted), ("free", &salted), ("free", CHAT)] {
        assert_eq!(rig.post_as(name, "/v1/chat/completions", body).await.status.as_u16(), 200);
    }
    let sent: Vec<_> = rig.engines[0].requests().iter().map(|got| got.json()["cache_salt"].clone()).collect();
    assert_eq!(sent, [json!("1:t"), json!("1:t:1:t"), json!("0::1:t"), json!(null)]);
    let asked: Vec<_> = rig.plane.salts.lock().iter().map(|salt| json!(salt)).collect();
    assert_eq!(asked, sent, "what is looked up is what is computed");
    // What engines tell one another about blocks would be another tenant's.
    let reported = CHAT.replace("\"m\",", r#""m","kv_transfer_params":{"do_remote_prefill":true},"#);
    assert_eq!(rig.post_as("tenant", "/v1/chat/completions", &reported).await.status.as_u16(), 403);
    // An API without a salt would share one.
    let answer = rig.post_as("tenant", "/v1/messages", r#"{"model":"m"}"#).await;
    assert_eq!(answer.status.as_u16(), 403);
}
