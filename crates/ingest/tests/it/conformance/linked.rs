//! Another plane, and the engines that are mirrored from it.

use std::collections::BTreeMap;

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{EngineSpec, LinkSpec, Source, StreamStatus};
use kvplane_proto::Bearer;
use kvplane_sim::{Fault, Restart};
use kvplane_testkit::{Engine, Line, Rig};

use super::{MAX_SILENCE, Subject};

/// A plane over an engine, behind a line.
struct Upstream {
    engine: Engine,
    line: Line,
    _plane: Rig,
}

impl Subject for Upstream {
    const STREAM: &str = "e0/e0";
    const NUMBERS_ARE_FOREIGN: bool = true;

    async fn start() -> Self {
        let engine = Engine::plain();
        let plane = Rig::over(&[&engine]).await;
        let line = Line::to(plane.grpc).await;
        Self { engine, line, _plane: plane }
    }

    fn spec(&self) -> EngineSpec {
        let source = Source::Linked(LinkSpec {
            url: format!("http://{}", self.line.address),
            ca: None,
            token_file: None,
            bearer: Bearer::default(),
            engine: None,
            max_silence: Some(MAX_SILENCE),
        });
        EngineSpec::new(EngineId::new("e0"), EngineKind::Kvplane, "", source)
    }

    fn work(&mut self, requests: usize) {
        self.engine.work(requests);
    }

    fn last(&self) -> Option<u64> {
        self.engine.next_sequence().checked_sub(1)
    }

    fn held(&self) -> BTreeMap<u64, u64> {
        self.engine.held()
    }

    fn lose(&self) {
        self.engine.sim.fault(None, Fault::Lose(1));
    }

    fn restart(&self, first_sequence: u64) {
        self.engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
    }

    fn send_garbage(&self) {
        self.line.garble();
    }

    fn has_counted_garbage(before: &StreamStatus, now: &StreamStatus) -> bool {
        now.counters.disconnects > before.counters.disconnects
    }

    fn silence(&self) {
        self.line.silence();
    }

    fn restore(&self) {
        self.line.restore();
    }
}

conforms!(Upstream);
