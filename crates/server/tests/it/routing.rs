//! Picks and their receipts over simulated engines that evict, restart and are bypassed on purpose: every
//! token that is lost has its true cause, and none is unexplained.

use kvplane_core::Continuity;
use kvplane_ingest::PlaneOptions;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use kvplane_sim::{CompletionOptions, Fault, Restart};
use kvplane_transport::grpc::GrpcSpec;
use kvplane_wire::Profile;
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
async fn who_goes_elsewhere_gets_an_error() {
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

/// What was lost after the decision, and nothing else.
fn lost_after(receipt: &Value) -> Vec<(String, u64)> {
    const BEFORE: [&str; 4] = ["capacity", "not_resumable", "eligibility", "load"];
    let lost = receipt["lost"].as_object().unwrap().iter();
    let after = lost.filter(|(cause, _)| !BEFORE.contains(&cause.as_str()));
    after.map(|(cause, tokens)| (cause.clone(), tokens.as_u64().unwrap())).collect()
}

/// Engines that evict, restart, serve under another name and see other tokens, in turn and on purpose: every
/// loss has the cause that was arranged, and every token of a prompt is accounted for.
#[tokio::test(flavor = "multi_thread")]
async fn every_lost_token_has_its_true_cause() {
    let engines = [Engine::plain(), Engine::plain()];
    let rig = Rig::with_options(&[&engines[0], &engines[1]], PlaneOptions::default()).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.live(at).await;
        run(engine, &prompt(90 + at as u32, 40));
        rig.exact(at, engine).await;
    }
    let mut lost = 0;
    for round in 0..15u32 {
        let wanted = prompt(100 + round, 200);
        run(&engines[0], &wanted);
        let before = rig.exact(0, &engines[0]).await.epoch;
        let picked = pick(&rig, &wanted).await;
        assert_eq!(picked["endpoints"][0]["engine"], "e0", "{picked}");
        let (cause, report_of): (&str, Value) = match round % 5 {
            0 => {
                for other in 0..10 {
                    run(&engines[0], &prompt(1_000 + round * 20 + other, 250));
                }
                let cached = run(&engines[0], &wanted);
                rig.exact(0, &engines[0]).await;
                ("evicted_between", json!({"state": "finish", "cached_tokens": cached}))
            }
            1 => {
                engines[0]
                    .sim
                    .fault(None, Fault::Restart(Restart { first_sequence: 0, same_content: false }));
                let cached = run(&engines[0], &wanted);
                rig.until(0, "began a new life", |status| status.epoch != before).await;
                ("restart", json!({"state": "finish", "cached_tokens": cached}))
            }
            2 => {
                let cached = run(&engines[1], &wanted);
                ("wrong_endpoint", json!({"state": "finish", "cached_tokens": cached, "engine": "e1"}))
            }
            3 => {
                // Another template: a token more in front.
                let seen: Vec<u32> = std::iter::once(7).chain(wanted.iter().copied()).collect();
                let cached = run(&engines[0], &seen);
                (
                    "wrong_tokens",
                    json!({"state": "finish", "cached_tokens": cached, "prompt_tokens": seen.len()}),
                )
            }
            _ => ("", json!({"state": "finish", "cached_tokens": run(&engines[0], &wanted)})),
        };
        let cached = report_of["cached_tokens"].as_u64().unwrap();
        let receipt = report(&rig, &picked, report_of).await;
        let missing = predicted(&picked) - cached;
        let expected = if cause.is_empty() { Vec::new() } else { vec![(cause.to_owned(), missing)] };
        assert_eq!(lost_after(&receipt), expected, "{receipt}");
        assert!(cause.is_empty() == (missing == 0), "{cause} {missing}");
        assert_eq!(receipt["drift"], Value::Null, "{receipt}");
        let all: u64 =
            receipt["lost"].as_object().unwrap().values().map(|tokens| tokens.as_u64().unwrap()).sum();
        let new = receipt["workload_tokens"].as_u64().unwrap();
        assert_eq!(all + new + cached, wanted.len() as u64, "{receipt}");
        lost += missing;
    }
    let totals = totals(&rig).await;
    assert_eq!((&totals["lost"]["unknown"], &totals["receipts"]["drifts"]), (&json!(0), &json!(0)));
    assert!(lost > 1_000, "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_everywhere_is_capacity_and_what_is_busy_is_load() {
    let engines = [Engine::plain(), Engine::plain()];
    let rig = Rig::with_options(&[&engines[0], &engines[1]], PlaneOptions::default()).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.live(at).await;
        run(engine, &prompt(90 + at as u32, 40));
        rig.exact(at, engine).await;
    }
    let wanted = prompt(1, 200);
    let first = pick(&rig, &wanted).await;
    delivered(&rig, &first, 0).await;
    let only_first = json!([{"engine": "e1"}]);
    run(&engines[0], &wanted);
    for other in 0..12 {
        run(&engines[0], &prompt(20 + other, 250));
    }
    rig.exact(0, &engines[0]).await;
    let again = pick(&rig, &wanted).await;
    assert_eq!(again["fleet_cached_tokens"], 0, "{again}");
    let receipt = delivered(&rig, &again, 0).await;
    // Prefixes are remembered in units of 64 tokens.
    assert_eq!(receipt["lost"], json!({"capacity": 192}), "{receipt}");
    // The holder is kept busy by prompts that are booked there.
    run(&engines[0], &wanted);
    rig.exact(0, &engines[0]).await;
    for other in 0..8u32 {
        let body = json!({"model": "sim", "token_ids": prompt(50 + other, 9_000), "exclude": only_first});
        let (code, picked) = call(rig.http, "POST", "/v1/pick", &body).await;
        assert_eq!((code, &picked["endpoints"][0]["engine"]), (200, &json!("e0")), "{picked}");
    }
    let busy = pick(&rig, &wanted).await;
    assert_eq!((&busy["why"], &busy["endpoints"][0]["engine"]), (&json!("load"), &json!("e1")), "{busy}");
    let receipt = delivered(&rig, &busy, run(&engines[1], &wanted)).await;
    assert_eq!(receipt["lost"]["load"], busy["eligible_cached_tokens"], "{receipt}");
    assert_eq!(totals(&rig).await["lost"]["unknown"], 0);
}

