//! Picks and their receipts over simulated engines that evict, restart and are bypassed on purpose: every token that is lost has its
//! true cause, and none is unexplained.

use kvplane_ingest::PlaneOptions;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use kvplane_sim::{CompletionOptions, Fault, Restart};
use serde_json::{Value, json};

use crate::every_engine;
use crate::rig::{Engine, Rig, call, text};

const BLOCK: u64 = 16;

fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| seed * 10_000 + at).collect()
}

fn run(engine: &Engine, prompt: &[u32]) -> u64 {
    let options = CompletionOptions { rank: Some(0), ..CompletionOptions::default() };
    let cached = engine.sim.complete(prompt, 1, &options).unwrap().cached_tokens;
    // Publishing is the publisher's thread's business; wait until it is done.
    engine.sim.state();
    cached as u64
}

async fn pick(rig: &Rig, prompt: &[u32]) -> Value {
    let (code, answer) =
        call(rig.http, "POST", "/v1/pick", &json!({"model": "sim", "token_ids": prompt})).await;
    assert_eq!(code, 200, "{answer}");
    answer
}

async fn report(rig: &Rig, picked: &Value, body: Value) -> Value {
    let path = format!("/v1/receipts/{}", picked["id"].as_str().unwrap());
    let (code, receipt) = call(rig.http, "POST", &path, &body).await;
    assert_eq!(code, 200, "{receipt}");
    let (code, kept) = call(rig.http, "GET", &path, &Value::Null).await;
    assert_eq!((code, &kept), (200, &receipt));
    receipt
}

async fn delivered(rig: &Rig, picked: &Value, cached: u64) -> Value {
    report(rig, picked, json!({"state": "finish", "cached_tokens": cached})).await
}

fn predicted(picked: &Value) -> u64 {
    picked["endpoints"][0]["cached_tokens"].as_u64().unwrap()
}

async fn totals(rig: &Rig) -> Value {
    let (code, totals) = call(rig.http, "GET", "/v1/receipts", &Value::Null).await;
    assert_eq!(code, 200);
    totals
}

