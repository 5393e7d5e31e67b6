//! One simulated engine, behind proxies, with documents that are asked for again and again.

use kvplane_core::EngineKind;
use kvplane_sim::load::Random;
use kvplane_sim::{CompletionOptions, Fault, SimConfig, SimEngine, SimHandle};
use kvplane_socket::PublishContext;
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

/// An engine, and the proxies before it.
pub struct Engine {
    pub name: String,
    pub model: String,
    pub sim: SimHandle,
    pub events: Proxy,
    pub replay: Option<Proxy>,
    pub documents: Vec<Vec<u32>>,
    pub random: Random,
    has_http: bool,
}

impl Engine {
    /// The engine of this number. Numbers decide of which kind it is, and what of it the plane may use.
    pub fn start(number: usize, seed: u64, context: PublishContext, runtime: &Handle) -> Self {
        let has_http = number.is_multiple_of(2);
        let config = SimConfig {
            profile: PROFILES[number % PROFILES.len()],
            blocks: BLOCKS,
            block_size: BLOCK,
            buffer_steps: if number % 5 == 4 { 16 } else { 1000 },
            http: has_http.then(|| ([127, 0, 0, 1], 0).into()),
            seed: number as u64,
            context,
            ..SimConfig::default()
        };
        let sim = SimEngine::start(config).unwrap();
        let has_replay = number % 3 != 2;
        let replay = sim.replay_endpoints().remove(0).filter(|_| has_replay);
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
            events: Proxy::start(&sim.event_endpoints()[0], runtime),
            replay: replay.map(|endpoint| Proxy::start(&endpoint, runtime)),
            sim,
            documents,
            random,
            has_http,
        }
    }

    /// `--engine` for it.
    pub fn flag(&self) -> String {
        let kind = match self.kind() {
            EngineKind::Sglang => "sglang",
            EngineKind::Tokenspeed => "tokenspeed",
            EngineKind::Trtllm => "trtllm",
            _ => "vllm",
        };
        let mut flag = format!("{kind}={},id={},model={}", self.events.endpoint(), self.name, self.model);
        if let Some(replay) = &self.replay {
            flag.push_str(&format!(",replay={}", replay.endpoint()));
        }
        if let Some(address) = self.sim.http_address().filter(|_| self.has_http) {
            flag.push_str(&format!(",http=http://{address}"));
        }
        flag
    }

    pub fn kind(&self) -> EngineKind {
        self.sim.config().profile.engine()
    }

    /// How the plane hears it, for a person.
    pub fn describe(&self) -> String {
        let has = |is: bool| if is { "with" } else { "without" };
        let (replay, http) = (has(self.replay.is_some()), has(self.has_http));
        format!("{} ({:?}, {replay} replay, {http} HTTP)", self.name, self.kind())
    }

    /// Serves a document, or something that it has never seen: then it has something to tell. Says what it would serve of each
    /// document after every step, as each may be a batch.
    pub fn serve(&mut self, document: Option<usize>, mut step: impl FnMut(Hits)) {
        let options = CompletionOptions::default();
        let fresh: Vec<u32>;
        let prompt = if let Some(document) = document {
            &self.documents[document]
        } else {
            fresh = (0..=2 * BLOCK).map(|_| 30_000 + self.random.below(1 << 20) as u32).collect();
            &fresh
        };
        let mut running = self.sim.begin(prompt, 1, &options).unwrap();
        step(self.hits());
        while running.step().unwrap().is_some() {
            step(self.hits());
        }
        running.finish();
        step(self.hits());
        // Until it is on the wire.
        self.sim.next_sequence(0);
    }

    /// What it would serve of each document now.
    pub fn hits(&self) -> Hits {
        let options = CompletionOptions::default();
        self.documents.iter().map(|prompt| self.sim.would_hit(prompt, &options)).collect()
    }

    pub fn fault(&self, fault: Fault) {
        self.sim.fault(None, fault);
    }

    /// Calls something for every path to it.
    pub fn paths(&self, change: impl Fn(&Proxy)) {
        change(&self.events);
        self.replay.iter().for_each(change);
    }
}
