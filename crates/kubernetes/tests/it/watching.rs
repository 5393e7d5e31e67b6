//! The watcher against an API server that does what a real one did, and worse.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kvplane_kubernetes::watch::{
    Fleet, Pace, PoolSelect, PoolSource, PoolState, Select, Source, Way, follow_pool, run,
};
use kvplane_kubernetes::{Board, ModelRule, Settings, SourceReport, SourceState, Wanted, Where};
use kvplane_transport::HttpClient;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::server::{ApiServer, Fault, Front};

const DEADLINE: Duration = Duration::from_secs(30);

/// A fleet that only remembers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    pub(crate) engines: Arc<Mutex<BTreeMap<String, Wanted>>>,
    /// Names in the order in which they were reported, with a `-` in front of those that went.
    touched_engines: Arc<Mutex<Vec<String>>>,
}

impl Fleet for Memory {
    fn change(&mut self, changes: Vec<(String, Option<Wanted>)>) -> BoxFuture<'_, Vec<(String, String)>> {
        for (id, wanted) in changes {
            self.touched_engines.lock().push(if wanted.is_some() { id.clone() } else { format!("-{id}") });
            match wanted {
                Some(wanted) => self.engines.lock().insert(id, wanted),
                None => self.engines.lock().remove(&id),
            };
        }
        Box::pin(async { Vec::new() })
    }
}

/// A source that runs; `S` is what it watches.
pub(crate) struct Rig<S = ApiServer> {
    pub(crate) server: S,
    memory: Memory,
    board: Board,
    stop: CancellationToken,
}

impl<S> Drop for Rig<S> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn source(server: &ApiServer, token_file: Option<&std::path::Path>) -> Source {
    source_at(server.kubeconfig(token_file), "ns")
}

pub(crate) fn source_at(kubeconfig: std::path::PathBuf, namespace: &str) -> Source {
    Source {
        name: "test".to_owned(),
        way: Way::Kubeconfig { file: kubeconfig, context: None },
        namespace: Some(namespace.to_owned()),
        select: Select::Labels("app=vllm".to_owned()),
        slices: false,
        settings: Settings { model: ModelRule::Is("m".to_owned()), ..Settings::default() },
        linger_ms: 50,
        pace: quick(),
    }
}

/// A source that does not wait long after a failure.
fn quick() -> Pace {
    Pace { pause: Duration::from_millis(20), ..Pace::default() }
}

pub(crate) fn start<S>(server: S, source: Source) -> Rig<S> {
    let rig =
        Rig { server, memory: Memory::default(), board: Board::default(), stop: CancellationToken::new() };
    let running = run(source, rig.board.clone(), rig.memory.clone(), HttpClient::new(), rig.stop.clone());
    kvplane_runtime::spawn("source", running);
    rig
}

impl<S> Rig<S> {
    pub(crate) fn engines(&self) -> BTreeMap<String, String> {
        let engines = self.memory.engines.lock();
        let at = |wanted: &Wanted| match &wanted.at {
            Where::Known(ranks) => ranks.iter().map(|rank| rank.events.clone()).collect::<Vec<_>>().join(" "),
            asked @ Where::Asked { .. } => format!("{asked:?}"),
        };
        engines.iter().map(|(id, wanted)| (id.clone(), at(wanted))).collect()
    }

    pub(crate) fn report(&self) -> SourceReport {
        self.board.sources().pop().unwrap_or_default()
    }

    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(DEADLINE, async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let touched_engines = || (self.engines(), self.report(), self.memory.touched_engines.lock().clone());
        assert!(waited.await.is_ok(), "{what}: {:#?}", touched_engines());
    }

    async fn until_engines(&self, expected: &[(&str, u8)]) {
        let named =
            expected.iter().map(|(name, address)| (format!("ns/{name}"), format!("10.0.0.{address}")));
        self.until_engines_at(named.collect()).await;
    }

    /// Waits until the engines are these: their names and addresses.
    pub(crate) async fn until_engines_at(&self, expected: BTreeMap<String, String>) {
        let at = |(name, address)| (name, format!("tcp://{address}:5557"));
        let expected: BTreeMap<String, String> = expected.into_iter().map(at).collect();
        self.until(&format!("{expected:?}"), |rig| rig.engines() == expected).await;
    }
}

