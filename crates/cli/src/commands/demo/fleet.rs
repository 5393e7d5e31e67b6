//! Simulated engines, one of each kind, and the truth about them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use kvplane_core::EngineKind;
use kvplane_sim::trtllm::{TrtConfig, TrtHandle, TrtSim};
use kvplane_sim::{
    CompletionOptions, CompletionResult, RelayConfig, RelayService, SimConfig, SimEngine, SimError,
    SimHandle, SimRelay,
};
use kvplane_wire::Profile;
use kvplane_wire::trtllm::encode::TrtHash;
use serde_json::{Value, json};

/// The model that all engines serve.
pub(super) const MODEL: &str = "sim";
/// All engines generate the same reply to the same prompt, so that two fleets can be given one workload.
const SEED: u64 = 0;
/// Tokens that an engine has room for: some ten of the made-up conversations, a fifth of those that are under
/// way.
const ROOM: usize = 12 << 10;
/// The same for recorded requests, of which one may have over a hundred thousand tokens.
pub(super) const ROOM_FOR_TRACES: usize = 1 << 20;
/// Tokens per block; TensorRT-LLM has its own.
pub(super) const BLOCK_SIZE: usize = 16;
const TRTLLM_BLOCK_SIZE: usize = 32;

/// One simulated engine.
pub(super) struct Engine {
    pub(super) name: &'static str,
    pub(super) kind: EngineKind,
    pub(super) sim: Sim,
}

/// How an engine is simulated: as its events come.
pub(super) enum Sim {
    /// Published on a socket.
    Published(SimHandle),
    /// Drained over HTTP.
    Drained(TrtHandle),
    /// Subscribed to over gRPC.
    Relayed(SimRelay),
}

/// What an engine holds: the 64 bits of each block's hash, and its copies.
pub(super) type Held = BTreeMap<u64, u64>;

/// One engine of each kind.
pub(super) struct Fleet {
    pub(super) engines: Vec<Engine>,
}

impl Fleet {
    /// Starts the engines on free loopback ports, with room for recorded requests if there are any. Blocks.
    pub(super) fn start(trace: Option<&Path>) -> anyhow::Result<Self> {
        let room = if trace.is_some() { ROOM_FOR_TRACES } else { ROOM };
        let published = |profile| {
            let http = Some(([127, 0, 0, 1], 0).into());
            let config = SimConfig { profile, blocks: room / BLOCK_SIZE, http, ..plain_engine() };
            SimEngine::start(config).map(Sim::Published)
        };
        let drained = TrtConfig {
            model: MODEL.to_owned(),
            block_size: TRTLLM_BLOCK_SIZE,
            levels: vec![room / TRTLLM_BLOCK_SIZE],
            // Parts of blocks are in nobody's answer: an engine that reuses them serves more than was
            // predicted.
            partial_reuse: false,
            seed: SEED,
            ..TrtConfig::default()
        };
        let relayed = RelayConfig {
            service: RelayService::Sglang,
            block_size: BLOCK_SIZE,
            blocks: room / BLOCK_SIZE,
            seed: SEED,
            ..RelayConfig::default()
        };
        let engine = |name, kind, sim: Result<Sim, SimError>| {
            let sim = sim.with_context(|| format!("cannot start the simulated {name}"))?;
            Ok(Engine { name, kind, sim })
        };
        let engines = [
            engine("vllm-0", EngineKind::Vllm, published(Profile::Vllm0_32)),
            engine("sglang-0", EngineKind::Sglang, published(Profile::Sglang0_5_22)),
            engine("tokenspeed-0", EngineKind::Tokenspeed, published(Profile::Tokenspeed0_1_1)),
            engine("trtllm-0", EngineKind::Trtllm, TrtSim::start(drained).map(Sim::Drained)),
            engine("relay-0", EngineKind::Grpc, SimRelay::start(relayed).map(Sim::Relayed)),
        ];
        Ok(Self { engines: engines.into_iter().collect::<anyhow::Result<_>>()? })
    }

