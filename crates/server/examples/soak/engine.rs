//! One simulated engine, behind proxies, with documents that are asked for again and again.

use std::collections::HashMap;

use kvplane_core::EngineKind;
use kvplane_sim::load::Random;
use kvplane_sim::trtllm::{TrtConfig, TrtFault, TrtHandle, TrtSim};
use kvplane_sim::{CompletionOptions, Fault, SimConfig, SimEngine, SimHandle};
use kvplane_socket::Endpoint;
use kvplane_wire::Profile;
use tokio::runtime::Handle;

use crate::proxy::Proxy;
use crate::truth::Hits;

/// Documents of an engine.
pub const DOCUMENTS: usize = 32;
/// Blocks that it has: for about half of its documents.
const BLOCKS: usize = 96;
const BLOCK: usize = 16;
const PROFILES: [Profile; 4] =
    [Profile::Vllm0_32, Profile::Sglang0_5_22, Profile::Tokenspeed0_1_1, Profile::TrtllmZmq];

/// One engine in this many is drained.
const DRAINED: usize = 6;
/// Events that such a one keeps.
const EVENTS: usize = 4096;

/// How its events are had.
enum Sim {
    Published(SimHandle),
    Drained(TrtHandle),
}

/// An engine, and the proxies before it.
pub struct Engine {
    pub name: String,
    pub model: String,
    sim: Sim,
    pub events: Proxy,
    pub replay: Option<Proxy>,
    pub documents: Vec<Vec<u32>>,
    pub random: Random,
    has_http: bool,
}

impl Engine {
    /// The engine of this number. Numbers decide of which kind it is, and what of it the plane may use.
    pub fn start(number: usize, seed: u64, runtime: &Handle) -> Self {
        let is_drained = number % DRAINED == DRAINED - 1;
        let has_http = number.is_multiple_of(2) && !is_drained;
        let has_replay = number % 3 != 2;
        let sim = if is_drained {
            Sim::Drained(drained(number as u64))
        } else {
            Sim::Published(published(number, has_http))
        };
        let (events, replay) = match &sim {
            Sim::Published(sim) => {
                let replay = sim.replay_endpoints().remove(0).filter(|_| has_replay);
                (sim.event_endpoints().remove(0), replay)
            }
            Sim::Drained(sim) => (sim.http_address().to_string(), None),
        };
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        let mut noise = |blocks: usize| -> Vec<u32> {
            (0..blocks * BLOCK).map(|_| random.below(30_000) as u32).collect()
        };
        let systems: Vec<_> = (0..4).map(|_| noise(2)).collect();
        let documents = (0..DOCUMENTS)
            .map(|at| {
                let mut prompt = systems[at % systems.len()].clone();
                prompt.extend(noise(1 + at % 4));
                // An engine always computes the last token itself.
                prompt.push(1);
                prompt
            })
            .collect();
        Self {
            name: format!("e{number}"),
            model: format!("m{number}"),
            events: Proxy::start(&events, number, runtime),
            replay: replay.map(|endpoint| Proxy::start(&endpoint, number, runtime)),
            sim,
            documents,
            random,
            has_http,
        }
    }

    /// `--engine` for it.
    pub fn flag(&self) -> String {
        let (name, model) = (&self.name, &self.model);
        let sim = match &self.sim {
            Sim::Published(sim) => sim,
            Sim::Drained(_) => {
                let address = self.events.endpoint().replace("tcp://", "http://");
                return format!("trtllm={address},id={name},model={model},event_buffer={EVENTS}");
            }
        };
        let kind = match self.kind() {
            EngineKind::Sglang => "sglang",
            EngineKind::Tokenspeed => "tokenspeed",
            EngineKind::Trtllm => "trtllm",
            _ => "vllm",
        };
        let mut flag = format!("{kind}={},id={name},model={model}", self.events.endpoint());
        if let Some(replay) = &self.replay {
            flag.push_str(&format!(",replay={}", replay.endpoint()));
        }
        if let Some(address) = sim.http_address().filter(|_| self.has_http) {
            flag.push_str(&format!(",http=http://{address}"));
        }
        flag
    }

    fn kind(&self) -> EngineKind {
        match &self.sim {
            Sim::Published(sim) => sim.config().profile.engine(),
            Sim::Drained(_) => EngineKind::Trtllm,
        }
    }

    pub fn is_drained(&self) -> bool {
        matches!(self.sim, Sim::Drained(_))
    }

