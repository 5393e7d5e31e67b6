//! Engines that are asked where they publish, over real sockets.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod grpc;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvplane_core::{Continuity, Reason, Trouble, Trust};
use kvplane_ingest::{Events, Origin, PlaneOptions, StreamStatus};
use kvplane_server::{EngineConfig, EnginePlan};
use kvplane_socket::Endpoint;
use kvplane_wire::Profile;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rig::{DEADLINE, Engine, Rig, call, held};

/// An engine's HTTP server that says what a test wants it to say.
struct FakeEngine {
    url: String,
    answer: Arc<Mutex<Answer>>,
    _stop: DropGuard,
}

#[derive(Clone)]
struct Answer {
    status: u16,
    body: String,
    /// It never comes.
    hangs: bool,
}

impl Answer {
    fn says(body: impl Into<String>) -> Self {
        Self { status: 200, body: body.into(), hangs: false }
    }
}

impl FakeEngine {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = Arc::new(Mutex::new(answer));
        let stop = CancellationToken::new();
        let pages = Router::new().fallback(page).with_state(answer.clone());
        let serving = axum::serve(listener, pages).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(std::future::IntoFuture::into_future(serving));
        Self { url, answer, _stop: stop.drop_guard() }
    }

    fn say(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }
}

async fn page(State(answer): State<Arc<Mutex<Answer>>>, uri: Uri) -> Response {
    if !["/kv_event_sources", "/server_info"].contains(&uri.path()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let Answer { status, body, hangs } = answer.lock().clone();
    if hangs {
        std::future::pending::<()>().await;
    }
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

/// What vLLM says when these are its ranks.
fn sources(engines: &[&Engine]) -> Answer {
    let ranks = engines.iter().enumerate().map(|(rank, engine)| (rank.to_string(), source(engine)));
    Answer::says(Value::Object(ranks.collect()).to_string())
}

fn source(engine: &Engine) -> Value {
    let (events, replay) = (engine.sim.event_endpoints().remove(0), engine.sim.replay_endpoints().remove(0));
    json!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events, "replay_endpoint": replay, "topic": ""})
}

fn plan(described: Value) -> EnginePlan {
    serde_json::from_value::<EngineConfig>(described).unwrap().plan().unwrap()
}

/// A plane that asks often.
async fn asking() -> Rig {
    let options = PlaneOptions { discover_every: Duration::from_millis(50), ..PlaneOptions::default() };
    Rig::with_options(&[], options).await
}

async fn add(rig: &Rig, described: Value) {
    rig.fleet.add(vec![plan(described)], Origin::Api).await.unwrap();
}

