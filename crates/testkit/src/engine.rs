//! A simulated engine that publishes on a socket.

use std::collections::BTreeMap;

use kvplane_core::{EngineId, EngineKind, PlaceSeed, StateDigest};
use kvplane_ingest::{Endpoint, EngineSpec, Published, Source};
use kvplane_sim::load::{LoadConfig, Turn, Workload};
use kvplane_sim::{CompletionOptions, CompletionResult, SimConfig, SimEngine, SimHandle};
use kvplane_wire::Profile;

tokio::task_local! {
    static SPEAKS: Profile;
}

/// Runs a test in which engines are of this kind, and speak like this.
pub async fn speaking(profile: Profile, test: impl Future<Output = ()>) {
    SPEAKS.scope(profile, test).await;
}

/// The same test for every kind of engine that publishes on a socket, or for those that are named.
#[macro_export]
macro_rules! every_engine {
    (@of $name:ident, $body:block, $($engine:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "what the body needs differs")]
            use super::*;

            async fn body() $body

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $engine() {
                $crate::speaking($crate::profiles::$engine, body()).await;
            })*
        }
    };
    ($(#[only($($engine:ident),*)] async fn $some:ident() $body:block)*) => {
        $($crate::every_engine!(@of $some, $body, $($engine)*);)*
    };
    ($(async fn $name:ident() $body:block)*) => {
        $($crate::every_engine!(@of $name, $body, vllm sglang tokenspeed trtllm_push);)*
    };
}

/// What engines of each kind speak like, where a test runs for all of them.
pub mod profiles {
    #![allow(non_upper_case_globals, reason = "names of tests")]
    use super::Profile;

    /// vLLM.
    pub const vllm: Profile = Profile::Vllm0_32;
    /// `SGLang`.
    pub const sglang: Profile = Profile::Sglang0_5_22;
    /// `TokenSpeed`.
    pub const tokenspeed: Profile = Profile::Tokenspeed0_1_1;
    /// TensorRT-LLM in push mode.
    pub const trtllm_push: Profile = Profile::TrtllmZmq;
}

/// A simulated engine with a seeded load.
#[derive(Debug)]
pub struct Engine {
    /// The engine.
    pub sim: SimHandle,
    load: Workload,
    replay: bool,
    http: bool,
}

/// Conversations with a common beginning, as every test's engine is sent them.
pub fn workload(seed: u64) -> Workload {
    Workload::new(LoadConfig {
        system_tokens: 64,
        conversations: 6,
        output_tokens: 24,
        seed,
        ..LoadConfig::default()
    })
}

impl Engine {
    /// A small engine, otherwise as `change` has it.
    pub fn start(change: impl FnOnce(&mut SimConfig)) -> Self {
        let profile = SPEAKS.try_with(|profile| *profile).unwrap_or(profiles::vllm);
        let http = Some(([127, 0, 0, 1], 0).into());
        let mut config = SimConfig { profile, blocks: 96, http, ..SimConfig::default() };
        change(&mut config);
        let load = workload(config.seed);
        Self { sim: SimEngine::start(config).unwrap(), load, replay: true, http: true }
    }

    /// A small engine.
    pub fn plain() -> Self {
        Self::start(|_| {})
    }

    /// kvplane does not know the replay socket.
    #[must_use]
    pub fn without_replay(mut self) -> Self {
        self.replay = false;
        self
    }

    /// kvplane does not know the HTTP server: no start-time hint.
    #[must_use]
    pub fn without_http(mut self) -> Self {
        self.http = false;
        self
    }

    /// Runs this many requests.
    pub fn work(&mut self, requests: usize) {
        for _ in 0..requests {
            let turn = self.next_turn();
            self.run(&turn, &CompletionOptions::default());
        }
    }

    /// The request that comes next.
    pub fn next_turn(&mut self) -> Turn {
        self.load.next_turn()
    }

    /// Runs a request.
    pub fn run(&mut self, turn: &Turn, options: &CompletionOptions) -> CompletionResult {
        let result = self.sim.complete(&turn.prompt, turn.max_tokens, options).unwrap();
        self.load.replied(turn.conversation, &result.output);
        // Publishing is the publisher's thread's business; wait until it is done.
        self.sim.state();
        result
    }

    /// `SGLang` speaks before anybody listens: it clears its cache when it starts. A flush says the same
    /// again.
    pub fn repeat_what_nobody_heard(&self) {
        if self.sim.config().profile.engine() == EngineKind::Sglang {
            assert!(self.sim.reset_prefix_cache());
        }
    }

    /// The sequence of its next batch, once everything before is published.
    pub fn next_sequence(&self) -> u64 {
        self.sim.state()[0].next_sequence
    }

    /// What rank 0 holds: hash to copies.
    pub fn held(&self) -> BTreeMap<u64, u64> {
        let state = self.sim.state().remove(0);
        let mut held = BTreeMap::<u64, u64>::new();
        for (hash, copies) in state.blocks.into_iter().chain(state.host_blocks) {
            *held.entry(hash).or_default() += copies as u64;
        }
        held
    }

    /// The digest of what rank 0 holds on the device.
    pub fn digest(&self) -> StateDigest {
        let place = PlaceSeed::new(Some("GPU"), None, None, Some(0));
        let mut digest = StateDigest::default();
        for (hash, copies) in &self.sim.state()[0].blocks {
            digest.change(place, *hash, 0, u32::try_from(*copies).unwrap());
        }
        digest
    }

    /// How a plane follows it under a name.
    pub fn spec(&self, id: &str) -> EngineSpec {
        let events = Endpoint::Connect(self.sim.event_endpoints().remove(0));
        let replay = if self.replay { self.sim.replay_endpoints().remove(0) } else { None };
        let published = Published::at_ports(&events, replay.as_deref(), self.sim.config().ranks).unwrap();
        let kind = self.sim.config().profile.engine();
        EngineSpec {
            worker_id: 7,
            http: self.sim.http_address().filter(|_| self.http).map(|address| format!("http://{address}")),
            ..EngineSpec::new(EngineId::new(id), kind, "sim", Source::Published(published))
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.sim.stop();
    }
}
