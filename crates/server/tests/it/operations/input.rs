//! What is wrong is named, and nothing is sent to any engine.

use kvplane_core::EngineKind;
use serde_json::{Value, json};
use tonic::Code;

use crate::operations::scripted::{Act, Scripted, rig};
use crate::operations::talk::{admin, all, flush_request, refused};
use crate::rig::{call, send};

#[tokio::test(flavor = "multi_thread")]
async fn bad_values_are_named_and_nothing_is_sent() {
    let server = Scripted::new(|_| Act::Say(200, r#"{"success": true}"#)).await;
    let rig = rig(vec![server.silent("e0", EngineKind::Vllm, 1)]).await;
    for (query, named) in [
        ("timeout_s=-1", "timeout_s"),
        ("timeout=-1", "timeout_s"),
        ("timeout_s=NaN", "timeout_s"),
        ("timeout_s=inf", "timeout_s"),
        ("timeout_s=soon", "timeout_s"),
        ("timeout_s=", "timeout_s"),
        ("timeout_s=1e300", "timeout_s"),
        ("timeout_s=1&timeout=1", "timeout_s"),
        ("proof_timeout=-0.1", "proof_timeout_s"),
        ("proof_timeout_s=nan", "proof_timeout_s"),
        ("deadline_s=0", "deadline_s"),
        ("deadline_s=-3", "deadline_s"),
        ("nudge=maybe", "nudge"),
        ("reset_running=2", "reset_running"),
        ("dry_run=", "dry_run"),
        ("engine=e0&engine=nobody", "engine"),
        ("kind=mlx", "kind"),
        ("url=%20", "url"),
        ("engines=e0", "engines"),
        ("Timeout=1", "Timeout"),
    ] {
        let (status, answer) = call(rig.http, "POST", &format!("/flush_cache?{query}"), &Value::Null).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_argument")), "{query} {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(named), "{query} {answer}");
    }
    for (body, named) in [
        (r#"{"timeout_s": -1}"#, "timeout_s"),
        (r#"{"timeout_s": "1s"}"#, "timeout_s"),
        (r#"{"timeout_s": true}"#, "timeout_s"),
        (r#"{"timeout_s": NaN}"#, "body"),
        (r#"{"timeout_s": 1e999}"#, "body"),
        (r#"{"engine": 7}"#, "engine"),
        (r#"{"engine": [7]}"#, "engine"),
        (r#"{"nudge": 1}"#, "nudge"),
        (r#"{"what": 1}"#, "what"),
        ("[]", "body"),
        ("{", "body"),
    ] {
        let (status, answer) = send(rig.http, "POST", "/flush_cache", body.to_owned()).await;
        assert_eq!(status, 400, "{body} {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(named), "{body} {answer}");
    }
    for (path, body) in [
        ("/start_profile", r#"{"num_steps": -1}"#),
        ("/start_profile", r#"{"activities": "CPU", "num_steps": 1.5}"#),
        ("/start_profile?prefix=a", r#"{"prefix": "b"}"#),
        ("/stop_profile", r#"{"num_steps": 1}"#),
    ] {
        assert_eq!(send(rig.http, "POST", path, body.to_owned()).await.0, 400, "{path} {body}");
    }
    assert_eq!(call(rig.http, "GET", "/get_loads?timeout_s=1", &Value::Null).await.0, 400);
    for (body, code, named) in [
        (json!({"timeout_s": -1.0}), Code::InvalidArgument, "timeout_s"),
        (json!({"proof_timeout_s": -1.0}), Code::InvalidArgument, "proof_timeout_s"),
        (json!({"deadline_s": 0.0}), Code::InvalidArgument, "deadline_s"),
        (json!({"engine": "nobody"}), Code::InvalidArgument, "nobody"),
        (json!({"kind": "mlx"}), Code::InvalidArgument, "mlx"),
        (json!({"model": "nothing"}), Code::NotFound, "model=nothing"),
        (json!({"kind": "sglang"}), Code::NotFound, "kind=sglang"),
        (json!({"engine": "e0", "model": "nothing"}), Code::NotFound, "no engine is selected"),
    ] {
        let (refused, message) = refused(&rig, &body).await;
        assert_eq!(refused, code, "{body} {message}");
        assert!(message.contains(named), "{body} {message}");
    }
    for value in [f64::NAN, f64::INFINITY] {
        let mut request = flush_request(&json!({}));
        request.timeout_s = value;
        assert_eq!(admin(&rig).await.flush(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    for query in ["model=nothing", "kind=sglang", "url=http://nowhere:1", "engine=e0&model=nothing"] {
        let (status, answer) = call(rig.http, "POST", &format!("/flush_cache?{query}"), &Value::Null).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("not_found")), "{query}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_would_be_asked() {
    let server = Scripted::new(|_| Act::Say(200, "")).await;
    let specs = vec![server.silent("e0", EngineKind::Vllm, 2), server.silent("t0", EngineKind::Trtllm, 1)];
    let rig = rig(specs).await;
    let (status, answer) = call(rig.http, "POST", "/flush_cache?dry_run=true", &Value::Null).await;
    assert_eq!((status, &answer["status"]), (200, &json!("dry_run")));
    let ranks = &answer["plan"]["ranks"];
    assert_eq!((&ranks[1]["rank"], &ranks[1]["call"]), (&json!(1), &json!("POST /reset_prefix_cache")));
    assert_eq!(ranks[2]["call"], "");
    assert!(ranks[2]["unsupported"].as_str().unwrap().contains("TensorRT-LLM"));
    let request = flush_request(&json!({"dry_run": true}));
    let steps = admin(&rig).await.flush(request).await.unwrap().into_inner();
    let (plan, reports, summary) = all(steps).await.unwrap();
    assert_eq!((plan.ranks.len(), plan.backends, reports.len(), summary), (3, 2, 0, None));
    assert!(server.seen().is_empty());
}
