//! What operators get over HTTP, by engine and release, and what can be made to go wrong with it.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use crate::support::client::{ask, call, get, post};
use crate::support::{Scene, residency};
use http::{Method, StatusCode};
use kvplane_sim::{
    ClearEvent, CompletionOptions, Conduct, HostOptions, Question, Reply, Running, SimConfig, SimEngine,
    SimHandle, VllmOptions, Without,
};
use kvplane_wire::Profile;
use serde_json::{Value, json};

fn config(profile: Profile) -> SimConfig {
    SimConfig { profile, http: Some("127.0.0.1:0".parse().unwrap()), block_size: 4, ..SimConfig::default() }
}

fn start(config: SimConfig) -> SimHandle {
    SimEngine::start(config).unwrap()
}

fn on(rank: u32) -> CompletionOptions {
    CompletionOptions { rank: Some(rank), ..CompletionOptions::default() }
}

/// A request on a rank that holds its blocks.
fn held(engine: &SimHandle, rank: u32) -> Running {
    engine.begin(&[7; 9], 8, &on(rank)).unwrap()
}

/// Blocks on every rank.
fn fill(engine: &SimHandle) {
    for rank in 0..engine.config().ranks {
        engine.complete(&[rank; 9], 1, &on(rank)).unwrap();
    }
}

/// Which ranks hold something.
fn filled(engine: &SimHandle) -> Vec<bool> {
    engine.state().iter().map(|rank| !rank.blocks.is_empty()).collect()
}

async fn flush(engine: &SimHandle, path: &str) -> (StatusCode, String) {
    call(engine, Method::POST, path, Value::Null).await
}

