//! The republisher, heard by another kvplane: it joins late, survives what its source survives, and ends
//! equal.

use std::collections::BTreeMap;
use std::time::Duration;

use kvplane_core::{EngineId, EngineKind, Trust};
use kvplane_ingest::{Endpoint, EngineSpec, Plane, PlaneOptions, Published, Source, Stream};
use kvplane_republish::{Announce, RepublishSpec, Republisher};
use kvplane_sim::config::SglangOptions;
use kvplane_sim::{CompletionOptions, Fault, Restart};
use kvplane_wire::Profile;

use crate::rig::{DEADLINE, Engine, Rig, held};

struct Chain {
    republisher: Republisher,
    second: std::sync::Arc<Plane>,
}

impl Chain {
    fn after(rig: &Rig) -> Self {
        let spec = RepublishSpec {
            engine: "e0".to_owned(),
            ranks: 1,
            events: "tcp://127.0.0.1:0".to_owned(),
            replay: Some("tcp://127.0.0.1:0".to_owned()),
            topic: "kv@again".to_owned(),
            copies: true,
            announce: Announce::default(),
        };
        let republisher = Republisher::default();
        let bound = republisher.bind(&spec).unwrap();
        republisher.publish(bound, &rig.plane.engine("e0").unwrap());
        let (events, replay) = republisher.endpoints("e0", 0).unwrap();
        let source =
            Source::Published(Published::at_ports(&Endpoint::Connect(events), replay.as_deref(), 1).unwrap());
        let spec = EngineSpec::new(EngineId::new("second"), EngineKind::Vllm, "", source);
        let spec = EngineSpec { topic: "kv@".to_owned(), ..spec };
        let second = Plane::start(vec![spec], &PlaneOptions::default()).unwrap();
        Self { republisher, second }
    }

    /// Waits until the second plane holds what the first holds, copies included.
    async fn equal(&self, rig: &Rig) {
        let stream = self.second.streams().next().unwrap();
        let deadline = std::time::Instant::now() + DEADLINE;
        loop {
            let (first, second) = (held(&rig.stream(0)).await, held(&stream).await);
            if first == second && !first.is_empty() {
                return;
            }
            let (held, heard) = (first.len(), second.len());
            assert!(std::time::Instant::now() < deadline, "{held} {heard}: {:#?}", stream.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.second.shutdown();
        self.republisher.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_kvplane_joins_late_and_follows() {
    let mut engine = Engine::plain();
    engine.work(20);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let chain = Chain::after(&rig);
    chain.equal(&rig).await;
    engine.work(10);
    rig.exact(0, &engine).await;
    chain.equal(&rig).await;
    engine.sim.fault(None, Fault::Drop(1));
    engine.work(5);
    rig.exact(0, &engine).await;
    chain.equal(&rig).await;
    assert!(engine.sim.reset_prefix_cache());
    engine.work(3);
    rig.exact(0, &engine).await;
    chain.equal(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_a_loss_reach_the_listener() {
    let mut engine = Engine::plain();
    engine.work(10);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let chain = Chain::after(&rig);
    chain.equal(&rig).await;
    let ahead = engine.next_sequence() + 3;
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence: ahead, same_content: false }));
    rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    engine.work(4);
    rig.exact(0, &engine).await;
    chain.equal(&rig).await;
    engine.sim.fault(None, Fault::Lose(1));
    engine.work(4);
    let status = rig.caught_up(0, &engine).await;
    assert_eq!(status.trust.level(), Trust::Lower);
    chain.equal(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_from_below_the_window_gets_the_whole_state() {
    let mut engine = Engine::plain();
    let rig = Rig::with_options(&[&engine], PlaneOptions { max_batches: 5, ..PlaneOptions::default() }).await;
    rig.live(0).await;
    engine.work(30);
    rig.exact(0, &engine).await;
    let chain = Chain::after(&rig);
    chain.equal(&rig).await;
    engine.work(3);
    rig.exact(0, &engine).await;
    chain.equal(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn salts_pairs_and_tiers_of_another_engine_reach_the_listener() {
    for eagle in [false, true] {
        let mut engine = Engine::start(|config| {
            config.profile = Profile::Sglang0_5_22;
            config.blocks = 48;
            config.sglang = SglangOptions { host_pages: 96, eagle, ..SglangOptions::default() };
        });
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let chain = Chain::after(&rig);
        for turn in 0..30 {
            let cache_salt = (turn % 3 == 0).then(|| "tenant".to_owned());
            let next = engine.next_turn();
            engine.run(&next, &CompletionOptions { cache_salt, ..CompletionOptions::default() });
        }
        rig.exact(0, &engine).await;
        chain.equal(&rig).await;
        let theirs = chain.second.streams().next().unwrap();
        assert_eq!(
            contents(&theirs).await,
            contents(&rig.stream(0)).await,
            "equal blocks, not only equal hashes"
        );
        assert!(engine.sim.reset_prefix_cache());
        engine.work(1);
        rig.exact(0, &engine).await;
        chain.equal(&rig).await;
    }
}

async fn contents(stream: &Stream) -> BTreeMap<u64, u64> {
    let snapshot = stream.snapshot().await;
    let blocks = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
    blocks.map(|block| (block.hash, block.attached_chain().unwrap().content)).collect()
}
