//! The engine as its operator sees it.

use std::sync::Arc;

use kvplane_core::EngineKind;
use serde_json::Value;

use super::{CompletionOptions, CompletionResult, Engine, Life, Rank, SimError, SimHandle};
use crate::cache::Moment;
use crate::operate::{ClearEvent, Conduct, Desk, Facts, Load, Manner, Operated, Reset};
use crate::relay::RelayService;

impl SimHandle {
    /// Forgets every cached block on every rank; false when running requests hold some on any. It is published as
    /// the engine tells it: vLLM with the next batch only, `SGLang` at once. vLLM's colder tiers stay as they are.
    pub fn reset_prefix_cache(&self) -> bool {
        self.flush(Reset::default())
    }

    /// The same, for vLLM's colder tiers too. It is published alike.
    pub fn reset_external_cache(&self) -> bool {
        self.flush(Reset { external: true, ..Reset::default() })
    }

    fn flush(&self, reset: Reset) -> bool {
        let ranks = 0..self.engine.ranks.len() as u32;
        // Every rank is asked, also after one refused.
        ranks.filter(|rank| !self.engine.flush_rank(*rank, reset)).count() == 0
    }

    /// How operations go from now on, until somebody says otherwise.
    pub fn conduct(&self, conduct: Conduct) {
        self.engine.desk.set(conduct);
    }

    /// What operators have asked, the last thousand questions: method, path and query. Completions are among them.
    pub fn asked(&self) -> Vec<String> {
        self.engine.desk.asked()
    }

    /// The options of every recording, the last thousand; and whether one is under way.
    pub fn profiles(&self) -> (Vec<Value>, bool) {
        self.engine.desk.profiles()
    }
}

impl Engine {
    /// The release of the profile, as its engine writes it.
    pub(crate) fn release(&self) -> &'static str {
        let profile = self.config.profile.as_str();
        profile.split_once('-').map_or(profile, |(_, release)| release)
    }

    /// The service that gateways find before such an engine.
    pub(super) fn service(&self) -> RelayService {
        match self.config.profile.engine() {
            EngineKind::Sglang => RelayService::Sglang,
            EngineKind::Tokenspeed => RelayService::Tokenspeed,
            EngineKind::Trtllm => RelayService::Trtllm,
            _ => RelayService::Vllm,
        }
    }
}

impl Operated for Engine {
    fn desk(&self) -> &Desk {
        &self.desk
    }

    fn facts(&self) -> Facts {
        let is_vllm = self.config.profile.engine() == EngineKind::Vllm;
        Facts {
            model: self.config.model.clone(),
            release: self.release(),
            block_size: self.config.block_size,
            blocks: self.config.blocks,
            ranks: self.ranks.len() as u32,
            start_time: *self.start_time.lock(),
            has_profiler: !(is_vllm && self.config.vllm.without.profiler),
        }
    }

    fn loads(&self) -> Vec<Load> {
        let room = self.config.blocks * self.config.block_size;
        let load = |(rank, place): (u32, &Rank)| {
            let life = place.state.lock();
            let blocks: usize = life.cache.groups().iter().flat_map(|group| group.device.values()).sum();
            Load { rank, running: life.running, used_tokens: blocks * self.config.block_size, room }
        };
        (0..).zip(&self.ranks).map(load).collect()
    }

    fn flush_rank(&self, rank: u32, reset: Reset) -> bool {
        let Some(place) = self.ranks.get(rank as usize) else { return false };
        let manner = match self.desk.manner(rank) {
            Manner::Busy => return false,
            Manner::Pretends => return true,
            Manner::Does(manner) => manner,
        };
        let mut life = place.state.lock();
        let done = life.reset(reset, manner);
        place.publish(&mut life, if manner == ClearEvent::Early { Moment::Prefill } else { Moment::Idle });
        done
    }

    fn generate(
        self: Arc<Self>,
        prompt: &[u32],
        max_tokens: usize,
        rank: Option<u32>,
    ) -> Option<Result<CompletionResult, SimError>> {
        let handle = SimHandle { engine: self, servers: None };
        let options = CompletionOptions { rank, ..CompletionOptions::default() };
        Some(handle.complete(prompt, max_tokens, &options))
    }
}

impl Life {
    /// Empties the cache, unless requests hold blocks of it.
    fn reset(&mut self, reset: Reset, manner: ClearEvent) -> bool {
        if reset.running && self.running > 0 {
            self.cache.preempt();
            self.preemptions += 1;
        }
        // What came before is published before, whatever becomes of the clear.
        let withheld = matches!(manner, ClearEvent::NextStep | ClearEvent::Lost);
        if withheld {
            let before = self.cache.take_events(Moment::Prefill);
            self.held_back.extend(before);
        }
        let done = self.cache.reset(reset.external).is_ok();
        if withheld {
            let clear = self.cache.take_events(Moment::Prefill);
            self.held_back.extend(clear.into_iter().filter(|_| manner == ClearEvent::NextStep));
        }
        done
    }
}
