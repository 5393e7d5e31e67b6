//! A plane that lies, and comparisons of a replica with a plane and its engines.

pub mod liar;

use std::time::Duration;

use kvplane_client::{Client, Options, ReplicaView, StreamId};
use kvplane_core::{EngineId, Trust};
use kvplane_testkit::{Engine, Rig, call, until_async};
use serde_json::Value;

/// A simulated engine whose load has this seed.
pub fn seeded(seed: u64) -> Engine {
    Engine::start(|config| config.seed = seed)
}

pub async fn client(rig: &Rig, options: Options) -> Client {
    Client::connect(&rig.url(), options).await.unwrap()
}

/// Waits until the plane has every batch and knows exactly what the engine holds.
pub async fn heard(rig: &Rig, at: usize, engine: &Engine) {
    let status = rig.heard(at, engine).await;
    assert_eq!(status.trust.level(), Trust::Exact, "{:?}", status.trust);
    assert_eq!(status.digest, engine.digest(), "the plane itself is wrong");
}

/// What `/v1/status` says of a stream: (cursor, digest).
pub async fn page(rig: &Rig, at: usize) -> (String, String) {
    let (_, status) = call(rig.http, "GET", "/v1/status", &Value::Null).await;
    let rank = &status["engines"][at]["ranks"][0];
    let text = |key: &str| rank[key].as_str().unwrap().to_owned();
    (text("cursor"), text("digest"))
}

/// Waits until plane, replica and engine are at rest, and compares the three.
pub async fn equal(rig: &Rig, at: usize, engine: &Engine, view: &ReplicaView) {
    heard(rig, at, engine).await;
    until_async("at rest with the plane", async || {
        let cursor = view.cursor().map(|cursor| cursor.sequence.to_string());
        view.is_current() && cursor == Some(page(rig, at).await.0)
    })
    .await;
    let (_, digest) = page(rig, at).await;
    assert_eq!(view.digest().to_string(), digest, "the plane's digest");
    assert_eq!(view.digest(), engine.digest(), "the engine's truth");
    assert_eq!(view.trust().level, Trust::Exact);
    let truth = engine.sim.state().remove(0).blocks;
    view.read(|replica| {
        assert_eq!(replica.iter().count(), truth.len());
        assert!(truth.keys().all(|&hash| replica.holds(hash)));
    });
}

/// The stream of an engine of the rig.
pub fn stream(at: usize) -> StreamId {
    StreamId::new(EngineId::new(&format!("e{at}")), 0)
}

/// Comes back fast, so that tests do.
pub fn hasty() -> Options {
    Options {
        shortest_wait: Duration::from_millis(10),
        longest_wait: Duration::from_millis(100),
        ..Options::default()
    }
}