/// Of an engine with a sliding window more is held than it can go on from: that is known at the decision.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_cannot_go_on_from_is_not_resumable() {
    let mut engine = Engine::start(|config| {
        config.blocks = 240;
        config.vllm.groups = ["sliding:64", "full"].map(|group| group.parse().unwrap()).into();
    });
    engine.work(3);
    let rig = Rig::of_specs(vec![engine.spec("e0")], PlaneOptions::default()).await;
    let mut not_resumable = 0;
    for turn in 0..80u32 {
        let long = prompt(100 + turn / 4, 400);
        let wanted = &long[..(100 + 75 * (turn % 4)) as usize];
        run(&engine, &long);
        engine.work(1);
        rig.exact(0, &engine).await;
        let picked = pick(&rig, wanted).await;
        let cached = run(&engine, wanted);
        let receipt = delivered(&rig, &picked, cached).await;
        assert_eq!(lost_after(&receipt), [], "{receipt}");
        assert_eq!(receipt["drift"], Value::Null, "{receipt}");
        not_resumable += receipt["lost"]["not_resumable"].as_u64().unwrap_or(0);
        if not_resumable > 0 {
            break;
        }
    }
    assert!(not_resumable > 0);
    assert_eq!(totals(&rig).await["lost"]["unknown"], 0);
}

