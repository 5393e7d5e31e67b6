//! One buffer that can be read once, and eight subscribers that come and go: each ends with the engine's
//! exact state.

use std::collections::BTreeSet;

use kvplane_client::{Client, Following, Selection, Tier, Trust};
use kvplane_ingest::PlaneOptions;
use kvplane_sim::load::Random;
use kvplane_sim::trtllm::{TrtFault, TrtHandle, TrtRestart};
use kvplane_testkit::{DrainedEngine, Line, Rig, until_async};
use kvplane_wire::trtllm::encode::TrtHash;

use crate::support::{hasty, page, stream};

const SUBSCRIBERS: usize = 8;
const STEPS: usize = 120;

async fn follow(line: &Line) -> Following {
    Client::connect(&format!("http://{}", line.address), hasty()).await.unwrap().follow(Selection::All)
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

/// Waits until the plane has the engine's last event.
async fn drained(rig: &Rig, engine: &DrainedEngine) {
    let last = engine.sim.next_event_id(0).checked_sub(1);
    rig.until(0, "drained", |status| status.engine_sequence == last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_that_join_leave_and_come_back_all_end_with_the_exact_state() {
    let mut engine = DrainedEngine::start(|config| config.levels = vec![64, 32]);
    // The plane does not know how large the buffer is.
    engine.buffer = None;
    let rig = Rig::of_specs(vec![engine.spec("e0")], PlaneOptions::default()).await;
    let mut random = Random::new(5);
    let mut lines = Vec::new();
    for _ in 0..SUBSCRIBERS {
        lines.push(Line::to(rig.grpc).await);
    }
    let mut subscribers: Vec<Option<Following>> = (0..SUBSCRIBERS).map(|_| None).collect();
    let mut cuts = 0;
    for step in 0..STEPS {
        engine.work(1 + random.below(3) as usize);
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
            (_, None) => subscribers[who] = Some(follow(&lines[who]).await),
        }
        if step == STEPS / 2 {
            engine.sim.fault(None, TrtFault::Restart(TrtRestart { first_event_id: 0, same_content: true }));
        }
        // Some steps come faster than the others are felt.
        if random.below(4) == 0 {
            drained(&rig, &engine).await;
        }
    }
    for (line, subscriber) in lines.iter().zip(&mut subscribers) {
        if subscriber.is_none() {
            *subscriber = Some(follow(line).await);
        }
    }
    engine.work(3);
    drained(&rig, &engine).await;
    assert!(cuts > 5, "{cuts}");
    let truth = truth(&engine.sim);
    for following in subscribers.into_iter().flatten() {
        until_async("caught up", async || {
            let view = following.replica(&stream(0));
            let at = view.filter(kvplane_client::ReplicaView::is_current).and_then(|view| view.cursor());
            at.map(|cursor| cursor.sequence.to_string()) == Some(page(&rig, 0).await.0)
        })
        .await;
        let view = following.replica(&stream(0)).unwrap();
        assert_eq!(view.trust().level, Trust::Exact);
        assert_eq!(held(&following), truth);
        assert_eq!(view.digest().to_string(), page(&rig, 0).await.1);
        let counters = following.counters();
        assert_eq!((counters.digest_mismatches, counters.protocol_errors), (0, 0), "{counters:?}");
        following.close().await;
    }
}
