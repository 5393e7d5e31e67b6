//! Engines whose events are drained over HTTP.

use std::collections::BTreeMap;

use kvplane_core::Trouble;
use kvplane_ingest::{EngineSpec, Source, StreamStatus};
use kvplane_sim::trtllm::{TrtAnswer, TrtFault, TrtRestart};
use kvplane_testkit::{DrainedEngine, Line};
use kvplane_wire::trtllm::encode::TrtHash;

use super::Subject;

/// A TensorRT-LLM behind a line.
struct Buffer {
    engine: DrainedEngine,
    line: Line,
}

impl Subject for Buffer {
    async fn start() -> Self {
        let engine = DrainedEngine::start(|_| {});
        let line = Line::to(engine.sim.http_address()).await;
        Self { engine, line }
    }

    fn spec(&self) -> EngineSpec {
        let mut spec = self.engine.spec("e0");
        if let Source::Drained(drained) = &mut spec.source {
            drained.url = format!("http://{}", self.line.address);
        }
        spec
    }

    fn work(&mut self, requests: usize) {
        self.engine.work(requests);
    }

    fn last(&self) -> Option<u64> {
        self.engine.sim.next_event_id(0).checked_sub(1)
    }

    fn held(&self) -> BTreeMap<u64, u64> {
        let pools = self.engine.sim.state().remove(0).pools;
        let hashes = pools.into_iter().flat_map(|pool| pool.blocks.into_keys());
        hashes
            .map(|hash| match hash {
                TrtHash::Number(hash) => (hash, 1),
                TrtHash::Digest(_) => panic!("the first cache manager has numbers"),
            })
            .collect()
    }

    fn lose(&self) {
        self.engine.sim.fault(None, TrtFault::Lose(1));
    }

    fn restart(&self, first_event_id: u64) {
        self.engine.sim.fault(None, TrtFault::Restart(TrtRestart { first_event_id, same_content: true }));
    }

    fn send_garbage(&self) {
        self.engine.sim.fault(None, TrtFault::Answer { answer: TrtAnswer::Html, polls: 1 });
    }

    fn has_counted_garbage(_before: &StreamStatus, now: &StreamStatus) -> bool {
        now.troubles.contains(&(Trouble::NotJson, 1))
    }

    fn silence(&self) {
        self.line.silence();
    }

    fn restore(&self) {
        self.line.restore();
    }
}

conforms!(Buffer);
