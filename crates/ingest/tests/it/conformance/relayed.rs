//! Servers of relayed events, over gRPC.

use std::collections::BTreeMap;

use kvplane_ingest::{EngineSpec, StreamStatus};
use kvplane_sim::{RelayFault, Restart};
use kvplane_testkit::{Line, RelayedEngine};

use super::Subject;

/// A server of `SubscribeKvEvents` behind a line.
struct Relay {
    engine: RelayedEngine,
    line: Line,
}

impl Subject for Relay {
    async fn start() -> Self {
        let engine = RelayedEngine::start(|_| {});
        let line = Line::to(engine.sim.address()).await;
        Self { engine, line }
    }

    fn spec(&self) -> EngineSpec {
        RelayedEngine::spec_at(self.line.address, "e0")
    }

    fn work(&mut self, requests: usize) {
        self.engine.work(requests);
    }

    fn last(&self) -> Option<u64> {
        self.engine.sim.next_sequence(0).checked_sub(1)
    }

    fn held(&self) -> BTreeMap<u64, u64> {
        self.engine.sim.held(0)
    }

    fn lose(&self) {
        self.engine.sim.fault(RelayFault::Lose(1));
    }

    fn restart(&self, first_sequence: u64) {
        self.engine.sim.fault(RelayFault::Restart(Restart { first_sequence, same_content: true }));
    }

    fn send_garbage(&self) {
        self.engine.sim.fault(RelayFault::Nonsense);
    }

    fn has_counted_garbage(before: &StreamStatus, now: &StreamStatus) -> bool {
        now.malformed_frames > before.malformed_frames
    }

    fn silence(&self) {
        self.line.silence();
    }

    fn restore(&self) {
        self.line.restore();
    }
}

conforms!(Relay);