#[tokio::test]
async fn vllm_resets_as_its_release_does() {
    for (profile, well, refused) in
        [(Profile::Vllm0_24, "", ""), (Profile::Vllm0_26, r#"{"success":true}"#, r#"{"success":false}"#)]
    {
        let engine = start(config(profile));
        fill(&engine);
        let running = held(&engine, 0);
        let reported = flush(&engine, "/reset_prefix_cache").await;
        assert_eq!((reported, filled(&engine)), ((StatusCode::OK, refused.to_owned()), vec![true]));
        drop(running);
        let reported = flush(&engine, "/reset_prefix_cache").await;
        assert_eq!((reported, filled(&engine)), ((StatusCode::OK, well.to_owned()), vec![false]));
    }
    let without = Without { dev_mode: true, profiler: true, load_tracking: true };
    let vllm = VllmOptions { without, ..VllmOptions::default() };
    let plain = start(SimConfig { vllm, ..config(Profile::Vllm0_32) });
    for path in ["/reset_prefix_cache", "/start_profile", "/stop_profile"] {
        assert_eq!(flush(&plain, path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(get(&plain, "/server_info").await.0, StatusCode::NOT_FOUND);
    let _running = held(&plain, 0);
    assert_eq!(get(&plain, "/load").await.1, r#"{"server_load":0}"#);
    assert_eq!(get(&plain, "/version").await.1, r#"{"version":"0.32"}"#);
}

#[tokio::test]
async fn the_first_rank_speaks_for_all() {
    for (profile, path) in [
        (Profile::Vllm0_32, "/reset_prefix_cache"),
        (Profile::Sglang0_5_22, "/flush_cache"),
        (Profile::Tokenspeed0_1_1, "/flush_cache"),
    ] {
        for (busy, accepted) in [(1, true), (0, false)] {
            let engine = start(SimConfig { ranks: 2, ..config(profile) });
            fill(&engine);
            let running = held(&engine, busy);
            let (status, body) = flush(&engine, path).await;
            let says_yes = status == StatusCode::OK && body != r#"{"success":false}"#;
            assert_eq!(says_yes, accepted, "{profile:?}: {body}");
            let mut left = vec![false; 2];
            left[busy as usize] = true;
            assert_eq!(filled(&engine), left, "every rank is asked");
            drop(running);
        }
    }
}

#[tokio::test]
async fn tiers_and_running_requests_are_reached_since_their_releases() {
    let host = HostOptions { blocks: 100, ..HostOptions::default() };
    for (profile, known) in [(Profile::Vllm0_10, false), (Profile::Vllm0_14, true)] {
        let vllm = VllmOptions { host, ..VllmOptions::default() };
        let engine = start(SimConfig { vllm, ..config(profile) });
        engine.complete(&[1; 9], 4, &on(0)).unwrap();
        flush(&engine, "/reset_prefix_cache?reset_external=true").await;
        assert_eq!(engine.state()[0].host_blocks.is_empty(), known, "{profile:?}");
        let running = held(&engine, 0);
        flush(&engine, "/reset_prefix_cache?reset_running_requests=true").await;
        assert_eq!(filled(&engine), [!known], "{profile:?}");
        drop(running);
    }
}

#[tokio::test]
async fn a_request_that_lost_its_blocks_computes_them_again() {
    let scene = Scene::start(config(Profile::Vllm0_32));
    let engine = &scene.engine;
    let alone = engine.complete(&[7; 9], 8, &on(0)).unwrap().output;
    let (mut running, bystander) = (held(engine, 0), held(engine, 0));
    running.step().unwrap();
    let reported = flush(engine, "/reset_prefix_cache?reset_running_requests=true").await;
    assert_eq!(reported, (StatusCode::OK, r#"{"success":true}"#.to_owned()));
    assert_eq!(filled(engine), [false]);
    while running.step().unwrap().is_some() {}
    assert_eq!(running.finish().output, alone);
    drop(bystander);
    assert_eq!(residency(&scene.heard(0).messages), engine.state()[0].blocks);
    assert!(engine.reset_prefix_cache(), "nobody holds anything");
}

#[tokio::test]
async fn sglang_waits_until_it_is_idle_if_its_release_can() {
    let new = start(config(Profile::Sglang0_5_22));
    for bad in ["-1", "nan", "soon"] {
        let status = flush(&new, &format!("/flush_cache?timeout={bad}")).await.0;
        assert!(status.is_client_error(), "{bad}: {status}");
    }
    new.conduct(Conduct { busy: true, ..Conduct::default() });
    assert_eq!(flush(&new, "/flush_cache").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(flush(&new, "/flush_cache?timeout=0.01").await.0, StatusCode::BAD_REQUEST);
    let asked = new.clone();
    let waiting = tokio::spawn(async move { flush(&asked, "/flush_cache?timeout=600").await.0 });
    until_asked(&new, 5).await;
    assert!(!waiting.is_finished());
    new.conduct(Conduct::default());
    assert_eq!(waiting.await.unwrap(), StatusCode::OK);

    let old = start(config(Profile::Sglang0_5_9));
    old.conduct(Conduct { busy: true, ..Conduct::default() });
    assert_eq!(flush(&old, "/flush_cache?timeout=600").await.0, StatusCode::BAD_REQUEST, "it does not wait");
}

/// Waits until operators have asked this many questions.
async fn until_asked(engine: &SimHandle, questions: usize) {
    while engine.asked().len() < questions {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn recordings_by_engine() {
    let vllm = start(config(Profile::Vllm0_32));
    let options = json!({ "profile_prefix": "a", "delay_iterations": 2, "max_iterations": 3 });
    assert_eq!(post(&vllm, "/start_profile", options.clone()).await.0, StatusCode::OK);
    assert_eq!(vllm.profiles(), (vec![options], true));
    assert_eq!(post(&vllm, "/start_profile", Value::Null).await.0, StatusCode::OK, "the first goes on");
    let unknown = post(&vllm, "/start_profile", json!({ "output_dir": "x" })).await.0;
    assert_eq!(unknown, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(flush(&vllm, "/stop_profile").await, (StatusCode::OK, String::new()));
    let old = start(config(Profile::Vllm0_29));
    post(&old, "/start_profile", json!({ "output_dir": "x" })).await;
    assert_eq!(old.profiles(), (vec![json!({})], true), "it takes none");

    for profile in [Profile::Sglang0_5_22, Profile::Tokenspeed0_1_1] {
        let engine = start(config(profile));
        assert_eq!(
            flush(&engine, "/stop_profile").await.0,
            StatusCode::INTERNAL_SERVER_ERROR,
            "there is none"
        );
        let options = json!({ "num_steps": 5, "activities": ["GPU"] });
        assert_eq!(post(&engine, "/start_profile", options.clone()).await.0, StatusCode::OK);
        assert_eq!(
            flush(&engine, "/start_profile").await.0,
            StatusCode::INTERNAL_SERVER_ERROR,
            "there is one"
        );
        assert_eq!(flush(&engine, "/stop_profile").await.0, StatusCode::OK);
        assert_eq!(engine.profiles(), (vec![options], false));
    }
}

#[tokio::test]
async fn info_and_loads_by_engine() {
    let vllm = start(config(Profile::Vllm0_32));
    let instance =
        |text: String| serde_json::from_str::<Value>(&text).unwrap()["vllm_config"]["instance_id"].clone();
    let first = instance(get(&vllm, "/server_info?config_format=json").await.1);
    vllm.fault(None, kvplane_sim::Fault::Restart(kvplane_sim::Restart::default()));
    let second = instance(get(&vllm, "/server_info?config_format=json").await.1);
    assert!(first.is_string() && first != second);
    let text: Value = serde_json::from_str(&get(&vllm, "/server_info").await.1).unwrap();
    assert!(text["vllm_config"].is_string());
    let running = held(&vllm, 0);
    assert_eq!(get(&vllm, "/load").await.1, r#"{"server_load":1}"#);
    drop(running);

    let sglang = start(SimConfig { ranks: 2, ..config(Profile::Sglang0_5_22) });
    let _running = held(&sglang, 1);
    let loads: Value = serde_json::from_str(&get(&sglang, "/v1/loads").await.1).unwrap();
    let reported = |rank: usize| loads["loads"][rank]["num_running_reqs"].clone();
    assert_eq!((reported(0), reported(1)), (json!(0), json!(1)));
    let one: Value = serde_json::from_str(&get(&sglang, "/v1/loads?dp_rank=1").await.1).unwrap();
    assert_eq!(one["loads"], json!([loads["loads"][1]]));
    assert_eq!(get(&sglang, "/v1/loads?dp_rank=2").await.0, StatusCode::BAD_REQUEST);
    assert!(get(&sglang, "/get_load").await.1.contains(r#""num_reqs":1"#));
}

#[tokio::test]
async fn a_flush_is_reported_as_the_engine_does_or_as_it_is_made_to() {
    for (profile, path, usual) in [
        (Profile::Vllm0_32, "/reset_prefix_cache", 0),
        (Profile::Sglang0_5_22, "/flush_cache", 1),
        (Profile::Tokenspeed0_1_1, "/flush_cache", 1),
    ] {
        for (clear, at_once, in_the_end) in [
            (ClearEvent::Usual, usual, true),
            (ClearEvent::Early, 1, true),
            (ClearEvent::NextStep, 0, true),
            (ClearEvent::Lost, 0, false),
        ] {
            let scene = Scene::start(config(profile));
            let engine = &scene.engine;
            fill(engine);
            let before = engine.state()[0].next_sequence;
            engine.conduct(Conduct { clear, ..Conduct::default() });
            flush(engine, path).await;
            let reported = engine.state()[0].next_sequence - before;
            assert_eq!((reported, filled(engine)), (at_once, vec![false]), "{profile:?} {clear:?}");
            engine.complete(&[5; 9], 1, &on(0)).unwrap();
            let is_known = residency(&scene.replay(0, 0).messages) == engine.state()[0].blocks;
            assert_eq!(is_known, in_the_end, "{profile:?} {clear:?}");
        }
    }
}

#[tokio::test]
async fn ranks_that_are_busy_or_pretend() {
    let engine = start(SimConfig { ranks: 4, ..config(Profile::Sglang0_5_22) });
    let half = || Some(vec![1, 3]);
    fill(&engine);
    engine.conduct(Conduct { busy: true, ranks: half(), ..Conduct::default() });
    assert_eq!(flush(&engine, "/flush_cache").await.0, StatusCode::OK, "the first rank's word");
    assert_eq!(filled(&engine), [false, true, false, true]);
    fill(&engine);
    engine.conduct(Conduct { no_effect: true, ranks: half(), ..Conduct::default() });
    assert!(engine.reset_prefix_cache());
    assert_eq!(filled(&engine), [false, true, false, true]);
    engine.conduct(Conduct { busy_ms: Some(600_000), ..Conduct::default() });
    assert!(!engine.reset_prefix_cache());
    engine.conduct(Conduct { busy_ms: Some(0), ..Conduct::default() });
    assert!(engine.reset_prefix_cache());
    assert_eq!(filled(&engine), [false; 4]);
}

#[tokio::test]
async fn answers_that_do_not_come_or_mean_nothing() {
    let engine = start(config(Profile::Sglang0_5_22));
    let set = |answer, verbs| engine.conduct(Conduct { answer, verbs, ..Conduct::default() });
    let asked = |path: &'static str| {
        let server = engine.http_address().unwrap();
        tokio::spawn(async move { ask(server, Method::POST, path, &Value::Null).await })
    };
    fill(&engine);
    set(Reply::Hang, None);
    let hung = asked("/flush_cache");
    until_asked(&engine, 1).await;
    assert_eq!((hung.is_finished(), filled(&engine)), (false, vec![true]), "nothing is done");
    set(Reply::Usual, None);
    assert_eq!(hung.await.unwrap().unwrap().0, StatusCode::OK);
    assert_eq!(filled(&engine), [false]);

    fill(&engine);
    set(Reply::Late, None);
    let late = asked("/flush_cache");
    while filled(&engine)[0] {
        tokio::task::yield_now().await;
    }
    assert!(!late.is_finished(), "done, and not said");
    set(Reply::Usual, None);
    assert_eq!(late.await.unwrap().unwrap().0, StatusCode::OK);
    let delay_ms = Some(1);
    engine.conduct(Conduct { answer: Reply::Late, delay_ms, ..Conduct::default() });
    assert_eq!(asked("/flush_cache").await.unwrap().unwrap().0, StatusCode::OK);

    fill(&engine);
    set(Reply::Error, None);
    assert_eq!(asked("/flush_cache").await.unwrap().unwrap().0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(filled(&engine), [true], "nothing is done");
    set(Reply::Garbage, None);
    let (status, body) = asked("/flush_cache").await.unwrap().unwrap();
    assert_eq!((status, serde_json::from_slice::<Value>(&body).is_err()), (StatusCode::OK, true));
    assert_eq!(filled(&engine), [false], "done");
    fill(&engine);
    set(Reply::Broken, None);
    assert!(asked("/flush_cache").await.unwrap().is_err());
    assert_eq!(filled(&engine), [false], "done");

    // Completions go on, unless they are meant; others go on if only some are.
    let request = json!({ "prompt": [1, 2], "max_tokens": 1 });
    assert_eq!(post(&engine, "/v1/completions", request.clone()).await.0, StatusCode::OK);
    set(Reply::Error, Some(vec![Question::Nudge, Question::Health]));
    assert_eq!(post(&engine, "/v1/completions", request).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(get(&engine, "/health").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(get(&engine, "/v1/loads").await.0, StatusCode::OK);
    engine.conduct(Conduct { ill: true, ..Conduct::default() });
    assert_eq!(get(&engine, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn conduct_is_set_over_http_and_read_back_by_its_effects() {
    let engine = start(config(Profile::Vllm0_32));
    let set = |conduct: Value| post(&engine, "/sim/fault", json!({ "operations": conduct }));
    let everything = json!({
        "busy": true, "busy_ms": 5, "no_effect": true, "clear": "next_step", "ranks": [0], "answer": "late",
        "delay_ms": 1, "verbs": ["flush", "start_profile", "stop_profile", "info", "loads", "health", "nudge"],
        "ill": true,
    });
    assert_eq!(set(everything).await.0, StatusCode::OK);
    assert_eq!(get(&engine, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(flush(&engine, "/reset_prefix_cache").await.1, r#"{"success":false}"#);
    assert_eq!(set(json!({})).await.0, StatusCode::OK);
    assert_eq!(get(&engine, "/health").await.0, StatusCode::OK);
    for bad in [json!({ "answer": "maybe" }), json!({ "bussy": true }), json!({ "verbs": ["dance"] })] {
        assert!(set(bad).await.0.is_client_error());
    }
    let state: Value = serde_json::from_str(&get(&engine, "/sim/state").await.1).unwrap();
    assert_eq!(state["asked"][1], json!("POST /reset_prefix_cache"));
    assert_eq!((&state["profiling"], &state["profiles"]), (&json!(false), &json!([])));
}

#[tokio::test]
async fn a_hang_ends_with_its_caller() {
    let engine = start(config(Profile::Vllm0_32));
    engine.conduct(Conduct { answer: Reply::Hang, ..Conduct::default() });
    let asked = engine.clone();
    let asking = tokio::spawn(async move { flush(&asked, "/reset_prefix_cache").await });
    until_asked(&engine, 1).await;
    asking.abort();
    assert!(asking.await.is_err());
    engine.conduct(Conduct::default());
    assert_eq!(get(&engine, "/health").await.0, StatusCode::OK);
    assert_eq!(engine.asked(), ["POST /reset_prefix_cache", "GET /health"]);
}

#[tokio::test]
async fn a_key_is_asked_for_where_the_engine_does() {
    for (profile, open, locked) in
        [(Profile::Vllm0_32, "/load", "/v1/completions"), (Profile::Sglang0_5_22, "/health", "/flush_cache")]
    {
        let engine = start(SimConfig { api_key: Some("key".to_owned()), ..config(profile) });
        assert_eq!(get(&engine, open).await.0, StatusCode::OK, "{open}");
        assert_eq!(flush(&engine, locked).await.0, StatusCode::UNAUTHORIZED, "{locked}");
        assert_eq!(get(&engine, "/sim/state").await.0, StatusCode::OK);
    }
}
