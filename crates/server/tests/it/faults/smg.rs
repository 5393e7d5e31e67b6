//! SMG's contract: what a gateway's consumer needs to stay right.

use std::collections::BTreeMap;

use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::smg::kv_cache_event::Data;
use kvplane_proto::smg::{KvEventBatch, SubscribeKvEventsRequest};
use kvplane_sim::{CompletionOptions, Fault, Restart};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::rig::{DEADLINE, Engine, Rig, soon_down};

/// A gateway's consumer, as it behaves: counts copies, takes numbers as they come.
pub struct Gateway {
    batches: Streaming<KvEventBatch>,
    blocks: BTreeMap<i64, u32>,
    cursor: u64,
    snapshot_chunks: usize,
    seen: usize,
}

async fn client(rig: &Rig) -> VllmEngineClient<Channel> {
    VllmEngineClient::connect(format!("http://{}", rig.grpc)).await.unwrap()
}

pub async fn subscribe(rig: &Rig, start: u64, metadata: &[(&'static str, &str)]) -> Result<Gateway, Status> {
    let mut request = Request::new(SubscribeKvEventsRequest {
        start_sequence_number: start,
        load_records_before_first_batch: true,
    });
    for (key, value) in metadata {
        request.metadata_mut().insert(*key, value.parse().unwrap());
    }
    let batches = client(rig).await.subscribe_kv_events(request).await?.into_inner();
    Ok(Gateway { batches, blocks: BTreeMap::new(), cursor: 0, snapshot_chunks: 0, seen: 0 })
}

impl Gateway {
    async fn next(&mut self) -> Result<(), Status> {
        let batch = tokio::time::timeout(DEADLINE, self.batches.message()).await.expect("no batch came")?;
        let batch = batch.expect("ended without a status");
        self.seen += 1;
        if let Some(chunk) = batch.snapshot {
            if chunk.index == 0 {
                assert!(matches!(batch.events[0].data, Some(Data::Cleared(_))));
            }
            self.snapshot_chunks += 1;
        } else {
            assert_eq!(batch.sequence_number, self.cursor + 1, "numbers have no holes");
        }
        self.cursor = batch.sequence_number;
        for event in batch.events {
            match event.data.unwrap() {
                Data::Stored(stored) => {
                    // A store whose parent it does not know would be taken for the beginning of a prompt.
                    if let Some(parent) = stored.parent_block_hash {
                        assert!(self.blocks.contains_key(&parent), "unknown parent");
                    }
                    for block in stored.blocks {
                        assert_eq!(block.token_ids.len(), 16);
                        *self.blocks.entry(block.block_hash).or_default() += 1;
                    }
                }
                Data::Removed(removed) => {
                    for hash in removed.block_hashes {
                        let copies = self.blocks.get_mut(&hash).expect("removed what was not there");
                        *copies -= 1;
                        if *copies == 0 {
                            self.blocks.remove(&hash);
                        }
                    }
                }
                Data::Cleared(_) => self.blocks.clear(),
            }
        }
        Ok(())
    }

    /// Reads until it holds what is wanted, or the stream ends.
    pub async fn until(&mut self, wanted: &BTreeMap<i64, u32>) {
        while self.blocks != *wanted {
            self.next().await.unwrap();
        }
    }

    async fn end(mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}

/// What an engine holds, each block once.
fn held(engine: &Engine) -> BTreeMap<i64, u32> {
    let ranks = engine.sim.state();
    ranks.into_iter().flat_map(|rank| rank.blocks.into_keys()).map(|hash| (hash as i64, 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_join_gets_the_state_and_a_cursor_exactly_what_follows() {
    let mut engine = Engine::plain();
    engine.work(10);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let mut gateway = subscribe(&rig, 0, &[]).await.unwrap();
    gateway.until(&held(&engine)).await;
    assert_eq!(gateway.snapshot_chunks, 1);
    let cursor = gateway.cursor;
    engine.work(5);
    rig.exact(0, &engine).await;
    gateway.until(&held(&engine)).await;
    let mut resumed = subscribe(&rig, cursor, &[]).await.unwrap();
    resumed.blocks.clone_from(&gateway.blocks);
    resumed.cursor = cursor;
    let to_come = rig.stream(0).cursor().sequence - cursor;
    assert!(to_come > 0);
    // Its first batch follows the cursor; it is never sent the window again.
    let batch = resumed.batches.message().await.unwrap().unwrap();
    assert_eq!(batch.sequence_number, cursor + 1);
    assert!(batch.snapshot.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_overtook_the_cursor_ends_with_data_loss_and_the_old_cursor_is_out_of_range() {
    let mut engine = Engine::plain();
    engine.work(10);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let mut gateway = subscribe(&rig, 0, &[]).await.unwrap();
    gateway.until(&held(&engine)).await;
    let cursor = gateway.cursor;
    let ahead = engine.next_sequence() + 7;
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence: ahead, same_content: true }));
    let status = gateway.end().await;
    assert_eq!(status.code(), Code::DataLoss, "{status}");
    rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    let refused = subscribe(&rig, cursor, &[]).await.err().expect("a cursor of another life");
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    engine.work(2);
    rig.exact(0, &engine).await;
    subscribe(&rig, 0, &[]).await.unwrap().until(&held(&engine)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_batch_is_not_noticed_and_one_lost_for_good_clears() {
    let mut engine = Engine::plain();
    engine.work(10);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let mut gateway = subscribe(&rig, 0, &[]).await.unwrap();
    gateway.until(&held(&engine)).await;
    engine.sim.fault(None, Fault::Drop(2));
    engine.work(4);
    rig.exact(0, &engine).await;
    gateway.until(&held(&engine)).await;
    engine.sim.fault(None, Fault::Lose(1));
    engine.work(4);
    rig.caught_up(0, &engine).await;
    let truth = held(&engine);
    let last = rig.stream(0).cursor().sequence;
    while gateway.cursor < last {
        gateway.next().await.unwrap();
    }
    assert!(gateway.blocks.keys().all(|hash| truth.contains_key(hash)), "no phantoms");
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_that_cannot_be_resumed_and_engines_that_cannot_be_reported_are_named() {
    let engines = [Engine::plain(), Engine::start(|config| config.seed = 1)];
    let rig = Rig::over(&[&engines[0], &engines[1]]).await;
    rig.live(0).await;
    let code = |result: Result<Gateway, Status>| {
        result.err().map(|status| (status.code(), status.message().to_owned()))
    };
    let (kind, message) = code(subscribe(&rig, 0, &[]).await).unwrap();
    assert_eq!(kind, Code::InvalidArgument);
    assert!(message.contains("e0, e1"), "{message}");
    let (kind, message) = code(subscribe(&rig, 0, &[("kvplane-engine", "e9")]).await).unwrap();
    assert_eq!(kind, Code::NotFound);
    assert!(message.contains("e0, e1"), "{message}");
    let one = ("kvplane-engine", "e0");
    assert_eq!(code(subscribe(&rig, 0, &[one, ("kvplane-rank", "3")]).await).unwrap().0, Code::NotFound);
    assert_eq!(
        code(subscribe(&rig, 0, &[one, ("kvplane-rank", "x")]).await).unwrap().0,
        Code::InvalidArgument
    );
    let future = rig.stream(0).cursor().sequence + 1_000;
    for start in [1, future, u64::MAX] {
        assert_eq!(code(subscribe(&rig, start, &[one]).await).unwrap().0, Code::OutOfRange);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_out_of_reach_is_reported_to_be_empty_until_it_is_back() {
    let mut engine = Engine::plain();
    engine.work(6);
    let rig = Rig::with_options(&[&engine], soon_down()).await;
    rig.exact(0, &engine).await;
    let mut gateway = subscribe(&rig, 0, &[]).await.unwrap();
    gateway.until(&held(&engine)).await;
    engine.sim.fault(None, Fault::Replay(kvplane_sim::ReplayMode::Off));
    engine.sim.fault(None, Fault::Disconnect);
    assert_eq!(gateway.end().await.code(), Code::DataLoss, "out of reach is not credited");
    let mut waiting = subscribe(&rig, 0, &[]).await.unwrap();
    waiting.next().await.unwrap();
    assert_eq!((waiting.snapshot_chunks, waiting.blocks.len()), (1, 0));
    engine.sim.fault(None, Fault::Replay(kvplane_sim::ReplayMode::On));
    engine.sim.fault(None, Fault::Disconnect);
    assert_eq!(waiting.end().await.code(), Code::DataLoss, "what was withheld is known again");
    rig.exact(0, &engine).await;
    subscribe(&rig, 0, &[]).await.unwrap().until(&held(&engine)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_are_merged_and_one_that_restarts_takes_only_its_own() {
    let engine = Engine::start(|config| {
        // Ranks are at consecutive ports, so these are chosen: on a loopback address that is this process's
        // own.
        let pid = std::process::id();
        let host = format!("127.77.{}.{}", pid / 250 % 250, pid % 250 + 1);
        config.ranks = 2;
        config.events = kvplane_socket::Endpoint::Bind(format!("tcp://{host}:15557"));
        config.replay = Some(format!("tcp://{host}:16557"));
    });
    let on = |rank| CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
    let prompt = |seed: u32| (0..64).map(|i| seed * 1_000 + i).collect::<Vec<u32>>();
    for rank in 0..2 {
        engine.sim.complete(&prompt(1), 1, &on(rank)).unwrap();
        engine.sim.complete(&prompt(10 + rank), 1, &on(rank)).unwrap();
    }
    engine.sim.state();
    let rig = Rig::over(&[&engine]).await;
    for rank in 0..2 {
        rig.until_rank(0, rank, "live", |s| s.engine_sequence.is_some()).await;
    }
    let mut merged = subscribe(&rig, 0, &[]).await.unwrap();
    merged.until(&held(&engine)).await;
    let mut native = subscribe(&rig, 0, &[("kvplane-rank", "1")]).await.unwrap();
    let rank_one: BTreeMap<i64, u32> =
        engine.sim.state().remove(1).blocks.into_keys().map(|hash| (hash as i64, 1)).collect();
    native.until(&rank_one).await;
    // Both lives end; what comes back is what the new ones compute.
    engine.sim.fault(None, Fault::Restart(Restart::default()));
    engine.sim.complete(&prompt(1), 1, &on(0)).unwrap();
    engine.sim.complete(&prompt(20), 1, &on(1)).unwrap();
    engine.sim.state();
    merged.until(&held(&engine)).await;
    assert_eq!(native.end().await.code(), Code::DataLoss);
    // A cursor of the merged stream goes on; one from elsewhere does not.
    assert!(subscribe(&rig, merged.cursor, &[]).await.is_ok());
    assert_eq!(subscribe(&rig, 5, &[]).await.err().unwrap().code(), Code::OutOfRange);
}
