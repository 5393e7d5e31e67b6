//! Every verdict that an engine's answer can lead to, over both protocols.

use kvplane_core::{EngineKind, Reason};
use kvplane_ingest::Source;
use kvplane_proto::kvplane::v1 as proto;
use serde_json::{Value, json};

use crate::operations::cancelled::until_none_is_in_flight;
use crate::operations::scripted::{Act, Scripted, rig};
use crate::operations::talk::{admin, all, flush_over_grpc, flush_over_http, operation};
use crate::rig::{Rig, call, text};

/// Each engine's name says what it does with every request.
fn act(engine: &str) -> Act {
    match engine {
        "yes" | "two" => Act::Say(200, r#"{"success": true}"#),
        "busy" => Act::Say(200, r#"{"success": false}"#),
        "mute" => Act::Say(200, ""),
        "odd" => Act::Say(200, "what?"),
        "broken" => Act::Say(500, "no"),
        "locked" => Act::Say(401, "no"),
        "hangs" => Act::Hang,
        _ => Act::Say(404, ""),
    }
}

/// The engine, and how it answers: status, verdict, a part of the sentence, whether it may still
/// complete.
const TABLE: &[(&str, u16, &str, &str, bool)] = &[
    // Nothing is heard of these engines: what they say cannot be proven.
    ("yes", 200, "done", "its stream is not live (connecting)", false),
    ("busy", 502, "refused", "requests hold blocks", false),
    ("old", 502, "unsupported", "VLLM_SERVER_DEV_MODE", false),
    ("trt", 502, "unsupported", "TensorRT-LLM has no call", false),
    ("locked", 502, "failed", "requires a key", false),
    ("broken", 502, "failed", "not confirmed by its stream within the proof timeout", true),
    ("dead", 502, "failed", "cannot connect", false),
    ("hangs", 502, "timeout", "no answer in time", true),
    ("mute", 502, "unknown", "up to 0.25", true),
    ("odd", 502, "unknown", "does not say whether", true),
];

async fn fleet() -> (Scripted, Rig) {
    let server = Scripted::new(act).await;
    let kind = |id: &str| if id == "trt" { EngineKind::Trtllm } else { EngineKind::Vllm };
    let mut specs: Vec<_> = TABLE.iter().map(|(id, ..)| server.silent(id, kind(id), 1)).collect();
    let dead = specs.iter_mut().find(|spec| spec.id.as_str() == "dead").unwrap();
    dead.http = Some("http://127.0.0.1:9".to_owned());
    (server, rig(specs).await)
}

fn question(engine: &str) -> Value {
    json!({"engine": engine, "deadline_s": 1.0, "proof_timeout_s": 0.05})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_its_verdict_over_both_protocols() {
    let (_server, rig) = fleet().await;
    for (engine, status, verdict, why, open) in TABLE {
        let over_http = flush_over_http(&rig, question(engine)).await;
        let over_grpc = flush_over_grpc(&rig, question(engine)).await;
        assert_eq!(over_http, over_grpc, "{engine}");
        let reported = &over_http.1[&((*engine).to_owned(), 0)];
        assert_eq!((over_http.0, reported.verdict.as_str()), (*status, *verdict), "{engine}: {reported:?}");
        assert!(reported.why.contains(why), "{engine}: {}", reported.why);
        assert_eq!(reported.may_still_complete, *open, "{engine}: {}", reported.why);
        // What may have been flushed is not credited any more; what was not, is as it was.
        let stream = rig.plane.engine(engine).unwrap().streams[0].clone();
        let may_have_been = *open || *verdict == "done";
        assert_eq!(stream.status().trust.has(Reason::UnprovenFlush), may_have_been, "{engine}");
        assert!(!stream.status().trust.has(Reason::Flushing), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_partly_flushed_and_says_so_engine_by_engine() {
    let (_server, rig) = fleet().await;
    let body = json!({"deadline_s": 1.0, "proof_timeout_s": 0.05});
    let (status, answer) = call(rig.http, "POST", "/flush_cache", &body).await;
    assert_eq!(status, 207, "{answer}");
    assert_eq!(answer["status"], "partial");
    assert_eq!(answer["workers_flushed"], 1);
    assert_eq!(answer["total_workers"], TABLE.len());
    assert_eq!(answer["total_zmq_workers_skipped"], 0);
    assert_eq!(answer["total_grpc_workers"], 0);
    // Those that cannot be asked at all were not.
    assert_eq!(answer["total_http_workers"], TABLE.len() - 1);
    assert_eq!(answer["successful"], json!(["yes"]));
    let failed = answer["failed"].as_array().unwrap();
    assert_eq!(failed.len(), TABLE.len() - 1);
    for (engine, _, verdict, why, _) in TABLE.iter().filter(|(engine, ..)| *engine != "yes") {
        let entry = failed.iter().find(|entry| entry["worker"] == *engine).unwrap();
        let error = entry["error"].as_str().unwrap();
        assert!(error.starts_with(&format!("rank 0: {verdict}: ")) && error.contains(why), "{error}");
    }
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    for line in [
        r#"kvplane_operations_total{verb="flush",outcome="partly"} 1"#,
        r#"kvplane_operation_ranks_total{verb="flush",verdict="done"} 1"#,
        r#"kvplane_operation_ranks_total{verb="flush",verdict="unknown"} 2"#,
        "kvplane_operations_in_flight 0",
    ] {
        assert!(page.contains(line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_only_its_first_ranks_and_a_server_is_asked_once() {
    let server = Scripted::new(act).await;
    let mut twin = server.silent("twin", EngineKind::Vllm, 1);
    let Source::Published(published) = &mut twin.source else { panic!("{:?}", twin.source) };
    published.ranks[0].rank = 7;
    twin.http = Some(server.url("two"));
    let rig = rig(vec![server.silent("two", EngineKind::Vllm, 2), twin]).await;
    let (status, ranks) = flush_over_http(&rig, json!({"proof_timeout_s": 0.05})).await;
    assert_eq!(status, 207);
    let verdict = |engine: &str, rank| ranks[&(engine.to_owned(), rank)].verdict.as_str();
    assert_eq!((verdict("two", 0), verdict("two", 1), verdict("twin", 7)), ("done", "unknown", "unknown"));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_shares_a_server_is_fenced_with_those_that_were_selected() {
    let server = Scripted::new(|_| Act::Say(200, r#"{"success": true}"#)).await;
    let mut twin = server.silent("twin", EngineKind::Vllm, 1);
    twin.http = Some(format!("{}/", server.url("one")));
    let specs =
        vec![server.silent("one", EngineKind::Vllm, 1), twin, server.silent("other", EngineKind::Vllm, 1)];
    let rig = rig(specs).await;
    let (_, ranks) = flush_over_http(&rig, json!({"engine": "one", "proof_timeout_s": 0.05})).await;
    assert_eq!(ranks.keys().map(|(engine, _)| engine.as_str()).collect::<Vec<_>>(), ["one"]);
    // Only when the last watch has ended is nothing in flight.
    until_none_is_in_flight(&rig).await;
    let doubted =
        |engine: &str| rig.plane.engine(engine).unwrap().streams[0].status().trust.has(Reason::UnprovenFlush);
    assert_eq!((doubted("one"), doubted("twin"), doubted("other")), (true, true, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_for_which_another_refused_are_watched() {
    let server = Scripted::new(|_| Act::Say(200, r#"{"success": false}"#)).await;
    let rig = rig(vec![server.silent("two", EngineKind::Vllm, 2)]).await;
    let (status, ranks) = flush_over_http(&rig, json!({"proof_timeout_s": 0.05})).await;
    assert_eq!(status, 502);
    let verdict = |rank| ranks[&("two".to_owned(), rank)].verdict.as_str();
    assert_eq!((verdict(0), verdict(1)), ("refused", "refused"));
    until_none_is_in_flight(&rig).await;
    let engine = rig.plane.engine("two").unwrap();
    let doubted: Vec<_> =
        engine.streams.iter().map(|stream| stream.status().trust.has(Reason::UnprovenFlush)).collect();
    assert_eq!(doubted, [false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_verbs_tell_what_the_engine_says() {
    let server = Scripted::new(|engine| match engine {
        "yes" => Act::Say(200, r#"{"running": 3}"#),
        _ => Act::Say(503, "not now"),
    })
    .await;
    let rig =
        rig(vec![server.silent("yes", EngineKind::Sglang, 2), server.silent("busy", EngineKind::Sglang, 1)])
            .await;
    let (status, answer) = call(rig.http, "GET", "/get_loads?engine=yes", &Value::Null).await;
    assert_eq!((status, &answer["ranks"][0]["detail"]), (200, &json!({"running": 3})), "{answer}");
    // A server that is behind several ranks says it once.
    assert_eq!((&answer["ranks"][1]["verdict"], answer["ranks"][1].get("detail")), (&json!("done"), None));
    assert_eq!(call(rig.http, "GET", "/server_info", &Value::Null).await.0, 207);
    let (status, answer) = call(rig.http, "POST", "/start_profile?url=http://nowhere:1", &Value::Null).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("not_found")));
    let path = format!("/start_profile?url={}&num_steps=3", server.url("yes"));
    let (status, answer) = call(rig.http, "POST", &path, &json!({"activities": ["CPU"]})).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["ranks"][0]["profile_id"].as_str().unwrap();
    assert!(id.starts_with(answer["operation"].as_str().unwrap()), "{answer}");
    let (status, answer) = call(rig.http, "POST", "/stop_profile?engine=busy", &Value::Null).await;
    assert_eq!((status, &answer["ranks"][0]["verdict"]), (502, &json!("refused")));

    let mut client = admin(&rig).await;
    let one = |engine: &str| operation(&json!({"engine": engine}));
    let (_, ranks, _) = all(client.loads(one("yes")).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(ranks[0].detail_json, r#"{"running":3}"#);
    let (_, ranks, _) = all(client.health(one("busy")).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(ranks[0].verdict(), proto::Verdict::Failed);
    let (_, ranks, _) = all(client.info(one("yes")).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(ranks[0].verdict(), proto::Verdict::Done);
    let (_, ranks, _) = all(client.stop_profile(one("yes")).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(ranks[1].verdict(), proto::Verdict::Done);
    let request = proto::StartProfileRequest { operation: Some(one("yes")), ..Default::default() };
    let (plan, ranks, _) = all(client.start_profile(request).await.unwrap().into_inner()).await.unwrap();
    assert!(ranks[0].profile_id.starts_with(&plan.operation));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_sent_and_read_again_with_every_operation() {
    let server = Scripted::new(act).await;
    let path = std::env::temp_dir().join(format!("kvplane-engine-key-{}", server.address.port()));
    std::fs::write(&path, "hush\n").unwrap();
    let mut spec = server.silent("yes", EngineKind::Vllm, 1);
    spec.control.api_key_file = Some(path.clone());
    let rig = rig(vec![spec]).await;
    assert_eq!(flush_over_http(&rig, question("yes")).await.0, 200);
    let seen = &server.seen()[0];
    assert_eq!((seen.path.as_str(), seen.key.as_deref()), ("reset_prefix_cache", Some("Bearer hush")));
    std::fs::remove_file(&path).unwrap();
    let (status, ranks) = flush_over_http(&rig, question("yes")).await;
    let reported = &ranks[&("yes".to_owned(), 0)];
    assert_eq!((status, reported.verdict.as_str()), (502, "failed"));
    assert!(reported.why.contains("api_key_file") && !reported.why.contains("hush"), "{}", reported.why);
    assert_eq!(server.seen().len(), 1, "who has no key is not asked");
}
