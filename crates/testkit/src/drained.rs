//! A simulated TensorRT-LLM, whose events are drained over HTTP.

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{Drained, EngineSpec, SharedRanks, Source};
use kvplane_sim::load::Workload;
use kvplane_sim::trtllm::{TrtConfig, TrtHandle, TrtSim};
use kvplane_sim::{CompletionOptions, CompletionResult};

use crate::engine::workload;

/// A simulated TensorRT-LLM with a seeded load.
#[derive(Debug)]
pub struct DrainedEngine {
    /// The engine.
    pub sim: TrtHandle,
    /// Its load.
    pub load: Workload,
    /// How large the plane is configured to take the engine's buffer for.
    pub buffer: Option<usize>,
}

impl DrainedEngine {
    /// A small engine with a host tier, otherwise as `change` has it.
    pub fn start(change: impl FnOnce(&mut TrtConfig)) -> Self {
        let mut config = TrtConfig { levels: vec![48, 24], block_size: 16, ..TrtConfig::default() };
        change(&mut config);
        let load = workload(config.seed);
        Self { buffer: Some(config.event_buffer), sim: TrtSim::start(config).unwrap(), load }
    }

    /// Runs this many requests.
    pub fn work(&mut self, requests: usize) {
        for _ in 0..requests {
            self.turn();
        }
    }

    /// Runs one request: its prompt and its result.
    pub fn turn(&mut self) -> (Vec<u32>, CompletionResult) {
        let turn = self.load.next_turn();
        let result = self.sim.complete(&turn.prompt, turn.max_tokens, &CompletionOptions::default()).unwrap();
        self.load.replied(turn.conversation, &result.output);
        (turn.prompt, result)
    }

    /// How a plane follows it under a name.
    pub fn spec(&self, id: &str) -> EngineSpec {
        let url = format!("http://{}", self.sim.http_address());
        let ranks = SharedRanks::first(self.sim.config().ranks);
        let source = Source::Drained(Drained { url, buffer: self.buffer, ranks });
        EngineSpec { worker_id: 7, ..EngineSpec::new(EngineId::new(id), EngineKind::Trtllm, "sim", source) }
    }
}

impl Drop for DrainedEngine {
    fn drop(&mut self) {
        self.sim.stop();
    }
}