/// Waits until the engine's ranks look as wanted.
async fn until(
    rig: &Rig,
    id: &str,
    what: &str,
    wanted: impl Fn(&[StreamStatus]) -> bool,
) -> Vec<StreamStatus> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let engine = rig.plane.engine(id).unwrap();
        let ranks: Vec<_> = engine.streams.iter().map(|stream| stream.status()).collect();
        if wanted(&ranks) {
            return ranks;
        }
        assert!(Instant::now() < deadline, "{id} never {what}: {ranks:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn all_live(ranks: &[StreamStatus]) -> bool {
    ranks.iter().all(|rank| rank.continuity == Continuity::Live)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_two_ranks_is_found_by_its_http_address_alone() {
    let mut engine = Engine::start(|config| config.ranks = 2);
    engine.work(20);
    let rig = asking().await;
    let http = format!("http://{}", engine.sim.http_address().unwrap());
    add(&rig, json!({"id": "found", "kind": "vllm", "model": "sim", "http": http})).await;
    until(&rig, "found", "exact", |ranks| {
        ranks.len() == 2 && all_live(ranks) && ranks.iter().all(|rank| rank.trust.level() == Trust::Exact)
    })
    .await;
    for (rank, stream) in rig.plane.engine("found").unwrap().streams.iter().enumerate() {
        let truth = engine.sim.state().remove(rank).blocks;
        let truth = truth.into_iter().map(|(hash, copies)| (hash, copies as u64)).collect();
        assert_eq!(held(stream).await, truth, "rank {rank}");
    }
    let (_, described) = call(rig.http, "GET", "/v1/engines", &Value::Null).await;
    assert_eq!(described["engines"][0]["ranks"][1]["events"], engine.sim.event_endpoints()[1].as_str());
    assert_eq!(described["engines"][0]["ranks"][1]["replay"], json!(engine.sim.replay_endpoints()[1]));
    let (code, ready) = call(rig.http, "GET", "/readyz?strict=1", &Value::Null).await;
    assert_eq!(code, 200, "{ready}");
    assert_eq!(ready["publishers"]["engines"]["found"], json!({"expected": 2, "heard": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_and_tokenspeed_are_found_by_what_they_say_of_themselves() {
    for (kind, profile) in [("sglang", Profile::Sglang0_5_22), ("tokenspeed", Profile::Tokenspeed0_1_1)] {
        let mut engine = Engine::start(|config| config.profile = profile);
        engine.work(10);
        let rig = asking().await;
        let http = format!("http://{}", engine.sim.http_address().unwrap());
        add(&rig, json!({"id": "e", "kind": kind, "model": "sim", "http": http, "block_size": 16})).await;
        let last = engine.next_sequence().checked_sub(1);
        let ranks = until(&rig, "e", "heard", |ranks| ranks[0].engine_sequence == last).await;
        assert_eq!((ranks[0].trouble, ranks[0].trust.level()), (None, Trust::Exact), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_up_later_is_a_named_state_until_then() {
    let rig = asking().await;
    // A port that nobody listens at.
    let http = kvplane_sim::free_address().unwrap();
    add(&rig, json!({"id": "late", "kind": "vllm", "model": "sim", "http": format!("http://{http}")})).await;
    until(&rig, "late", "awaited", |ranks| {
        ranks.len() == 1 && ranks[0].trouble == Some(Trouble::Discovering)
    })
    .await;
    let (code, ready) = call(rig.http, "GET", "/readyz", &Value::Null).await;
    assert_eq!(code, 503);
    assert_eq!(ready["reasons"], json!(["late/0: connecting, trouble discovering"]));
    assert_eq!((&ready["publishers"]["expected"], &ready["publishers"]["heard"]), (&json!(1), &json!(0)));
    let waiting = rig.plane.engine("late").unwrap().streams[0].clone();

    let mut engine = Engine::start(|config| config.http = Some(http));
    engine.work(5);
    let ranks = until(&rig, "late", "heard", all_live).await;
    assert_eq!((ranks[0].trouble, ranks[0].trust.level()), (None, Trust::Exact));
    assert_eq!(ranks[0].troubles, [(Trouble::Discovering, 1)]);
    let stream = rig.plane.engine("late").unwrap().streams[0].clone();
    assert!(Arc::ptr_eq(&waiting, &stream), "whoever followed it before follows it now");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_with_more_ranks_or_elsewhere_is_followed() {
    let mut first = Engine::plain();
    first.work(5);
    let fake = FakeEngine::start(sources(&[&first])).await;
    // Asked only when something happens.
    let rig = Rig::with_options(&[], PlaneOptions::default()).await;
    add(&rig, json!({"id": "dp", "kind": "vllm", "model": "sim", "http": fake.url})).await;
    let before = until(&rig, "dp", "heard", |ranks| ranks.len() == 1 && all_live(ranks)).await;

    let mut again = [Engine::start(|config| config.seed = 1), Engine::start(|config| config.seed = 2)];
    for engine in &mut again {
        engine.work(5);
    }
    fake.say(sources(&[&again[0], &again[1]]));
    first.sim.stop();
    let after = until(&rig, "dp", "of two ranks", |ranks| ranks.len() == 2 && all_live(ranks)).await;
    assert!(after[0].epoch > before[0].epoch, "another publisher is another life");
    assert_eq!(after[0].counters.restarts, 1, "and the ring proved it");
    for (rank, engine) in again.iter().enumerate() {
        let truth = engine.sim.state().remove(0).blocks;
        let truth = truth.into_iter().map(|(hash, copies)| (hash, copies as u64)).collect();
        assert_eq!(held(&rig.plane.engine("dp").unwrap().streams[rank]).await, truth, "rank {rank}");
    }

    // And with fewer.
    fake.say(sources(&[&again[0]]));
    let kept = rig.plane.engine("dp").unwrap().streams[0].clone();
    let gone = rig.plane.engine("dp").unwrap().streams[1].clone();
    again[1].sim.stop();
    until(&rig, "dp", "of one rank", |ranks| ranks.len() == 1).await;
    assert!(gone.removed().is_cancelled() && !kept.removed().is_cancelled());
    assert_eq!(kept.status().epoch, after[0].epoch, "the rank that stayed did not notice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_configured_wins_and_the_rest_is_asked_for() {
    let mut engine = Engine::plain();
    engine.work(5);
    // The engine says where it is from where it is: another address than ours.
    let mut said = source(&engine);
    said["endpoint"] = json!("tcp://10.255.255.1:1");
    let fake = FakeEngine::start(Answer::says(json!({"0": said, "1": said}).to_string())).await;
    let rig = asking().await;
    let events = engine.sim.event_endpoints().remove(0);
    let described = json!({"id": "e", "kind": "vllm", "model": "sim", "http": fake.url, "discover": true,
        "events": events, "ranks": 1});
    add(&rig, described).await;
    // With the replay address, which only the engine knew, all that happened before is known.
    until(&rig, "e", "exact", |ranks| ranks[0].trust.level() == Trust::Exact).await;
    let ranks = rig.plane.engine("e").unwrap().spec.source.ranks();
    assert_eq!(ranks.len(), 1);
    assert_eq!(ranks[0].events, Events::Connect(events));
    assert_eq!(ranks[0].replay, engine.sim.replay_endpoints()[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_size_that_contradicts_the_configured_one_is_an_error_state() {
    let engine = Engine::plain();
    let port: u16 = engine.sim.event_endpoints()[0].rsplit_once(':').unwrap().1.parse().unwrap();
    let said = |block_size: u32| {
        let events = json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": port, "topic": "",
            "block_size": block_size, "dp_size": 1});
        Answer::says(json!({ "kv_events": events }).to_string())
    };
    let fake = FakeEngine::start(said(64)).await;
    let rig = asking().await;
    add(&rig, json!({"id": "e", "kind": "sglang", "model": "sim", "http": fake.url, "block_size": 16})).await;
    let ranks =
        until(&rig, "e", "wrong", |ranks| all_live(ranks) && ranks[0].trouble == Some(Trouble::BlockSize))
            .await;
    assert_eq!(ranks[0].trust.level(), Trust::Unverified);
    assert!(ranks[0].trust.has(Reason::BlockSize), "{:?}", ranks[0].trust);
    assert_eq!(ranks[0].journal.block_size_contradictions, 1);
    let (_, ready) = call(rig.http, "GET", "/readyz", &Value::Null).await;
    assert_eq!(ready["reasons"], json!(["e/0: live, trouble block_size"]));

    // It is asked again after a restart, and then it is right.
    fake.say(said(16));
    engine.sim.fault(None, kvplane_sim::Fault::Disconnect);
    let ranks = until(&rig, "e", "right", |ranks| all_live(ranks) && ranks[0].trouble.is_none()).await;
    assert!(!ranks[0].trust.has(Reason::BlockSize));
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_that_events_do_not_name_are_reported_as_trust() {
    let mut engine = Engine::start(|config| config.profile = Profile::Sglang0_5_22);
    engine.work(3);
    let [events, replay] =
        [engine.sim.event_endpoints().remove(0), engine.sim.replay_endpoints().remove(0).unwrap()]
            .map(|address| address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap());
    let said = |format: &str| {
        let config = json!({ "publisher": "zmq", "format": format }).to_string();
        let events = json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": events,
            "replay_endpoint_port_base": replay, "topic": "", "block_size": 16, "dp_size": 1});
        Answer::says(
            json!({ "kv_events": events, "enable_lora": true, "kv_events_config": config }).to_string(),
        )
    };
    let fake = FakeEngine::start(said("default")).await;
    let rig = asking().await;
    add(&rig, json!({"id": "e", "kind": "sglang", "model": "sim", "http": fake.url})).await;
    let untold = |ranks: &[StreamStatus]| ranks[0].trust.has(Reason::UntoldAdapters);
    let last = engine.next_sequence().checked_sub(1);
    let heard = |ranks: &[StreamStatus]| all_live(ranks) && ranks[0].engine_sequence == last;
    let ranks = until(&rig, "e", "doubted", |ranks| heard(ranks) && untold(ranks)).await;
    assert_eq!(ranks[0].trust.level(), Trust::Unverified);
    // Asked again after a reconnect, it says that it names them.
    fake.say(said("dynamo"));
    engine.sim.fault(None, kvplane_sim::Fault::Disconnect);
    let ranks = until(&rig, "e", "believed", |ranks| heard(ranks) && !untold(ranks)).await;
    assert_eq!(ranks[0].trust.level(), Trust::Exact);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_answers_are_named_and_never_disturb_a_stream_that_is_heard() {
    let mut engine = Engine::plain();
    engine.work(5);
    let fake = FakeEngine::start(sources(&[&engine])).await;
    let rig = asking().await;
    // Rank 1 is always missing, so that the engine is asked again and again.
    add(&rig, json!({"id": "e", "kind": "vllm", "model": "sim", "http": fake.url, "ranks": 2})).await;
    let before = until(&rig, "e", "half heard", |ranks| {
        ranks[0].continuity == Continuity::Live && ranks[1].trouble == Some(Trouble::NoSources)
    })
    .await;
    let twice = json!({"0": source(&engine), "1": source(&engine)});
    let answers = [
        (Answer::says("<html>502 Bad Gateway</html>"), Trouble::BadAnswer),
        (Answer { status: 500, ..Answer::says("{}") }, Trouble::BadAnswer),
        (Answer { status: 404, ..Answer::says("{}") }, Trouble::NoSources),
        (Answer::says("x".repeat(10 << 20)), Trouble::BadAnswer),
        (Answer::says(json!({"0": {"publisher": "null"}}).to_string()), Trouble::EventsDisabled),
        (Answer::says(json!({"-1": source(&engine)}).to_string()), Trouble::BadAnswer),
        (Answer::says(json!({"0": {"endpoint": 5557}}).to_string()), Trouble::BadAnswer),
        (Answer::says("[".repeat(100_000)), Trouble::BadAnswer),
        (Answer::says(json!({}).to_string()), Trouble::NoSources),
        (Answer::says(twice.to_string()), Trouble::SharedAddress),
        (Answer { hangs: true, ..Answer::says("") }, Trouble::Discovering),
    ];
    for (answer, trouble) in answers {
        let body = answer.body.chars().take(60).collect::<String>();
        fake.say(answer);
        until(&rig, "e", &format!("{trouble} for {body}"), |ranks| ranks[1].trouble == Some(trouble)).await;
    }
    engine.work(5);
    let last = engine.next_sequence().checked_sub(1);
    let after = until(&rig, "e", "further", |ranks| ranks[0].engine_sequence == last).await;
    assert_eq!((after[0].epoch, after[0].counters.disconnects), (before[0].epoch, 0));
    assert_eq!((after[0].trouble, after[0].trust.level()), (None, Trust::Exact));
    let (_, status) = call(rig.http, "GET", "/v1/status", &Value::Null).await;
    assert_eq!(status["engines"][0]["ranks"][1]["trouble"], "discovering");
    assert_eq!(status["engines"][0]["ranks"][1]["counters"]["troubles"]["shared_address"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_an_address_has_a_name_until_somebody_is_there() {
    let rig = asking().await;
    let address = kvplane_sim::free_address().unwrap();
    let events = format!("tcp://{address}");
    add(&rig, json!({"id": "e", "kind": "vllm", "model": "sim", "events": events})).await;
    until(&rig, "e", "named", |ranks| ranks[0].trouble == Some(Trouble::Unreached)).await;
    let page = text(rig.http, "/metrics").await;
    for line in [
        "kvplane_publishers_expected{engine=\"e\"} 1",
        "kvplane_publishers_heard{engine=\"e\"} 0",
        "kvplane_source_trouble{engine=\"e\",rank=\"0\",trouble=\"unreached\"} 1",
        "kvplane_source_troubles_total{engine=\"e\",rank=\"0\",trouble=\"unreached\"} 1",
    ] {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
    let _engine = Engine::start(|config| config.events = Endpoint::Bind(events));
    until(&rig, "e", "heard", |ranks| all_live(ranks) && ranks[0].trouble.is_none()).await;
}

/// A page that is not JSON.
async fn text(address: SocketAddr, path: &str) -> String {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let page = client.get(format!("http://{address}{path}").parse().unwrap()).await.unwrap();
    String::from_utf8(page.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}