every_engine! {
    async fn what_is_held_is_predicted_and_delivered() {
        let engine = Engine::plain();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        let prompt = prompt(1, 200);
        run(&engine, &prompt);
        rig.exact(0, &engine).await;
        let picked = pick(&rig, &prompt).await;
        assert_eq!((&picked["why"], &picked["endpoints"][0]["engine"]), (&json!("cached"), &json!("e0")));
        let cached = run(&engine, &prompt);
        assert!(cached >= 11 * BLOCK, "{cached}");
        let receipt = delivered(&rig, &picked, cached).await;
        assert_eq!(receipt["lost"], json!({}), "{receipt}");
        assert_eq!((&receipt["gained_tokens"], &receipt["drift"]), (&json!(0), &Value::Null));
        assert_eq!(totals(&rig).await["receipts"]["equal"], 1);
    }

    async fn what_is_evicted_between_is_said_to_be() {
        let engine = Engine::plain();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        let wanted = prompt(1, 200);
        run(&engine, &wanted);
        rig.exact(0, &engine).await;
        let picked = pick(&rig, &wanted).await;
        for other in 2..12 {
            run(&engine, &prompt(other, 250));
        }
        let cached = run(&engine, &wanted);
        assert!(cached < predicted(&picked), "{cached}");
        rig.exact(0, &engine).await;
        let receipt = delivered(&rig, &picked, cached).await;
        assert_eq!(receipt["lost"], json!({"evicted_between": predicted(&picked) - cached}), "{receipt}");
        assert_eq!(receipt["drift"], Value::Null);
    }

    async fn what_comes_between_is_gained() {
        let engine = Engine::plain();
        let rig = Rig::over(&[&engine]).await;
        rig.live(0).await;
        engine.repeat_what_nobody_heard();
        run(&engine, &prompt(9, 40));
        rig.exact(0, &engine).await;
        let wanted = prompt(1, 200);
        let picked = pick(&rig, &wanted).await;
        assert_eq!((predicted(&picked), &picked["why"]), (0, &json!("not_held")));
        run(&engine, &wanted);
        let cached = run(&engine, &wanted);
        rig.exact(0, &engine).await;
        let receipt = delivered(&rig, &picked, cached).await;
        assert_eq!((&receipt["gained_tokens"], &receipt["drift"]), (&json!(cached), &Value::Null));
        assert_eq!(receipt["lost"], json!({}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_between_is_said_to_be() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let wanted = prompt(1, 200);
    run(&engine, &wanted);
    let before = rig.exact(0, &engine).await.epoch;
    let picked = pick(&rig, &wanted).await;
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence: 0, same_content: false }));
    let cached = run(&engine, &wanted);
    assert_eq!(cached, 0);
    rig.until(0, "began a new life", |status| status.epoch != before).await;
    let receipt = delivered(&rig, &picked, cached).await;
    assert_eq!(receipt["lost"], json!({"restart": predicted(&picked)}), "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_elsewhere_is_told_so() {
    let engines = [Engine::plain(), Engine::plain()];
    let rig = Rig::with_options(&[&engines[0], &engines[1]], PlaneOptions::default()).await;
    rig.live(0).await;
    rig.live(1).await;
    let wanted = prompt(1, 200);
    run(&engines[0], &wanted);
    run(&engines[1], &prompt(7, 40));
    rig.exact(0, &engines[0]).await;
    rig.exact(1, &engines[1]).await;
    for (said, cause) in [
        (json!({"cached_tokens": 0, "engine": "e1"}), "wrong_endpoint"),
        (json!({"cached_tokens": 0, "rank": 3}), "wrong_rank"),
        (json!({"cached_tokens": 0, "prompt_tokens": 199}), "wrong_tokens"),
    ] {
        let picked = pick(&rig, &wanted).await;
        assert_eq!(picked["endpoints"][0]["engine"], "e0", "{picked}");
        let receipt = report(&rig, &picked, said).await;
        assert_eq!(receipt["lost"], json!({cause: predicted(&picked)}), "{receipt}");
    }
    let excluded = json!({"model": "sim", "token_ids": wanted, "exclude": [{"engine": "e0"}]});
    let (_, picked) = call(rig.http, "POST", "/v1/pick", &excluded).await;
    assert_eq!(
        (&picked["endpoints"][0]["engine"], &picked["skipped"][0]["why"]),
        (&json!("e1"), &json!("excluded"))
    );
    let receipt = delivered(&rig, &picked, 0).await;
    assert_eq!(receipt["lost"]["eligibility"], picked["fleet_cached_tokens"], "{receipt}");
    assert_eq!(totals(&rig).await["lost"]["unknown"], 0);
    let (code, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert_eq!(code, 200);
    assert!(page.contains("kvplane_route_lost_tokens_total{cause=\"wrong_rank\"} "), "{page}");
}

/// Broken on purpose: somebody reports what no engine announced.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_no_event_explains_is_drift() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    run(&engine, &prompt(9, 40));
    rig.exact(0, &engine).await;
    let picked = pick(&rig, &prompt(1, 200)).await;
    let receipt = delivered(&rig, &picked, 2 * BLOCK).await;
    assert_eq!(receipt["drift"], json!({"kind": "gained_unannounced", "block": 0}), "{receipt}");
    assert_eq!(totals(&rig).await["receipts"]["drifts"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bookings_end_and_bad_requests_are_named() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    run(&engine, &prompt(9, 40));
    rig.exact(0, &engine).await;
    let first = pick(&rig, &prompt(1, 200)).await;
    let second = pick(&rig, &prompt(1, 200)).await;
    assert_eq!((&second["why"], &second["endpoints"][0]["cached_tokens"]), (&json!("in_flight"), &json!(0)));
    report(&rig, &first, json!({"state": "first_token"})).await;
    report(&rig, &first, json!({"state": "finish"})).await;
    let aborted = report(&rig, &second, json!({"state": "abort"})).await;
    assert_eq!(aborted["state"], "aborted");
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(page.contains("kvplane_route_bookings 0\n"), "{page}");
    let dry = json!({"model": "sim", "token_ids": [1], "dry_run": true});
    let (_, picked) = call(rig.http, "POST", "/v1/pick", &dry).await;
    assert_eq!((&picked["id"], &picked["booked"]), (&Value::Null, &json!(false)));
    let (_, blind) = call(rig.http, "POST", "/v1/pick", &json!({"model": "sim"})).await;
    assert_eq!(blind["why"], "no_tokens", "{blind}");
    for (body, field) in [
        (json!({"model": "sim", "token_ids": [1], "policy": "fastest"}), "policy"),
        (json!({"model": "sim", "token_ids": [1], "limit": 65}), "limit"),
        (json!({"model": "sim", "token_ids": [1], "groups": true}), "groups"),
        (json!({"model": "sim", "token_ids": [1], "exclude": ["e0"]}), "exclude"),
        (json!({"token_ids": [1]}), "model"),
    ] {
        let (code, answer) = call(rig.http, "POST", "/v1/pick", &body).await;
        assert_eq!((code, &answer["error"]["field"]), (400, &json!(field)), "{answer}");
    }
    let (code, _) = call(rig.http, "GET", "/v1/receipts/nobody", &Value::Null).await;
    assert_eq!(code, 404);
    let path = format!("/v1/receipts/{}", first["id"].as_str().unwrap());
    let (code, _) = call(rig.http, "POST", &path, &json!({"cached_tokens": 201})).await;
    assert_eq!(code, 400);
    assert_eq!(call(rig.http, "POST", &path, &json!({"cached_tokens": 0})).await.0, 200);
    assert_eq!(call(rig.http, "POST", &path, &json!({"cached_tokens": 0})).await.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_picks_and_reports_the_same() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let wanted = prompt(1, 200);
    run(&engine, &wanted);
    rig.exact(0, &engine).await;
    let mut client = RoutingClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let query =
        proto::QueryRequest { model: "sim".to_owned(), token_ids: wanted.clone(), ..Default::default() };
    let request = proto::PickRequest { prompt: Some(query), ..Default::default() };
    let picked = client.pick(request).await.unwrap().into_inner();
    let cached = run(&engine, &wanted);
    assert_eq!((picked.why.as_str(), picked.endpoints[0].cached_tokens), ("cached", cached));
    let report = proto::DeliveryReport { id: picked.id, cached_tokens: Some(cached), ..Default::default() };
    let account = client.report(report).await.unwrap().into_inner();
    assert_eq!((account.settled, account.predicted_tokens, account.delivered_tokens), (true, cached, cached));
    let nobody = proto::DeliveryReport { id: "nobody".to_owned(), state: 2, ..Default::default() };
    assert_eq!(client.report(nobody).await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(
        client.pick(proto::PickRequest::default()).await.unwrap_err().code(),
        tonic::Code::InvalidArgument
    );
}
