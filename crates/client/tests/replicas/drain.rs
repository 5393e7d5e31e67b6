//! One buffer that can be read once, and eight subscribers that come and go: each ends with the engine's exact state.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use kvplane_client::{Client, Following, Selection, Tier, Trust};
use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{
    CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, Drained, EngineSpec, SharedRanks, Source,
};
use kvplane_sim::CompletionOptions;
use kvplane_sim::load::{LoadConfig, Random, Workload};
use kvplane_sim::trtllm::{TrtConfig, TrtFault, TrtHandle, TrtRestart, TrtSim};
use kvplane_wire::trtllm::encode::TrtHash;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::support::{Rig, hasty, stream, until};

const SUBSCRIBERS: usize = 8;
const STEPS: usize = 120;

fn spec(sim: &TrtHandle) -> EngineSpec {
    let url = format!("http://{}", sim.http_address());
    EngineSpec {
        id: EngineId::new("e0"),
        kind: EngineKind::Trtllm,
        model: "sim".to_owned(),
        routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
        tenant: None,
        source: Source::Drained(Drained { url, buffer: None, ranks: SharedRanks::first(1) }),
        topic: String::new(),
        block_size: None,
        worker_id: 7,
        cache: CacheSpec::default(),
        max_silence: None,
        http: None,
        control: ControlSpec::default(),
    }
}

/// The way of one subscriber to the plane, which can be cut.
struct Line {
    address: SocketAddr,
    cut: Arc<parking_lot::Mutex<CancellationToken>>,
}

impl Line {
    async fn to(plane: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(parking_lot::Mutex::new(CancellationToken::new()));
        let current = cut.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let cut = current.lock().clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(plane).await.unwrap();
                    let _ = cut.run_until_cancelled(copy_bidirectional(&mut near, &mut far)).await;
                });
            }
        });
        Self { address, cut }
    }

    fn cut(&self) {
        let old = std::mem::take(&mut *self.cut.lock());
        old.cancel();
    }

    async fn follow(&self) -> Following {
        Client::connect(&format!("http://{}", self.address), hasty()).await.unwrap().follow(Selection::All)
    }
}

fn truth(sim: &TrtHandle) -> BTreeSet<(Tier, u64)> {
    let pools = sim.state().remove(0).pools;
    let blocks = pools.into_iter().flat_map(|pool| pool.blocks);
    blocks
        .map(|(hash, block)| {
            let TrtHash::Number(hash) = hash else { panic!("a number was asked for") };
            ([Tier::Device, Tier::Host][block.level], hash)
        })
        .collect()
}

fn held(following: &Following) -> BTreeSet<(Tier, u64)> {
    let view = following.replica(&stream(0)).unwrap();
    view.read(|replica| {
        let places = replica.iter().flat_map(|block| {
            block.copies().map(move |(place, copies)| {
                assert_eq!(copies, 1);
                (place.tier, block.hash())
            })
        });
        places.collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_that_join_leave_and_come_back_all_end_with_the_exact_state() {
    let sim =
        TrtSim::start(TrtConfig { levels: vec![64, 32], block_size: 16, ..TrtConfig::default() }).unwrap();
    let mut load = Workload::new(LoadConfig {
        system_tokens: 64,
        conversations: 8,
        output_tokens: 24,
        ..LoadConfig::default()
    });
    let mut work = |requests: u64| {
        for _ in 0..requests {
            let turn = load.next_turn();
            let result = sim.complete(&turn.prompt, turn.max_tokens, &CompletionOptions::default()).unwrap();
            load.replied(turn.conversation, &result.output);
        }
    };
    let rig = Rig::of_specs(vec![spec(&sim)]).await;
    let mut random = Random::new(5);
    let mut lines = Vec::new();
    for _ in 0..SUBSCRIBERS {
        lines.push(Line::to(rig.grpc_address()).await);
    }
    let mut subscribers: Vec<Option<Following>> = (0..SUBSCRIBERS).map(|_| None).collect();
    let mut cuts = 0;
    for step in 0..STEPS {
        work(1 + random.below(3));
        let who = random.below(SUBSCRIBERS as u64) as usize;
        match (random.below(4), subscribers[who].take()) {
            (0, Some(following)) => following.close().await,
            (1, Some(following)) => {
                // Its connection breaks; it comes back by itself, with its cursor.
                lines[who].cut();
                cuts += 1;
                subscribers[who] = Some(following);
            }
            (_, Some(following)) => subscribers[who] = Some(following),
            (_, None) => subscribers[who] = Some(lines[who].follow().await),
        }
        if step == STEPS / 2 {
            sim.fault(None, TrtFault::Restart(TrtRestart { first_event_id: 0, same_content: true }));
        }
        // Some steps come faster than the others are felt.
        if random.below(4) == 0 {
            until("drained", async || sim.state()[0].next_event_id.checked_sub(1) == rig.engine_sequence(0))
                .await;
        }
    }
    for (line, subscriber) in lines.iter().zip(&mut subscribers) {
        if subscriber.is_none() {
            *subscriber = Some(line.follow().await);
        }
    }
    work(3);
    until("drained", async || sim.state()[0].next_event_id.checked_sub(1) == rig.engine_sequence(0)).await;
    assert!(cuts > 5, "{cuts}");
    let truth = truth(&sim);
    for following in subscribers.into_iter().flatten() {
        until("caught up", async || {
            let view = following.replica(&stream(0));
            let at = view.filter(kvplane_client::ReplicaView::is_current).and_then(|view| view.cursor());
            at.map(|cursor| cursor.sequence.to_string()) == Some(rig.status(0).await.0)
        })
        .await;
        let view = following.replica(&stream(0)).unwrap();
        assert_eq!(view.trust().level, Trust::Exact);
        assert_eq!(held(&following), truth);
        assert_eq!(view.digest().to_string(), rig.status(0).await.1);
        let counters = following.counters();
        assert_eq!((counters.digest_mismatches, counters.protocol_errors), (0, 0), "{counters:?}");
        following.close().await;
    }
    sim.stop();
}
