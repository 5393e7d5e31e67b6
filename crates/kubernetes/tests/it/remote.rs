//! Histories of a cluster that is written to over its API, like any other: the one that `KVPLANE_KUBECONFIG`
//! names, or the double. Nothing runs in its pods; what a kubelet would say of them, the test says.
//!
//! Tests need a namespace of their own, which they create and delete, and rights to write pods and their status in it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kvplane_kubernetes::SourceState;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::watching::{Rig, source_at, start};

/// A cluster, and a namespace in it.
struct Remote {
    client: kube::Client,
    kubeconfig: PathBuf,
    namespace: String,
}

impl Remote {
    async fn open() -> Self {
        let kubeconfig = match std::env::var_os("KVPLANE_KUBECONFIG") {
            Some(file) => PathBuf::from(file),
            None => ApiServer::start().await.kubeconfig(None),
        };
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        // One for each: tests run at the same time.
        let unique = format!("{}-{:x}", std::process::id(), rand());
        let remote = Self { client, kubeconfig, namespace: format!("kvplane-test-{unique}") };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": remote.namespace}});
        remote.ask("POST", "/api/v1/namespaces", &namespace).await.unwrap();
        remote
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let body = if method == "GET" { Vec::new() } else { body.to_string().into_bytes() };
        self.client.request(request.body(body).unwrap()).await
    }

    fn pods(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/pods{rest}", self.namespace)
    }

    async fn create(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "vllm"}, "annotations": {"kvplane.io/replay": "none"}},
            "spec": {
                "schedulerName": "kvplane-tests-run-nothing",
                "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "example.invalid/none", "ports": [{"name": "kv-events", "containerPort": 5557}]}],
            },
        });
        // The account of a namespace that was just created comes a moment later.
        for _ in 0..100 {
            match self.ask("POST", &self.pods(""), &pod).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 409 => return,
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the namespace has no account");
    }

    /// Of a pod that may not be there.
    async fn patch(&self, rest: &str, change: Value) {
        match self.ask("PATCH", &self.pods(rest), &change).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            result => drop(result.unwrap()),
        }
    }

    async fn place(&self, name: &str, address: u8) {
        let ip = format!("10.0.0.{address}");
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        self.patch(&format!("/{name}/status"), status).await;
    }

    async fn label(&self, name: &str, app: &str) {
        self.patch(&format!("/{name}"), json!({"metadata": {"labels": {"app": app}}})).await;
    }

    async fn delete(&self, name: &str) {
        match self.ask("DELETE", &self.pods(&format!("/{name}")), &json!({"gracePeriodSeconds": 0})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            result => drop(result.unwrap()),
        }
    }

    /// The pods that match, as the cluster has them: engines by name, and their addresses.
    async fn truth(&self) -> BTreeMap<String, String> {
        let all = self.ask("GET", &self.pods(""), &Value::Null).await.unwrap();
        let text = |pod: &Value, path: &str| pod.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let mut owners: BTreeMap<String, (bool, String, String, String)> = BTreeMap::new();
        for pod in all["items"].as_array().unwrap() {
            let Some(address) = text(pod, "/status/podIP") else { continue };
            if text(pod, "/metadata/labels/app").as_deref() != Some("vllm") {
                continue;
            }
            let stays = text(pod, "/metadata/deletionTimestamp").is_none();
            let touched_engines = |path| text(pod, path).unwrap();
            let claim = (
                stays,
                touched_engines("/metadata/creationTimestamp"),
                touched_engines("/metadata/uid"),
                touched_engines("/metadata/name"),
            );
            let owner = owners.entry(address).or_insert_with(|| claim.clone());
            *owner = owner.clone().max(claim);
        }
        let engine = |(address, (.., name)): (String, (bool, String, String, String))| {
            (format!("{}/{name}", self.namespace), address)
        };
        owners.into_iter().map(engine).collect()
    }

    fn watch(self) -> Rig<Self> {
        let source = source_at(self.kubeconfig.clone(), &self.namespace);
        start(self, source)
    }

    async fn remove(&self) {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.ask("DELETE", &path, &json!({})).await.unwrap();
    }
}

fn rand() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as u32
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_cluster_come_change_and_go() {
    let rig = Remote::open().await.watch();
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
    let named = |pods: &[(&str, u8)]| -> BTreeMap<String, String> {
        let namespace = &rig.server.namespace;
        pods.iter().map(|(name, at)| (format!("{namespace}/{name}"), format!("10.0.0.{at}"))).collect()
    };
    rig.server.create("a").await;
    rig.server.create("b").await;
    rig.server.place("a", 1).await;
    rig.until_engines_at(named(&[("a", 1)])).await;
    rig.server.place("b", 2).await;
    rig.until_engines_at(named(&[("a", 1), ("b", 2)])).await;
    // Out of the selector and back, under one uid.
    rig.server.label("a", "web").await;
    rig.until_engines_at(named(&[("b", 2)])).await;
    rig.server.label("a", "vllm").await;
    rig.until_engines_at(named(&[("a", 1), ("b", 2)])).await;
    // Another pod under the old one's name.
    rig.server.delete("b").await;
    rig.server.create("b").await;
    rig.server.place("b", 3).await;
    rig.until_engines_at(named(&[("a", 1), ("b", 3)])).await;
    rig.server.remove().await;
}

#[derive(Debug, Clone)]
enum Step {
    Create(usize),
    Place(usize, u8),
    Label(usize, bool),
    Delete(usize),
    Breathe(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..4_usize;
    prop_oneof![
        4 => name.clone().prop_map(Step::Create),
        5 => (name.clone(), 1..5_u8).prop_map(|(name, address)| Step::Place(name, address)),
        2 => (name.clone(), any::<bool>()).prop_map(|(name, matches)| Step::Label(name, matches)),
        3 => name.prop_map(Step::Delete),
        2 => (1..40_u64).prop_map(Step::Breathe),
    ]
}

/// After any history that ends quietly, the engines are the pods that match: those that the cluster lists at the end.
async fn history(steps: Vec<Step>) {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let rig = Remote::open().await.watch();
    for step in steps {
        match step {
            Step::Create(name) => rig.server.create(NAMES[name]).await,
            Step::Place(name, address) => rig.server.place(NAMES[name], address).await,
            Step::Label(name, matches) => {
                rig.server.label(NAMES[name], if matches { "vllm" } else { "web" }).await;
            }
            Step::Delete(name) => rig.server.delete(NAMES[name]).await,
            Step::Breathe(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
    }
    rig.until_engines_at(rig.server.truth().await).await;
    rig.until("watching", |rig| rig.report().state == SourceState::Watching).await;
    rig.server.remove().await;
}

#[test]
fn after_any_history_of_a_cluster_the_engines_are_the_pods_that_match() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 2, max_shrink_iters: 10, ..Config::default() });
    let histories = prop::collection::vec(prop::collection::vec(step(), 1..30), 6);
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