fn pod(name: &str, uid: &str, address: Option<u8>) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "creationTimestamp": format!("2026-11-18T10:{uid:0>6}Z"),
            "labels": {"app": "vllm"}, "annotations": {"kvplane.io/replay": "none"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}],
        },
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"name": "kv-events", "containerPort": 5557, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": address.map(|address| format!("10.0.0.{address}"))},
    })
}

fn unlabelled(mut pod: Value) -> Value {
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_come_change_and_go() {
    let server = ApiServer::start().await;
    server.put("pods", pod("a", "1", Some(1)));
    server.put("pods", unlabelled(pod("w", "2", Some(2))));
    let source = source(&server, None);
    let rig = start(server, source);
    rig.until_engines(&[("a", 1)]).await;
    // Enough for several pages, and one without an address.
    for n in 3..9_u8 {
        rig.server.put("pods", pod(&format!("n{n}"), &n.to_string(), (n > 3).then_some(n)));
    }
    rig.until_engines(&[("a", 1), ("n4", 4), ("n5", 5), ("n6", 6), ("n7", 7), ("n8", 8)]).await;
    rig.server.put("pods", pod("w", "2", Some(2)));
    rig.server.put("pods", unlabelled(pod("n8", "8", Some(8))));
    rig.server.delete("pods", "n7");
    rig.until_engines(&[("a", 1), ("n4", 4), ("n5", 5), ("n6", 6), ("w", 2)]).await;
    let report = rig.report();
    assert_eq!(
        (report.state, report.pods, report.engines, report.counted.lists),
        (SourceState::Watching, 6, 5, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_real_server_said_is_understood() {
    let read = |name: &str| {
        std::fs::read_to_string(format!("{}/tests/captures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let server = ApiServer::start().await;
    let list: Value = serde_json::from_str(&read("pods-list.json")).unwrap();
    let mut recorded = list["items"][0].clone();
    // It never had an address: nothing ran there. Here it has, and so do its changes.
    let addressed = |pod: &mut Value| pod["status"]["podIP"] = "10.0.0.9".into();
    addressed(&mut recorded);
    server.put("pods", recorded);
    let recorded_lines = read("pods-watch.jsonl");
    let lines = recorded_lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        if event["object"]["metadata"]["name"] == "vllm-0" {
            addressed(&mut event["object"]);
        }
        format!("{event}\n")
    });
    let lines: Vec<String> = lines.collect();
    // The label leaves and comes back, under the same uid; the pod is deleted; the server has no streaming
    // lists, and then the past is too old.
    server.fail(Fault::Lines(lines[..3].concat()));
    server.fail(Fault::Lines(lines[3..].concat() + &read("pods-watchlist.jsonl") + &read("expired.json")));
    let source = Source { namespace: Some("default".to_owned()), ..source(&server, None) };
    let rig = start(server, source);
    rig.until("listed", |rig| rig.engines().contains_key("default/vllm-0")).await;
    let wanted = rig.memory.engines.lock()["default/vllm-0"].clone();
    assert_eq!(wanted.model, "llama", "the annotation comes before the setting");
    assert_eq!(wanted.remarks.len(), 2, "{:?}", wanted.remarks);
    assert!(
        wanted.remarks[0].text.starts_with("kvplane.io/events-port is not known"),
        "{:?}",
        wanted.remarks
    );
    rig.server.delete("pods", "vllm-0");
    rig.until("gone", |rig| rig.engines().is_empty()).await;
    rig.until("listed again", |rig| rig.report().counted.lists >= 2).await;
    assert_eq!((rig.report().counted.expired, rig.report().counted.failed), (1, 1));
    rig.server.put("pods", pod("b", "7", Some(7)));
    rig.until("a new one", |rig| rig.engines().contains_key("ns/b")).await;
    assert_eq!(rig.report().state, SourceState::Watching);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rights_without_a_server_and_without_a_token_what_is_known_stays() {
    let server = ApiServer::start().await;
    let token = std::env::temp_dir().join(format!("token-{}", server.address.port()));
    std::fs::write(&token, "first").unwrap();
    server.set_token("first");
    server.put("pods", pod("a", "1", Some(1)));
    server.forbid("pods");
    let source = source(&server, Some(&token));
    let rig = start(server, source);
    rig.until("forbidden", |rig| rig.report().state == SourceState::Forbidden).await;
    let problem = rig.report().problem.unwrap();
    assert!(problem.contains("403") && problem.contains("Role"), "{problem}");
    rig.server.heal();
    rig.until_engines(&[("a", 1)]).await;
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
    // No server.
    rig.server.set_down(true);
    rig.until("unreachable", |rig| rig.report().state == SourceState::Unreachable).await;
    rig.server.delete("pods", "a");
    rig.server.put("pods", pod("b", "2", Some(2)));
    assert_eq!(rig.engines().len(), 1);
    // Back, and it does not know us for a moment, nor where we were.
    rig.server.fail(Fault::Forbidden);
    rig.server.set_down(false);
    rig.until_engines(&[("b", 2)]).await;
    // The token expired; the file has another one.
    rig.server.set_token("second");
    rig.server.compact();
    rig.until("refused", |rig| rig.report().problem.is_some_and(|problem| problem.contains("401"))).await;
    rig.server.put("pods", pod("c", "3", Some(3)));
    std::fs::write(&token, "second").unwrap();
    rig.until_engines(&[("b", 2), ("c", 3)]).await;
    rig.until("watching again", |rig| rig.report().problem.is_none()).await;
    // Nothing was ever removed but what was gone.
    let touched_engines = rig.memory.touched_engines.lock().clone();
    assert_eq!(touched_engines.iter().filter(|one| one.starts_with('-')).collect::<Vec<_>>(), ["-ns/a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_ends_at_once_is_not_asked_without_end() {
    let server = ApiServer::start().await;
    for _ in 0..200 {
        server.fail(Fault::Lines(String::new()));
    }
    let source = source(&server, None);
    let rig = start(server, source);
    rig.until("asked", |rig| rig.server.requests() >= 2).await;
    let before = (rig.server.requests(), kvplane_runtime::now());
    rig.until("asked more", |rig| rig.server.requests() >= before.0 + 10).await;
    assert!(before.1.elapsed() >= Duration::from_millis(400), "ten requests in {:?}", before.1.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_slices_where_pods_may_not_be_read() {
    let server = ApiServer::start().await;
    server.forbid("pods");
    let endpoint = |name: &str, address: u8, terminating: bool| {
        json!({
            "addresses": [format!("10.0.0.{address}")],
            "conditions": {"ready": !terminating, "serving": true, "terminating": terminating},
            "targetRef": {"kind": "Pod", "name": name, "namespace": "ns", "uid": name},
        })
    };
    let slice = |endpoints: Vec<Value>| {
        json!({
            "metadata": {"name": "vllm-x", "namespace": "ns", "uid": "s", "labels": {"app": "vllm"}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "kv-events", "port": 5557, "protocol": "TCP"}],
        })
    };
    server.put("endpointslices", slice(vec![endpoint("a", 1, false), endpoint("b", 2, true)]));
    let source = Source { slices: true, ..source(&server, None) };
    let rig = start(server, source);
    // One that is terminating serves its cache until it is gone.
    rig.until_engines(&[("a", 1), ("b", 2)]).await;
    rig.server.put("endpointslices", slice(vec![endpoint("a", 1, false)]));
    rig.until_engines(&[("a", 1)]).await;
}

fn pool(selector: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({"number": port})).collect();
    json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
        "spec": {"selector": {"matchLabels": {"app": selector}}, "targetPorts": ports, "endpointPickerRef": {"name": "kvplane"}},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_the_pods_of_an_inference_pool() {
    let server = ApiServer::start().await;
    server.put("pods", pod("a", "1", Some(1)));
    server.put("pods", unlabelled(pod("w", "2", Some(2))));
    let mut source = Source { select: Select::Pool("p".to_owned()), ..source(&server, None) };
    source.settings.kind = Some(kvplane_core::EngineKind::Trtllm);
    let rig = start(server, source);
    rig.until("no pool", |rig| rig.report().state == SourceState::NoPool).await;
    rig.server.put("inferencepools", pool("vllm", &[8000]));
    rig.until_engines(&[("a", 1)]).await;
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
    rig.server.put("inferencepools", pool("web", &[8000]));
    rig.until_engines(&[("w", 2)]).await;
    rig.server.delete("inferencepools", "p");
    rig.until_engines(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picker_has_exactly_the_pool_s_pods_with_objectives_and_rewrites() {
    let server = ApiServer::start().await;
    let ready = |mut pod: Value, ready: bool| {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
        pod
    };
    server.uninstall("llm-d.inferencemodelrewrites");
    server.uninstall("llm-d.inferenceobjectives");
    server.put("pods", ready(pod("a", "1", Some(1)), true));
    server.put("pods", ready(pod("b", "2", Some(2)), false));
    server.put("pods", unlabelled(ready(pod("w", "3", Some(3)), true)));
    server.put("inferencepools", pool("vllm", &[8000, 8001]));
    let of = |name: &str, pool: &str, mut spec: Value| {
        spec["poolRef"] = json!({"name": pool});
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-11-18T10:00:00Z"}, "spec": spec})
    };
    server.put("inferenceobjectives", of("batch", "p", json!({"priority": -1})));
    server.put("inferenceobjectives", of("other", "q", json!({"priority": 9})));
    let rule = json!({"rules": [{
        "matches": [{"model": {"type": "Exact", "value": "llama"}}],
        "targets": [{"modelRewrite": "llama-8b", "weight": 9}, {"modelRewrite": "llama-70b", "weight": 1}],
    }]});
    server.put("inferencemodelrewrites", of("r", "p", rule));
    let (state, mut followed) = tokio::sync::watch::channel(PoolState::default());
    let stop = CancellationToken::new();
    let way = Way::Kubeconfig { file: server.kubeconfig(None), context: None };
    let source = PoolSource {
        way,
        namespace: Some("ns".to_owned()),
        select: PoolSelect::Named("p".to_owned()),
        pace: quick(),
    };
    kvplane_runtime::spawn("pool", follow_pool(source, state, stop.clone()));
    let now = until(&mut followed, &|state| state.synced && state.endpoints.len() == 4).await;
    let endpoints: Vec<_> = now
        .endpoints
        .iter()
        .map(|one| (one.pod.as_str(), one.address.to_string(), one.rank, one.ready))
        .collect();
    assert_eq!(
        endpoints,
        [
            ("ns/a", "10.0.0.1:8000".to_owned(), Some(0), true),
            ("ns/a", "10.0.0.1:8001".to_owned(), Some(1), true),
            ("ns/b", "10.0.0.2:8000".to_owned(), Some(0), false),
            ("ns/b", "10.0.0.2:8001".to_owned(), Some(1), false),
        ]
    );
    assert_eq!(now.objectives, BTreeMap::from([("batch".to_owned(), -1)]));
    assert_eq!(now.rewrites.len(), 1);
    assert_eq!(now.rewrites[0].model.as_deref(), Some("llama"));
    assert_eq!(now.rewrites[0].targets[1], ("llama-70b".to_owned(), 1));
    // No server: everything stays. Back: what changed meanwhile.
    server.set_down(true);
    server.delete("pods", "a");
    server.put("pods", ready(pod("b", "2", Some(2)), true));
    assert_eq!(followed.borrow().endpoints.len(), 4);
    server.set_down(false);
    let now = until(&mut followed, &|state| state.endpoints.len() == 2).await;
    assert!(now.endpoints.iter().all(|one| one.pod == "ns/b" && one.ready) && now.synced);
    stop.cancel();
}

async fn until(
    followed: &mut tokio::sync::watch::Receiver<PoolState>,
    is: &dyn Fn(&PoolState) -> bool,
) -> PoolState {
    let state = tokio::time::timeout(DEADLINE, followed.wait_for(|state| is(state))).await;
    state.unwrap().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_are_ready_and_there_each_by_itself() {
    let server = ApiServer::start().await;
    // A container for each rank, and the second is not ready; a pod that another one follows at its address;
    // a pod that listens at one port alone; and one that a readiness gate holds back.
    let ranks = |name: &str, uid: &str, address: u8, ready: [bool; 2]| {
        let mut pod = pod(name, uid, Some(address));
        let container =
            |n: usize| json!({"name": format!("rank-{n}"), "ports": [{"containerPort": 8000 + n}]});
        pod["spec"]["containers"] = json!([container(0), container(1)]);
        let status = |n: usize| json!({"name": format!("rank-{n}"), "ready": ready[n]});
        pod["status"]["containerStatuses"] = json!([status(1), status(0)]);
        let all = if ready == [true, true] { "True" } else { "False" };
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": all}, {"type": "ContainersReady", "status": all}]);
        pod
    };
    server.put("pods", ranks("a", "1", 1, [true, false]));
    server.put("pods", ranks("old", "2", 2, [false, false]));
    server.put("pods", ranks("young", "3", 2, [true, true]));
    let mut sparse = ranks("sparse", "4", 4, [true, true]);
    sparse["metadata"]["annotations"]["llm-d.ai/active-ports"] = "8001, nonsense".into();
    server.put("pods", sparse);
    let mut gated = ranks("gated", "5", 5, [true, true]);
    gated["status"]["conditions"] =
        json!([{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
    server.put("pods", gated);
    let way = Way::Kubeconfig { file: server.kubeconfig(None), context: None };
    // Without a pool: by labels, and nothing else is asked for.
    let select = PoolSelect::Labels { selector: "app=vllm".to_owned(), ports: vec![8000, 8001] };
    let source = PoolSource { way, namespace: Some("ns".to_owned()), select, pace: quick() };
    let (state, mut followed) = tokio::sync::watch::channel(PoolState::default());
    let stop = CancellationToken::new();
    kvplane_runtime::spawn("pool", follow_pool(source, state, stop.clone()));
    let now = until(&mut followed, &|state| state.synced).await;
    let shown = |state: &PoolState| -> Vec<(String, String, u32, bool)> {
        let all = state.endpoints.iter();
        all.map(|one| (one.pod.clone(), one.address.to_string(), one.rank.unwrap(), one.ready)).collect()
    };
    let at = |pod: &str, address: u8, rank: u32, ready: bool| {
        (format!("ns/{pod}"), format!("10.0.0.{address}:{}", 8000 + rank), rank, ready)
    };
    let mut expected = vec![
        at("a", 1, 0, true),
        at("a", 1, 1, false),
        at("gated", 5, 0, false),
        at("gated", 5, 1, false),
        at("sparse", 4, 1, true),
        at("young", 2, 0, true),
        at("young", 2, 1, true),
    ];
    assert_eq!(shown(&now), expected);
    server.put("pods", ranks("a", "1", 1, [false, true]));
    (expected[0].3, expected[1].3) = (false, true);
    until(&mut followed, &|state| shown(state) == expected).await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_says_nothing_is_found_out() {
    let server = ApiServer::start().await;
    server.put("pods", pod("a", "1", Some(1)));
    // The list has an answer, the watch behind it never gets one; then neither has the list.
    let pace = Pace { patience: Duration::from_millis(300), watch: 1, ..quick() };
    let source = Source { pace, ..source(&server, None) };
    let rig = start(server, source);
    rig.until_engines(&[("a", 1)]).await;
    for _ in 0..4 {
        rig.server.fail(Fault::Silence);
    }
    rig.server.compact();
    let silent = |rig: &Rig| {
        rig.report().problem.is_some_and(|problem| problem.contains("no answer within"))
            && rig.report().state == SourceState::Unreachable
    };
    rig.until("unreachable", silent).await;
    assert_eq!(rig.engines().len(), 1, "what is known stays");
    rig.server.put("pods", pod("b", "2", Some(2)));
    rig.until_engines(&[("a", 1), ("b", 2)]).await;
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_differ_are_named_and_nothing_is_lost() {
    let server = ApiServer::start().await;
    server.put("pods", pod("a", "1", Some(1)));
    let front = Front::start(&server, 2000..2100).await;
    let pace = Pace { patience: Duration::from_millis(300), watch: 1, ..quick() };
    let source = Source { pace, ..source_at(front.kubeconfig(), "ns") };
    let rig = start(server, source);
    rig.until_engines(&[("a", 1)]).await;
    for years in [2099..2100, 2000..2001] {
        // It is seen by the connections that follow.
        front.renew(years.clone());
        front.cut();
        let named = |rig: &Rig| rig.report().problem.is_some_and(|problem| problem.contains("clock"));
        rig.until(&format!("a certificate for {years:?}"), named).await;
        assert_eq!(rig.engines().len(), 1, "what is known stays");
    }
    rig.server.put("pods", pod("b", "2", Some(2)));
    front.renew(2000..2100);
    rig.until_engines(&[("a", 1), ("b", 2)]).await;
    rig.until("watching", |rig| rig.report().problem.is_none()).await;
}

#[derive(Debug, Clone)]
enum Step {
    Put { name: usize, address: Option<u8> },
    Unlabel { name: usize },
    Delete { name: usize },
    Compact,
    Fault(Fault),
    Down,
    Up,
    Breathe(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        Just(Fault::Forbidden),
        Just(Fault::Unauthorized),
        Just(Fault::Error),
        Just(Fault::Cut),
        Just(Fault::Garbage),
        Just(Fault::Hang),
        Just(Fault::Silence),
    ];
    prop_oneof![
        6 => (0..4_usize, prop::option::weighted(0.8, 1..5_u8)).prop_map(|(name, address)| Step::Put { name, address }),
        1 => (0..4_usize).prop_map(|name| Step::Unlabel { name }),
        3 => (0..4_usize).prop_map(|name| Step::Delete { name }),
        1 => Just(Step::Compact),
        2 => fault.prop_map(Step::Fault),
        1 => Just(Step::Down),
        1 => Just(Step::Up),
        2 => (1..60_u64).prop_map(Step::Breathe),
    ]
}

/// After any history that ends quietly, the engines are the pods that match.
async fn history(steps: Vec<Step>) {
    let server = ApiServer::start().await;
    let pace = Pace { patience: Duration::from_millis(500), ..quick() };
    let source = Source { pace, ..source(&server, None) };
    let rig = start(server, source);
    // Name to uid, address and label: what the cluster has.
    let mut truth: BTreeMap<usize, (u32, Option<u8>, bool)> = BTreeMap::new();
    let names = ["a", "b", "c", "d"];
    let mut uid = 0;
    for step in steps {
        match step {
            Step::Put { name, address } => {
                let entry = truth.entry(name).or_insert_with(|| {
                    uid += 1;
                    (uid, None, true)
                });
                (entry.1, entry.2) = (address.or(entry.1), true);
                rig.server.put("pods", pod(names[name], &entry.0.to_string(), entry.1));
            }
            Step::Unlabel { name } => {
                if let Some(entry) = truth.get_mut(&name) {
                    entry.2 = false;
                    rig.server.put("pods", unlabelled(pod(names[name], &entry.0.to_string(), entry.1)));
                }
            }
            Step::Delete { name } => {
                truth.remove(&name);
                rig.server.delete("pods", names[name]);
            }
            Step::Compact => rig.server.compact(),
            Step::Fault(fault) => rig.server.fail(fault),
            Step::Down => rig.server.set_down(true),
            Step::Up => rig.server.set_down(false),
            Step::Breathe(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
    }
    rig.server.heal();
    let mut expected: BTreeMap<u8, (u32, usize)> = BTreeMap::new();
    for (name, (uid, address, labelled)) in &truth {
        if let Some(address) = address.filter(|_| *labelled) {
            // Of several with one address, the youngest.
            let owner = expected.entry(address).or_insert((*uid, *name));
            *owner = (*owner).max((*uid, *name));
        }
    }
    let expected: Vec<_> = expected.into_iter().map(|(address, (_, name))| (names[name], address)).collect();
    rig.until_engines(&expected).await;
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
}

#[test]
fn after_any_history_that_ends_quietly_the_engines_are_the_pods_that_match() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 4, max_shrink_iters: 20, ..Config::default() });
    let histories = prop::collection::vec(prop::collection::vec(step(), 1..30), 8);
    // Eight at a time: they wait for each other's pauses.
    let outcome = runner.run(&histories, |histories| {
        runtime.block_on(async {
            let all: Vec<_> = histories
                .into_iter()
                .map(|steps| kvplane_runtime::spawn("history", history(steps)))
                .collect();
            for one in all {
                one.await.map_err(|error| TestCaseError::fail(error.to_string()))?;
            }
            Ok(())
        })
    });
    outcome.unwrap();
}

/// A pod as large as real ones are.
fn large(name: &str, uid: &str, address: Option<u8>, block: usize) -> Value {
    let mut pod = pod(name, uid, address);
    pod["status"]["podIP"] =
        address.map(|address| format!("10.{}.{}.{address}", block / 250, block % 250)).into();
    let field = json!({"f:metadata": {"f:labels": {"f:app": {}}, "f:annotations": {".": {}, "f:kvplane.io/replay": {}}}, "f:spec": {"f:containers": {}}});
    pod["metadata"]["managedFields"] =
        vec![json!({"manager": "kubelet", "operation": "Update", "fieldsV1": field}); 6].into();
    pod["spec"]["volumes"] = vec![
        json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
        10
    ]
    .into();
    pod["spec"]["containers"][0]["env"] =
        vec![json!({"name": "SOME_VARIABLE", "value": "some value of it"}); 30].into();
    pod
}

/// 2,000 pods, a third of which are replaced within a minute: at most 2 % of a core, and nobody else hears of it.
/// `cargo test --release -p kvplane-kubernetes --features watch -- --ignored --nocapture two_thousand`
#[test]
#[ignore = "measures for 30 s: run it alone, in release"]
fn two_thousand_pods_cost_little() {
    const PODS: usize = 2_000;
    let outside = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server =
        outside.block_on(async { kvplane_runtime::spawn("start", ApiServer::start()).await.unwrap() });
    for n in 0..PODS {
        server.put("pods", large(&format!("p{n}"), &n.to_string(), Some(1), n));
    }
    let memory = Memory::default();
    let (board, stop) = (Board::default(), CancellationToken::new());
    let running = run(source(&server, None), board, memory.clone(), HttpClient::new(), stop.clone());
    // Nanoseconds of processor time of the thread that watches.
    let (say, touched_engines) = std::sync::mpsc::sync_channel::<u64>(10_000);
    let watching = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let measuring = async {
                loop {
                    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
                    let spent = times.split(' ').next().and_then(|spent| spent.parse().ok()).unwrap();
                    if say.send(spent).is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            tokio::select! { () = running => {}, () = measuring => {} }
        });
    });
    while memory.engines.lock().len() < PODS {
        std::thread::sleep(Duration::from_millis(50));
    }
    let now = || std::iter::from_fn(|| touched_engines.try_recv().ok()).last();
    std::thread::sleep(Duration::from_secs(1));
    memory.touched_engines.lock().clear();
    let (before, began) = (now().unwrap(), kvplane_runtime::now());
    // Gone, there without an address, with one, and ready: as a rollout does it.
    for n in 0..PODS / 6 {
        let (name, uid, at) = (format!("p{n}"), (PODS + n).to_string(), PODS + n);
        server.delete("pods", &name);
        server.put("pods", large(&name, &uid, None, at));
        server.put("pods", large(&name, &uid, Some(1), at));
        let mut ready = large(&name, &uid, Some(1), at);
        ready["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        server.put("pods", ready);
        let due = Duration::from_secs(30).mul_f64((n + 1) as f64 / (PODS / 6) as f64);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    std::thread::sleep(Duration::from_millis(600));
    let (spent, elapsed) = (now().unwrap() - before, began.elapsed());
    let percent = spent as f64 / elapsed.as_nanos() as f64 * 100.0;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!(
        "{PODS} pods, {} replaced in {elapsed:.1?}: {percent:.2} % of a core, load {}",
        PODS / 6,
        load.trim()
    );
    let touched = memory.touched_engines.lock().clone();
    assert!(touched.iter().all(|id| {
        id.trim_start_matches('-')
            .strip_prefix("ns/p")
            .is_some_and(|n| n.parse::<usize>().unwrap() < PODS / 6)
    }));
    stop.cancel();
    drop(touched_engines);
    watching.join().unwrap();
    assert!(percent <= 2.0, "{percent:.2} %");
}