    /// How the plane hears it, for a person.
    pub fn describe(&self) -> String {
        if self.is_drained() {
            return format!("{} (drained)", self.name);
        }
        let has = |is: bool| if is { "with" } else { "without" };
        let (replay, http) = (has(self.replay.is_some()), has(self.has_http));
        format!("{} ({:?}, {replay} replay, {http} HTTP)", self.name, self.kind())
    }

    /// Serves a document, or something that it has never seen: then it has something to tell. Says what it
    /// would serve of each document after every step, as each may be a batch.
    pub fn serve(&mut self, document: Option<usize>, mut step: impl FnMut(Hits)) {
        let options = CompletionOptions::default();
        let fresh: Vec<u32>;
        let prompt = if let Some(document) = document {
            &self.documents[document]
        } else {
            fresh = (0..=2 * BLOCK).map(|_| 30_000 + self.random.below(1 << 20) as u32).collect();
            &fresh
        };
        let sim = match &self.sim {
            Sim::Published(sim) => sim,
            Sim::Drained(sim) => {
                sim.complete(prompt, 1, &options).unwrap();
                return step(self.hits());
            }
        };
        let mut running = sim.begin(prompt, 1, &options).unwrap();
        step(self.hits());
        while running.step().unwrap().is_some() {
            step(self.hits());
        }
        running.finish();
        step(self.hits());
        // Until it is on the wire.
        sim.next_sequence(0);
    }

    /// What it would serve of each document now.
    pub fn hits(&self) -> Hits {
        let options = CompletionOptions::default();
        match &self.sim {
            Sim::Published(sim) => {
                self.documents.iter().map(|prompt| sim.would_hit(prompt, &options)).collect()
            }
            Sim::Drained(sim) => drained_hits(sim, &self.documents),
        }
    }

    /// The number of what it tells next.
    pub fn next_sequence(&self) -> u64 {
        match &self.sim {
            Sim::Published(sim) => sim.next_sequence(0),
            Sim::Drained(sim) => sim.next_event_id(0),
        }
    }

    /// Empties its cache, where that can be asked for.
    pub fn clear(&self) {
        if let Sim::Published(sim) = &self.sim {
            sim.reset_prefix_cache();
        }
    }

    /// A fault of an engine that publishes.
    pub fn fault(&self, fault: Fault) {
        if let Sim::Published(sim) = &self.sim {
            sim.fault(None, fault);
        }
    }

    /// A fault of an engine that is drained.
    pub fn drained(&self, fault: TrtFault) {
        if let Sim::Drained(sim) = &self.sim {
            sim.fault(None, fault);
        }
    }

    /// Calls something for every path to it.
    pub fn paths(&self, change: impl Fn(&Proxy)) {
        change(&self.events);
        self.replay.iter().for_each(change);
    }
}

fn published(number: usize, has_http: bool) -> SimHandle {
    // At an address of its own: nobody's connection takes a port while the engine restarts.
    let address = format!("tcp://127.1.{}.{}:0", number / 250, number % 250 + 1);
    let config = SimConfig {
        events: Endpoint::Bind(address.clone()),
        replay: Some(address),
        profile: PROFILES[number % PROFILES.len()],
        blocks: BLOCKS,
        block_size: BLOCK,
        buffer_steps: if number % 5 == 4 { 16 } else { 1000 },
        http: has_http.then(|| ([127, 0, 0, 1], 0).into()),
        seed: number as u64,
        ..SimConfig::default()
    };
    SimEngine::start(config).unwrap()
}

fn drained(seed: u64) -> TrtHandle {
    let config = TrtConfig {
        block_size: BLOCK,
        levels: vec![BLOCKS],
        event_buffer: EVENTS,
        partial_reuse: false,
        seed,
        ..TrtConfig::default()
    };
    TrtSim::start(config).unwrap()
}

/// Tokens of each prompt in whole blocks that follow each other from the first.
fn drained_hits(sim: &TrtHandle, prompts: &[Vec<u32>]) -> Hits {
    let pool = sim.state().remove(0).pools.remove(0);
    let by_place: HashMap<_, _> = pool
        .blocks
        .iter()
        .map(|(hash, block)| ((block.parent.as_ref(), block.tokens.as_slice()), hash))
        .collect();
    let hits = |prompt: &Vec<u32>| {
        let mut last = None;
        let held = prompt.chunks_exact(BLOCK).take_while(|tokens| {
            let found = by_place.get(&(last, *tokens));
            last = found.copied();
            found.is_some()
        });
        held.count() * BLOCK
    };
    prompts.iter().map(hits).collect()
}
