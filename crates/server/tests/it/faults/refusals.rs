//! What is answered to requests that cannot be: a code, what is wrong, and what to do about this very case.

use kvplane_core::ErrorCode;
use serde_json::json;

use crate::rig::{Engine, Rig, send, text};

/// Where nothing closer is known than what is said of the code: the message names what has to be corrected.
const OF_THE_CODE: &str = "";

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_says_what_to_do() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let described = |id: &str| json!({"id": id, "kind": "vllm", "events": "tcp://127.0.0.1:9"}).to_string();
    let added = |field: &str, value: &str| {
        json!({"id": "new", "kind": "vllm", "events": "tcp://127.0.0.1:9", field: value}).to_string()
    };
    let none = String::new;
    let too_long = || " ".repeat(100 << 10);
    let question = str::to_owned;
    let (invalid, not_found) = (ErrorCode::InvalidArgument, ErrorCode::NotFound);
    for (method, path, body, code, next) in [
        ("GET", "/nowhere", none(), not_found, "/openapi.json"),
        ("GET", "/dashboard/nothing.js", none(), not_found, "/openapi.json"),
        ("GET", "/dashboard/%FF", none(), not_found, "/openapi.json"),
        ("PUT", "/readyz", none(), ErrorCode::MethodNotAllowed, "/openapi.json"),
        ("GET", "/readyz?strict=perhaps", none(), invalid, OF_THE_CODE),
        ("GET", "/readyz?strict=1&strict=0", none(), invalid, "give it once"),
        ("GET", "/readyz?stric=1", none(), invalid, "leave it out"),
        ("POST", "/v1/query", question("{}"), invalid, "known models: sim"),
        ("POST", "/v1/query", question(r#"{"model":"x","token_ids":[1]}"#), invalid, "known models: sim"),
        ("POST", "/v1/query", question(r#"{"model":"sim"}"#), invalid, "give token_ids"),
        ("POST", "/v1/query", question(r#"{"model":"sim","token_ids":[-1]}"#), invalid, OF_THE_CODE),
        ("POST", "/v1/query", question(r#"{"model":"sim","model":"sim"}"#), invalid, "give it once"),
        (
            "POST",
            "/v1/query",
            question(r#"{"model":"sim","token_ids":[1],"chained":true}"#),
            invalid,
            "leave it out",
        ),
        (
            "POST",
            "/v1/query",
            question(r#"{"model":"sim","token_ids":[1],"block_hashes":[1],"block_size":16}"#),
            invalid,
            "leave out one",
        ),
        (
            "POST",
            "/v1/query",
            question(r#"{"model":"sim","block_hashes":[1]}"#),
            invalid,
            "tokens of a block",
        ),
        ("POST", "/v1/engines", described("e0"), ErrorCode::Conflict, "choose another id"),
        ("POST", "/v1/engines", added("token_file", "/etc/passwd"), invalid, "describe the engine there"),
        ("POST", "/v1/engines", added("colour", "red"), invalid, "/openapi.json"),
        ("DELETE", "/v1/engines/nobody", none(), not_found, "kvplane engines"),
        ("DELETE", "/v1/engines/%FF", none(), invalid, OF_THE_CODE),
        ("POST", "/flush_cache", too_long(), invalid, OF_THE_CODE),
        ("POST", "/start_profile", too_long(), invalid, OF_THE_CODE),
        ("POST", "/stop_profile", too_long(), invalid, OF_THE_CODE),
        ("POST", "/flush_cache?engine=nobody", none(), invalid, "kvplane engines"),
        ("POST", "/flush_cache?url=/here", none(), invalid, "http://127.0.0.1:8000"),
        ("POST", "/flush_cache?colour=red", none(), invalid, "leave it out"),
    ] {
        let (status, answer) = send(rig.http, method, path, body).await;
        let error = &answer["error"];
        let shown = format!("{method} {path}: {answer}");
        assert_eq!((status, error["code"].as_str()), (code.http_status(), Some(code.as_str())), "{shown}");
        assert_eq!(error["retry"], code.retry(), "{shown}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{shown}");
        let reported = error["next"].as_str().unwrap();
        if next == OF_THE_CODE {
            assert_eq!(reported, code.next_step(), "{shown}");
        } else {
            assert!(reported.contains(next), "{shown}");
        }
    }
    // A route of an indexer has an indexer's form.
    let (status, answer) = text(rig.http, "GET", "/workers?model_name=a&model_name=b", none()).await;
    assert!(status == 400 && answer.contains("model_name"), "{status} {answer}");
}
