//! Engines that come and go: other engines' subscribers do not notice, and their own get a status.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvplane_core::{Continuity, Trust};
use kvplane_ingest::{Origin, PlaneOptions, StreamStatus};
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::kvplane::v1::{ResetReason, StreamSelector};
use kvplane_proto::smg::SubscribeKvEventsRequest;
use kvplane_server::{EngineConfig, EnginePlan, Reloaded};
use kvplane_sim::{CompletionOptions, Fault, ReplayMode};
use kvplane_socket::Endpoint;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::Code;

use crate::rig::{DEADLINE, Engine, Rig, held, soon_down};

/// Asks the plane over HTTP.
pub async fn ask(rig: &Rig, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", rig.http))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(if body.is_null() { String::new() } else { body.to_string() })))
        .unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// An engine as `POST /v1/engines` takes it.
fn described(id: &str, engine: &Engine) -> Value {
    json!({
        "id": id,
        "kind": "vllm",
        "model": "sim",
        "events": engine.sim.event_endpoints()[0],
        "replay": engine.sim.replay_endpoints()[0],
        "http": engine.sim.http_address().map(|address| format!("http://{address}")),
    })
}

fn plan(described: Value) -> EnginePlan {
    serde_json::from_value::<EngineConfig>(described).unwrap().plan().unwrap()
}

async fn status_of(rig: &Rig, id: &str, wanted: impl Fn(&StreamStatus) -> bool) -> StreamStatus {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let status = rig.plane.engine(id).unwrap().streams[0].status();
        if wanted(&status) {
            return status;
        }
        assert!(std::time::Instant::now() < deadline, "{id}: {status:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the plane knows exactly what the engine holds.
async fn exact(rig: &Rig, id: &str, engine: &Engine) -> StreamStatus {
    let last = engine.next_sequence().checked_sub(1);
    let status = status_of(rig, id, |s| s.continuity == Continuity::Live && s.engine_sequence == last).await;
    assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
    let truth: BTreeMap<u64, u64> =
        engine.sim.state().remove(0).blocks.into_iter().map(|(hash, copies)| (hash, copies as u64)).collect();
    assert_eq!(held(&rig.plane.engine(id).unwrap().streams[0]).await, truth);
    status
}

fn selector(engine: &str) -> StreamSelector {
    StreamSelector { engine: engine.to_owned(), rank: None, resume: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_come_and_go_under_load_and_the_others_do_not_notice() {
    let mut steady = Engine::plain();
    let mut guest = Engine::start(|config| config.seed = 1);
    guest.work(10);
    let rig = Rig::over(&[&steady]).await;
    let before = rig.live(0).await;
    let mut subscriber = rig.subscribe(None).await;
    let stop = Arc::new(AtomicBool::new(false));
    let until = stop.clone();
    let load = std::thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            steady.work(1);
        }
        steady
    });
    let mut epochs = Vec::new();
    for _ in 0..5 {
        let (code, added) = ask(&rig, "POST", "/v1/engines", &described("guest", &guest)).await;
        assert_eq!((code, added["added_by"].as_str()), (201, Some("api")), "{added}");
        epochs.push(exact(&rig, "guest", &guest).await.epoch);
        guest.work(2);
        exact(&rig, "guest", &guest).await;
        let stream = rig.plane.engine("guest").unwrap().streams[0].clone();
        assert_eq!(ask(&rig, "DELETE", "/v1/engines/guest", &Value::Null).await.0, 204);
        assert!(stream.removed().is_cancelled());
        assert!(held(&stream).await.is_empty(), "what a removed engine held is let go of");
        assert!(rig.plane.engine("guest").is_none());
        let page = ask(&rig, "GET", "/v1/status", &Value::Null).await.1;
        assert_eq!(page["engines"].as_array().unwrap().len(), 1);
    }
    assert!(epochs.is_sorted_by(|one, next| one < next), "epochs rise over removals: {epochs:?}");
    stop.store(true, Ordering::Relaxed);
    let steady = load.join().unwrap();
    let after = rig.exact(0, &steady).await;
    assert_eq!(after.epoch, before.epoch);
    let counted = &after.counters;
    assert_eq!((counted.gaps, counted.disconnects, counted.restarts, counted.unproven), (0, 0, 0, 0));
    subscriber.catch_up(&rig).await;
    assert_eq!(subscriber.resets, [ResetReason::Start]);
    assert_eq!(subscriber.blocks, held(&rig.stream(0)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_of_a_removed_engine_get_a_status_and_those_of_all_go_on() {
    let mut engines = [Engine::plain(), Engine::start(|config| config.seed = 1)];
    for engine in &mut engines {
        engine.work(5);
    }
    let rig = Rig::over(&[&engines[0], &engines[1]]).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.exact(at, engine).await;
    }
    let mut named = rig.subscribe_to(vec![selector("e1")]).await;
    let mut all = rig.subscribe_to(vec![]).await;
    let mut client = VllmEngineClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let request = SubscribeKvEventsRequest { start_sequence_number: 0, ..Default::default() };
    let mut request = tonic::Request::new(request);
    request.metadata_mut().insert("kvplane-engine", "e1".parse().unwrap());
    let mut gateway = client.subscribe_kv_events(request).await.unwrap().into_inner();
    // Both streams' snapshots.
    while all.resets.len() < 2 {
        all.next().await.unwrap();
    }
    rig.fleet.remove("e1").await.unwrap();
    let end = loop {
        if let Err(status) = named.next().await {
            break status;
        }
    };
    assert_eq!(end.code(), Code::NotFound, "{end}");
    assert!(end.message().contains("e1") && end.message().contains("removed"), "{end}");
    let end = loop {
        match tokio::time::timeout(DEADLINE, gateway.message()).await.unwrap() {
            Ok(batch) => assert!(batch.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::DataLoss, "a gateway must forget: {end}");
    while all.gone == 0 {
        all.next().await.unwrap();
    }
    let (batches, text) = (all.batches, metrics(&rig).await);
    assert!(text.contains("engine=\"e0\"") && !text.contains("engine=\"e1\""));
    engines[0].work(3);
    while all.batches == batches {
        all.next().await.unwrap();
    }
    // It comes back under its name, and who follows all begins with it anew.
    rig.plane.add(vec![engines[1].spec("e1")], Origin::Api).unwrap();
    exact(&rig, "e1", &engines[1]).await;
    while all.resets.len() < 3 {
        all.next().await.unwrap();
    }
    assert_eq!(all.gone, 1);
}

async fn metrics(rig: &Rig) -> String {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let page = client.get(format!("http://{}/metrics", rig.http).parse().unwrap()).await.unwrap();
    String::from_utf8(page.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_under_way_ends_with_its_engine() {
    let mut engine = Engine::plain();
    engine.work(3);
    engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
    let never = Duration::from_hours(1);
    let options = PlaneOptions { replay_idle: never, replay_deadline: never, ..PlaneOptions::default() };
    let rig = Rig::with_options(&[&engine], options).await;
    rig.until(0, "asking", |s| s.counters.replays == 1 && s.continuity == Continuity::Recovering).await;
    let stream = Arc::downgrade(&rig.stream(0));
    rig.fleet.remove("e0").await.unwrap();
    // An answer that is waited for holds the stream.
    let deadline = std::time::Instant::now() + DEADLINE;
    while stream.upgrade().is_some() {
        assert!(std::time::Instant::now() < deadline, "somebody still holds the stream");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_added_changes_nothing() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let somebody_else = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = somebody_else.local_addr().unwrap();
    let good = json!({"id": "new", "kind": "vllm", "events": "tcp://127.0.0.1:9"});
    let with = |key: &str, value: Value| {
        let mut changed = good.clone();
        changed[key] = value;
        changed
    };
    let republished = |address: String| with("republish", json!({"events": address}));
    let cases = [
        (with("colour", json!("red")), 400, "invalid_argument", "colour"),
        (with("kind", json!("vlm")), 400, "invalid_argument", "vlm"),
        (with("events", json!("here")), 400, "invalid_argument", "events: \"here\" is not an address"),
        (with("ranks", json!(0)), 400, "invalid_argument", "ranks"),
        (with("id", json!("two words")), 400, "invalid_argument", "id"),
        (with("id", json!("e0")), 409, "conflict", "used twice"),
        (with("front", json!("127.0.0.1:1")), 400, "invalid_argument", "grpc"),
        (republished("here".to_owned()), 400, "invalid_argument", "tcp://host:port"),
        (republished(format!("tcp://{taken}")), 409, "conflict", "in use"),
        (with("events", json!(format!("bind:tcp://{taken}"))), 409, "conflict", "in use"),
        (json!({"id": "new"}), 400, "invalid_argument", "kind"),
        (
            with("ranks", json!("many")),
            400,
            "invalid_argument",
            "ranks: invalid type: string \"many\", expected a whole number",
        ),
        (json!("no"), 400, "invalid_argument", "an object with keys"),
    ];
    let before = rig.plane.engines();
    for (body, status, code, word) in cases {
        let (got, answer) = ask(&rig, "POST", "/v1/engines", &body).await;
        let error = &answer["error"];
        assert_eq!((got, error["code"].as_str()), (status, Some(code)), "{body}: {answer}");
        assert!(error["next"].as_str().is_some_and(|next| !next.is_empty()), "{answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.to_lowercase().contains(&word.to_lowercase()), "{body}: {message}");
    }
    let huge = with("model", json!("x".repeat(100_000)));
    assert_eq!(ask(&rig, "POST", "/v1/engines", &huge).await.0, 400);
    assert_eq!(ask(&rig, "DELETE", "/v1/engines/new", &Value::Null).await.0, 404);
    assert_eq!(ask(&rig, "PUT", "/v1/engines", &Value::Null).await.0, 405);
    assert!(Arc::ptr_eq(&before, &rig.plane.engines()), "nothing has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_may_be_only_so_many_engines() {
    let options = PlaneOptions { max_engines: 1, ..PlaneOptions::default() };
    let engine = Engine::plain();
    let rig = Rig::with_options(&[&engine], options).await;
    let (code, answer) = ask(&rig, "POST", "/v1/engines", &described("one-more", &engine)).await;
    assert_eq!((code, answer["error"]["code"].as_str()), (429, Some("limit_reached")), "{answer}");
    let one_more =
        json!({"instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 16});
    assert_eq!(ask(&rig, "POST", "/register", &one_more).await.0, 429);
}

/// A path that only this test uses.
fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvplane-{}-{name}.ipc", std::process::id()))
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_a_bound_socket_come_and_go_one_by_one() {
    let address = format!("ipc://{}", socket_path("topics").display());
    let start = |seed: u64, topic: &str| {
        let (address, topic) = (address.clone(), topic.to_owned());
        Engine::start(move |config| {
            config.seed = seed;
            config.topic = topic;
            config.events = Endpoint::Connect(address);
        })
    };
    let mut engines = [start(0, "kv@a"), start(1, "kv@b")];
    let rig = Rig::over(&[]).await;
    let bound = |id: &str, engine: &Engine| {
        json!({
            "id": id, "kind": "vllm", "topic": format!("kv@{id}"),
            "events": format!("bind:{address}"), "replay": engine.sim.replay_endpoints()[0],
        })
    };
    let add = async |id: &str, engine: &Engine| {
        let (code, answer) = ask(&rig, "POST", "/v1/engines", &bound(id, engine)).await;
        assert_eq!(code, 201, "{answer}");
    };
    add("a", &engines[0]).await;
    engines[0].work(3);
    let first = exact(&rig, "a", &engines[0]).await;
    // Two engines with one topic cannot be distinguished.
    let mut twin = bound("a", &engines[0]);
    twin["id"] = json!("twin");
    assert_eq!(ask(&rig, "POST", "/v1/engines", &twin).await.0, 409);
    // A second one joins the socket that is there, with its engine connected long before.
    engines[1].work(3);
    add("b", &engines[1]).await;
    exact(&rig, "b", &engines[1]).await;
    for engine in &mut engines {
        engine.work(2);
    }
    let b = exact(&rig, "b", &engines[1]).await;
    let a = exact(&rig, "a", &engines[0]).await;
    assert_eq!((a.epoch, a.counters.gaps), (first.epoch, 0));
    // The first one leaves; the second goes on.
    rig.fleet.remove("a").await.unwrap();
    for engine in &mut engines {
        engine.work(2);
    }
    let later = exact(&rig, "b", &engines[1]).await;
    assert_eq!((later.epoch, later.counters.gaps), (b.epoch, 0));
    // With the last one the socket closes, and can be opened again at once.
    rig.fleet.remove("b").await.unwrap();
    add("a", &engines[0]).await;
    let again = exact(&rig, "a", &engines[0]).await;
    assert!(again.epoch > first.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn fronts_and_republished_sockets_come_and_go_with_their_engine() {
    let mut engine = Engine::plain();
    engine.work(3);
    let rig = Rig::over(&[]).await;
    let first = kvplane_sim::free_ports(3).unwrap();
    let [front, events, replay] = [0, 1, 2].map(|at| SocketAddr::from(([127, 0, 0, 1], first + at)));
    let mut body = described("e", &engine);
    body["grpc"] = json!("http://127.0.0.1:9");
    body["front"] = json!(front.to_string());
    body["republish"] = json!({"events": format!("tcp://{events}"), "replay": format!("tcp://{replay}")});
    for _ in 0..3 {
        let (code, answer) = ask(&rig, "POST", "/v1/engines", &body).await;
        assert_eq!(code, 201, "{answer}");
        exact(&rig, "e", &engine).await;
        for port in [front, events, replay] {
            TcpStream::connect(port).await.unwrap();
        }
        assert!(metrics(&rig).await.contains("kvplane_front_own_calls_total{engine=\"e\"}"));
        assert_eq!(ask(&rig, "DELETE", "/v1/engines/e", &Value::Null).await.0, 204);
        assert!(!metrics(&rig).await.contains("engine=\"e\""));
    }
    let deadline = std::time::Instant::now() + DEADLINE;
    for port in [front, events, replay] {
        while TcpStream::connect(port).await.is_ok() {
            assert!(std::time::Instant::now() < deadline, "{port} is still open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    rig.fleet.shutdown();
}

/// Strangers at sockets of events, heard or republished, are in `/metrics`.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_turned_away_at_a_socket_of_events_is_counted() {
    let engine = Engine::plain();
    let rig = Rig::over(&[]).await;
    let first = kvplane_sim::free_ports(2).unwrap();
    let [heard, published] = [0, 1].map(|at| SocketAddr::from(([127, 0, 0, 1], first + at)));
    let mut body = described("published", &engine);
    body["republish"] = json!({"events": format!("tcp://{published}")});
    let bound = json!({"id": "heard", "kind": "vllm", "events": format!("bind:tcp://{heard}")});
    for body in [body, bound] {
        let (code, answer) = ask(&rig, "POST", "/v1/engines", &body).await;
        assert_eq!(code, 201, "{answer}");
    }
    for (port, socket) in [(heard, "events"), (published, "republish")] {
        let mut stranger = TcpStream::connect(port).await.unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nhost: a-browser-that-is-lost\r\nx: y\r\n\r\n").await.unwrap();
        let _ = timeout(DEADLINE, stranger.read_to_end(&mut Vec::new())).await.expect("it is closed");
        let series = format!("kvplane_event_sockets_refused_total{{socket=\"{socket}\",reason=\"");
        // The thread that closed it counts when it is done with it.
        let counted = async {
            while !metrics(&rig).await.contains(&series) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, counted).await.unwrap_or_else(|_| panic!("{socket} was never counted"));
    }
    rig.fleet.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_applies_what_differs_and_keeps_what_came_by_calls() {
    let engines: Vec<Engine> = (0..4).map(|seed| Engine::start(|config| config.seed = seed)).collect();
    let rig = Rig::over(&[]).await;
    let configured = |ids: &[(&str, usize)]| -> Vec<EnginePlan> {
        ids.iter().map(|(id, engine)| plan(described(id, &engines[*engine]))).collect()
    };
    rig.fleet.add(configured(&[("same", 0), ("other", 1), ("gone", 2)]), Origin::Config).await.unwrap();
    ask(&rig, "POST", "/v1/engines", &described("called", &engines[3])).await;
    let same = rig.plane.engine("same").unwrap();
    let plans = configured(&[("same", 0), ("other", 2), ("new", 1), ("called", 0)]);
    let reloaded = rig.fleet.reload(plans).await.unwrap();
    let expected = Reloaded { added: 1, removed: 1, changed: 1, unchanged: 2, failed: 0 };
    assert_eq!(reloaded, expected);
    assert!(Arc::ptr_eq(&same, &rig.plane.engine("same").unwrap()), "what did not change was not touched");
    let origin = |id: &str| rig.plane.engine(id).map(|engine| engine.origin);
    assert_eq!((origin("called"), origin("gone")), (Some(Origin::Api), None));
    // Plans that cannot be change nothing.
    let mut twice = configured(&[("same", 0)]);
    let bound = json!({"kind": "vllm", "events": format!("bind:ipc://{}", socket_path("reload").display())});
    for id in ["x", "y"] {
        let mut body = bound.clone();
        body["id"] = json!(id);
        twice.push(plan(body));
    }
    let before = rig.plane.engines();
    assert!(rig.fleet.reload(twice).await.is_err());
    assert!(Arc::ptr_eq(&before, &rig.plane.engines()));
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_register_rank_by_rank() {
    let mut engines = [Engine::plain(), Engine::start(|config| config.seed = 1)];
    for engine in &mut engines {
        engine.work(3);
    }
    let rig = Rig::over(&[]).await;
    let register = |engine: usize, rank: u32| {
        json!({
            "instance_id": 7, "endpoint": engines[engine].sim.event_endpoints()[0], "model_name": "sim",
            "block_size": 16, "dp_rank": rank, "replay_endpoint": engines[engine].sim.replay_endpoints()[0],
            "tenant_id": "ignored", "additional_salt": null,
        })
    };
    assert_eq!(ask(&rig, "POST", "/register", &register(0, 3)).await, (201, json!({"status": "ok"})));
    let first = exact(&rig, "instance-7", &engines[0]).await;
    // A gateway follows the engine while it has one rank.
    let mut client = VllmEngineClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let mut gateway =
        client.subscribe_kv_events(SubscribeKvEventsRequest::default()).await.unwrap().into_inner();
    let with = |key: &str, value: Value| {
        let mut changed = register(1, 5);
        changed[key] = value;
        changed
    };
    let refused = [
        (register(1, 3), 409),
        (with("model_name", json!("other")), 409),
        (with("routing_group", json!("other")), 409),
        (with("block_size", json!(32)), 409),
        (with("block_size", json!(0)), 400),
        (with("endpoint", json!("here")), 400),
        (with("replay_endpoint", json!("here")), 400),
    ];
    for (body, code) in refused {
        let (got, answer) = ask(&rig, "POST", "/register", &body).await;
        assert_eq!(got, code, "{body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    assert_eq!(ask(&rig, "POST", "/register", &register(1, 0)).await.0, 201);
    let engine = rig.plane.engine("instance-7").unwrap();
    assert_eq!(engine.streams.iter().map(|stream| stream.id().rank).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(engine.stream(3).unwrap().status().epoch, first.epoch, "the other rank does not notice");
    let end = loop {
        match tokio::time::timeout(DEADLINE, gateway.message()).await.unwrap() {
            Ok(batch) => assert!(batch.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::DataLoss, "with two ranks the engine is another thing: {end}");
    let listening = |answer: &Value| {
        let worker = &answer[0];
        assert_eq!((&worker["instance_id"], &worker["source"]), (&json!(7), &json!("zmq")));
        assert_eq!((&worker["block_size"], &worker["routing_group"]), (&json!(16), &json!("default")));
        worker["status"] == "active" && worker["endpoints"].as_object().unwrap().len() == 2
    };
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let (_, answer) =
            ask(&rig, "GET", "/workers?model_name=sim&routing_group=default", &Value::Null).await;
        if listening(&answer) {
            assert_eq!(answer[0]["listeners"]["3"]["status"], "active", "{answer}");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{answer}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ask(&rig, "GET", "/workers?model_name=none", &Value::Null).await.1, json!([]));
    merged_ranks_follow_registrations(&rig, &engines).await;
    let unregister = |rest: Value| {
        let mut body = json!({"instance_id": 7, "model_name": "sim"});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        body
    };
    let refused = [
        unregister(json!({"model_name": "none"})),
        unregister(json!({"instance_id": 8})),
        unregister(json!({"routing_group": "other"})),
        unregister(json!({"routing_group": "default", "dp_rank": 9})),
    ];
    for body in refused {
        assert_eq!(ask(&rig, "POST", "/unregister", &body).await.0, 404, "{body}");
    }
    // Without a group the rank is not honoured: the instance goes.
    assert_eq!(ask(&rig, "POST", "/unregister", &unregister(json!({"dp_rank": 3}))).await.0, 200);
    assert!(rig.plane.engines().is_empty());
}

/// A gateway that follows merged ranks keeps what the remaining one holds when the other is unregistered.
async fn merged_ranks_follow_registrations(rig: &Rig, engines: &[Engine]) {
    let held_by = |engine: &Engine| -> BTreeMap<i64, u32> {
        engine.sim.state().remove(0).blocks.into_keys().map(|hash| (hash as i64, 1)).collect()
    };
    let mut both = held_by(&engines[0]);
    both.extend(held_by(&engines[1]));
    let mut gateway = crate::faults::smg::subscribe(rig, 0, &[]).await.unwrap();
    gateway.until(&both).await;
    let body = json!({"instance_id": 7, "model_name": "sim", "routing_group": "default", "dp_rank": 0});
    assert_eq!(ask(rig, "POST", "/unregister", &body).await.0, 200);
    gateway.until(&held_by(&engines[0])).await;
    let endpoint = &engines[1].sim.event_endpoints()[0];
    let body = json!({
        "instance_id": 7, "model_name": "sim", "block_size": 16, "dp_rank": 11, "endpoint": endpoint,
        "replay_endpoint": engines[1].sim.replay_endpoints()[0],
    });
    assert_eq!(ask(rig, "POST", "/register", &body).await.0, 201);
    gateway.until(&both).await;
    engines[0].sim.complete(&[9; 64], 1, &CompletionOptions::default()).unwrap();
    engines[0].sim.state();
    both.extend(held_by(&engines[0]));
    gateway.until(&both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_are_remembered() {
    let rig = Rig::over(&[]).await;
    let peer = json!({"url": "http://10.0.0.1:8090", "more": 1});
    assert_eq!(ask(&rig, "POST", "/register_peer", &peer).await.0, 201);
    assert_eq!(ask(&rig, "GET", "/peers", &Value::Null).await, (200, json!(["http://10.0.0.1:8090"])));
    assert_eq!(ask(&rig, "POST", "/deregister_peer", &peer).await.0, 200);
    assert_eq!(ask(&rig, "POST", "/deregister_peer", &peer).await.0, 404);
    assert_eq!(ask(&rig, "GET", "/health", &Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_whose_only_engine_is_down_is_ready_and_says_so() {
    let mut engine = Engine::plain();
    engine.work(2);
    let rig = Rig::with_options(&[&engine], soon_down()).await;
    rig.exact(0, &engine).await;
    let (code, ready) = ask(&rig, "GET", "/readyz", &Value::Null).await;
    assert_eq!((code, &ready["reasons"]), (200, &json!([])));
    engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
    engine.sim.fault(None, Fault::Disconnect);
    rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
    let (code, ready) = ask(&rig, "GET", "/readyz", &Value::Null).await;
    assert_eq!((code, &ready["ready"]), (200, &json!(true)), "{ready}");
    assert_eq!(ready["reasons"][0], "no engine is live", "{ready}");
    assert!(ready["reasons"][1].as_str().is_some_and(|reason| reason.starts_with("e0/0: down")), "{ready}");
    let (code, _) = ask(&rig, "GET", "/readyz?strict=1", &Value::Null).await;
    assert_eq!(code, 503);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_the_health_does_not_hold_up_a_stop() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    let plane = kvplane_ingest::Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = grpc.local_addr().unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let service = kvplane_server::Service::new(plane.clone(), kvplane_server::Options::default());
    let serving = tokio::spawn(service.run(http, grpc, stop.clone()));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let mut watched = client.watch(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
    let first = watched.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    stop.cancel();
    // The servers wait for calls without a limit of their own.
    tokio::time::timeout(DEADLINE, serving).await.expect("a watcher holds up the stop").unwrap();
    let mut last = first;
    while let Ok(Some(next)) = watched.message().await {
        last = next;
    }
    assert_eq!(last.status(), ServingStatus::NotServing);
    tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
}
