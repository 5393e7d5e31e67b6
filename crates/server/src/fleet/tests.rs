//! Changes of the fleet that need no engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kvplane_ingest::{Plane, PlaneOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::service::{Options, Service};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvplane-fleet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Certificates of a new authority.
fn authority() -> String {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap().pem()
}

fn fleet(options: Options) -> (Fleet, Arc<Plane>) {
    let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    (Service::new(plane.clone(), options).fleet(), plane)
}

fn plan(described: &Value) -> Result<EnginePlan, EngineConfigError> {
    serde_json::from_value::<EngineConfig>(described.clone()).unwrap().plan()
}

async fn end(plane: Arc<Plane>) {
    tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_certificates_are_a_change_although_their_path_is_not() {
    let folder = Folder::new("rotated");
    let ca = folder.0.join("ca.pem");
    std::fs::write(&ca, authority()).unwrap();
    let (fleet, plane) = fleet(Options::default());
    // One that is called over TLS, one with a front before a TLS server, and a link to another plane.
    let engines = [
        json!({"id": "called", "kind": "vllm", "events": "grpcs://127.0.0.1:1", "grpc_ca": ca}),
        json!({"id": "fronted", "kind": "vllm", "events": "tcp://127.0.0.1:1", "grpc": "https://127.0.0.1:1",
               "front": "127.0.0.1:0", "grpc_ca": ca}),
        json!({"id": "linked", "kind": "kvplane", "grpc": "https://127.0.0.1:1", "grpc_ca": ca}),
        json!({"id": "plain", "kind": "vllm", "events": "tcp://127.0.0.1:3"}),
    ];
    let plans = || engines.iter().map(|engine| plan(engine).unwrap()).collect::<Vec<_>>();
    fleet.add(plans(), Origin::Config).await.unwrap();
    let same = fleet.reload(plans()).await.unwrap();
    assert_eq!(same, Reloaded { unchanged: 4, ..Reloaded::default() });

    std::fs::write(&ca, authority()).unwrap();
    let rotated = fleet.reload(plans()).await.unwrap();
    assert_eq!(rotated, Reloaded { changed: 3, unchanged: 1, ..Reloaded::default() });
    let again = fleet.reload(plans()).await.unwrap();
    assert_eq!(again, Reloaded { unchanged: 4, ..Reloaded::default() });
    end(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_is_no_change_because_it_is_read_with_every_connection() {
    let folder = Folder::new("token");
    let (token, key) = (folder.0.join("token"), folder.0.join("key"));
    let write = |secret: &str| [&token, &key].map(|path| std::fs::write(path, secret).unwrap());
    write("one");
    let (fleet, plane) = fleet(Options::default());
    let engines = [
        json!({"id": "linked", "kind": "kvplane", "grpc": "http://127.0.0.1:1", "token_file": token}),
        json!({"id": "keyed", "kind": "vllm", "events": "tcp://127.0.0.1:1", "http": "http://127.0.0.1:2",
               "api_key_file": key}),
    ];
    let plans = || engines.iter().map(|engine| plan(engine).unwrap()).collect::<Vec<_>>();
    fleet.add(plans(), Origin::Config).await.unwrap();
    write("two");
    let rotated = fleet.reload(plans()).await.unwrap();
    assert_eq!(rotated, Reloaded { unchanged: 2, ..Reloaded::default() });
    let engine = fleet.engine("keyed").unwrap();
    assert_eq!(engine.spec.control.api_key().unwrap().as_deref(), Some("two"));
    let engine = fleet.engine("linked").unwrap();
    let kvplane_ingest::Source::Linked(link) = &engine.spec.source else { panic!("{:?}", engine.spec) };
    assert_eq!(link.token().unwrap(), kvplane_proto::Bearer::new("two").unwrap());
    end(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_none_are_rejected_without_waiting() {
    let folder = Folder::new("fifo");
    let fifo = folder.0.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [Path::new("/dev/zero"), &fifo] {
        for engine in [
            json!({"id": "a", "kind": "kvplane", "grpc": "https://127.0.0.1:1", "grpc_ca": path}),
            json!({"id": "a", "kind": "kvplane", "grpc": "http://127.0.0.1:1", "token_file": path}),
        ] {
            let config: EngineConfig = serde_json::from_value(engine.clone()).unwrap();
            let planned = tokio::time::timeout(Duration::from_secs(30), Fleet::plan(config)).await;
            let error = planned.expect("it waits for ever").unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{engine}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_through_fronts_are_drained_as_configured() {
    let drain_timeout = Duration::from_secs(77);
    let (fleet, plane) = fleet(Options { drain_timeout, ..Options::default() });
    let engine = json!({"id": "a", "kind": "vllm", "events": "tcp://127.0.0.1:1", "grpc": "http://127.0.0.1:2",
                        "front": "127.0.0.1:0"});
    let EnginePlan { config, front, .. } = plan(&engine).unwrap();
    let (_, front) = front.unwrap();
    assert_eq!(fleet.set_up(front, &config).grace(), drain_timeout);
    end(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_publish_events_only_where_somebody_said_so() {
    let (fleet, plane) = fleet(Options::default());
    let bound = |id: &str, address: &str, open: bool| {
        let events = format!("bind:tcp://{address}:0");
        plan(&json!({"id": id, "kind": "vllm", "model": "m", "events": events, "events_open": open})).unwrap()
    };
    let refused = fleet.add(vec![bound("stranger", "0.0.0.0", false)], Origin::Api).await.unwrap_err();
    assert!(matches!(refused, FleetError::Exposed(_)), "{refused:?}");
    let words = refused.to_string();
    assert!(words.contains("events of \"stranger\"") && words.contains("events_open"), "{words}");
    assert!(fleet.engine("stranger").is_none());
    fleet.add(vec![bound("opened", "0.0.0.0", true)], Origin::Api).await.unwrap();
    fleet.add(vec![bound("local", "127.0.0.1", false)], Origin::Api).await.unwrap();
    end(plane).await;
}