    /// Which one is of a kind; the first if none is.
    pub(super) fn position(&self, kind: EngineKind) -> usize {
        self.engines.iter().position(|engine| engine.kind == kind).unwrap_or(0)
    }

    /// Ends them all. Blocks.
    pub(super) fn stop(&self) {
        for engine in &self.engines {
            match &engine.sim {
                Sim::Published(sim) => sim.stop(),
                Sim::Drained(sim) => sim.stop(),
                Sim::Relayed(sim) => sim.stop(),
            }
        }
    }
}

fn plain_engine() -> SimConfig {
    SimConfig { model: MODEL.to_owned(), block_size: BLOCK_SIZE, seed: SEED, ..SimConfig::default() }
}

impl Engine {
    /// Runs a request to its end.
    pub(super) fn complete(&self, prompt: &[u32], max_tokens: usize) -> anyhow::Result<CompletionResult> {
        let options = CompletionOptions::default();
        let result = match &self.sim {
            Sim::Published(sim) => sim.complete(prompt, max_tokens, &options),
            Sim::Drained(sim) => sim.complete(prompt, max_tokens, &options),
            Sim::Relayed(sim) => sim.complete(0, prompt, max_tokens),
        };
        result.with_context(|| format!("{} cannot serve {} tokens", self.name, prompt.len()))
    }

    /// The number of the last batch or event that it published; none before the first.
    pub(super) fn last_reported(&self) -> Option<u64> {
        let next = match &self.sim {
            Sim::Published(sim) => sim.next_sequence(0),
            Sim::Drained(sim) => sim.next_event_id(0),
            Sim::Relayed(sim) => sim.next_sequence(0),
        };
        next.checked_sub(1)
    }

    /// The truth about what it holds.
    pub(super) fn held(&self) -> Held {
        match &self.sim {
            Sim::Published(sim) => {
                let blocks = sim.state().into_iter().flat_map(|rank| rank.blocks);
                blocks.map(|(hash, copies)| (hash, copies as u64)).collect()
            }
            Sim::Drained(sim) => {
                let pools = sim.state().into_iter().flat_map(|rank| rank.pools);
                pools.flat_map(|pool| pool.blocks.into_keys()).map(|hash| (bits(&hash), 1)).collect()
            }
            Sim::Relayed(sim) => sim.held(0),
        }
    }

    /// Empties its cache as an operator would, without a plane; one that has no such call keeps what it has.
    pub(super) fn flush(&self) {
        match &self.sim {
            Sim::Published(sim) => drop(sim.reset_prefix_cache()),
            Sim::Drained(_) => {}
            Sim::Relayed(sim) => drop(sim.clear(0)),
        }
    }

    /// The engine as `POST /v1/engines` takes it.
    pub(super) fn described(&self) -> Value {
        let mut described = json!({ "id": self.name, "kind": self.kind, "model": MODEL });
        match &self.sim {
            Sim::Published(sim) => {
                described["events"] = json!(sim.event_endpoints().first());
                described["replay"] = json!(sim.replay_endpoints().first());
                described["http"] = json!(sim.http_address().map(|address| format!("http://{address}")));
            }
            Sim::Drained(sim) => {
                described["events"] = json!(format!("http://{}", sim.http_address()));
                described["http"] = described["events"].clone();
                described["event_buffer"] = json!(sim.config().event_buffer);
            }
            Sim::Relayed(sim) => described["events"] = json!(format!("grpc://{}", sim.address())),
        }
        described
    }
}

/// What a plane knows a block of TensorRT-LLM by.
pub(super) fn bits(hash: &TrtHash) -> u64 {
    match hash {
        TrtHash::Number(number) => *number,
        TrtHash::Digest(digits) => {
            digits.get(..16).and_then(|head| u64::from_str_radix(head, 16).ok()).unwrap_or_default()
        }
    }
}