/// A plane that came late does not know what was cached before: its word is `lower`, and more is delivered
/// than it said.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_cached_before_anybody_listened_is_gained_and_no_drift() {
    let engine = Engine::plain().without_replay();
    let wanted = prompt(1, 200);
    run(&engine, &wanted);
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    run(&engine, &prompt(9, 40));
    rig.until(0, "known in part", |status| status.trust.level() == kvplane_core::Trust::Lower).await;
    let picked = pick(&rig, &wanted).await;
    let cached = run(&engine, &wanted);
    let receipt = delivered(&rig, &picked, cached).await;
    assert_eq!(receipt["gained_tokens"], cached - predicted(&picked), "{receipt}");
    assert_eq!((&receipt["drift"], lost_after(&receipt)), (&Value::Null, Vec::new()));
}

/// What an engine says of its own load is part of the decision while it is fresh; afterwards bookings alone
/// are, and the answer says so.
#[tokio::test(flavor = "multi_thread")]
async fn loads_are_read_while_somebody_picks_and_stale_ones_say_so() {
    const PAGE: &str =
        "vllm:num_requests_running{engine=\"0\"} 2.0\nvllm:num_requests_waiting{engine=\"0\"} 5.0\n";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pages = axum::Router::new().route("/metrics", axum::routing::get(|| async { PAGE }));
    let serving = tokio::spawn(async move { axum::serve(listener, pages).await });
    let engine = Engine::plain();
    let mut spec = engine.spec("e0");
    spec.http = Some(format!("http://{address}"));
    let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
    rig.live(0).await;
    run(&engine, &prompt(9, 40));
    rig.exact(0, &engine).await;
    let until = |wanted: &'static str| {
        let rig = &rig;
        async move {
            for _ in 0..1_200 {
                let dry = json!({"model": "sim", "token_ids": [1], "dry_run": true});
                let (code, picked) = call(rig.http, "POST", "/v1/pick", &dry).await;
                assert_eq!(code, 200, "{picked}");
                if picked["endpoints"][0]["load"] == wanted {
                    return picked["endpoints"][0]["terms"]["queue_s"].as_f64().unwrap();
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            panic!("the load was never {wanted}");
        }
    };
    let queue = until("reported").await;
    // Work that was reported is taken as done at the engine's speed from then on.
    assert!(queue > 0.0 && queue <= 5.0 * 1_024.0 / 16_000.0, "{queue}");
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(page.contains("kvplane_route_loads{source=\"reported\"} 1\n"), "{page}");
    assert!(page.contains("kvplane_route_load_polls_total{outcome=\"read\"} "), "{page}");
    serving.abort();
    let queue = until("stale").await;
    assert!(queue.abs() < 1e-9, "bookings alone: {queue}");
}

/// Engines behind SMG's services say it of every rank, by `GetLoads`; nothing is read of a page then.
#[tokio::test(flavor = "multi_thread")]
async fn loads_come_by_get_loads_where_an_engine_speaks_grpc() {
    let engine = Engine::start(|config| {
        config.grpc = Some(([127, 0, 0, 1], 0).into());
        (config.profile, config.ranks) = (Profile::Sglang0_5_22, 2);
    });
    let mut spec = engine.spec("e0");
    let url = format!("http://{}", engine.sim.grpc_address().unwrap());
    let services = spec.kind.grpc_service().into_iter().collect();
    spec.control.grpc = Some(GrpcSpec { url, ca: None, services });
    spec.http = None;
    let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
    for rank in 0..2 {
        rig.until_rank(0, rank, "live", |status| status.continuity == Continuity::Live).await;
    }
    let dry = json!({"model": "sim", "token_ids": [1], "dry_run": true});
    for _ in 0..1_200 {
        let (code, picked) = call(rig.http, "POST", "/v1/pick", &dry).await;
        assert_eq!(code, 200, "{picked}");
        if picked["endpoints"].as_array().unwrap().iter().all(|one| one["load"] == "reported") {
            assert_eq!(picked["endpoints"].as_array().unwrap().len(), 2);
            let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
            assert!(page.contains("kvplane_route_load_polls_total{outcome=\"no_answer\"} 0\n"), "{page}");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the loads were never read");
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
