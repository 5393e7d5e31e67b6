//! A request while it runs.

use std::sync::Arc;

use super::{CompletionOptions, CompletionResult, Engine, SimError};
use crate::cache::{Moment, Request};
use crate::history::{Recorded, next_token};
use crate::keys::Keys;
use crate::pool::Report;

/// A request that holds its blocks. Dropping it ends it.
pub struct Running {
    engine: Arc<Engine>,
    rank: u32,
    life: u64,
    preemptions: u64,
    request: Request,
    keys: Keys,
    cached_tokens: usize,
    max_tokens: usize,
    output: Vec<u32>,
}

impl Running {
    pub(super) fn begin(
        engine: Arc<Engine>,
        rank: u32,
        prompt: &[u32],
        max_tokens: usize,
        options: &CompletionOptions,
    ) -> Result<Self, SimError> {
        let (keys, report) = (options.keys(), options.report);
        let (request, life, preemptions) = {
            let place = &engine.ranks[rank as usize];
            let mut life = place.state.lock();
            let begun = life.cache.begin(prompt, keys.clone(), report);
            // Also what a refused request evicted.
            place.publish(&mut life, Moment::Prefill);
            let request = begun?;
            let recorded = Recorded { prompt: prompt.to_vec(), max_tokens, keys: keys.clone(), report };
            life.history.push(recorded);
            life.running += 1;
            (request, life.number, life.preemptions)
        };
        let cached_tokens = request.cached_tokens();
        let output = Vec::new();
        Ok(Self { engine, rank, life, preemptions, request, keys, cached_tokens, max_tokens, output })
    }

    /// Generates one token; `None` when all are generated. The last token is sampled but never computed,
    /// so it is in no block.
    pub fn step(&mut self) -> Result<Option<u32>, SimError> {
        if self.output.len() >= self.max_tokens {
            return Ok(None);
        }
        if let Some(&last) = self.output.last() {
            let place = &self.engine.ranks[self.rank as usize];
            let mut life = place.state.lock();
            if life.number != self.life {
                return Err(SimError::Restarted);
            }
            if life.preemptions != self.preemptions {
                // All that it had computed is computed again.
                self.request = life.cache.begin(self.request.tokens(), self.keys.clone(), Report::New)?;
                self.preemptions = life.preemptions;
            }
            life.cache.append(&mut self.request, last)?;
            place.publish(&mut life, Moment::Decode);
        }
        let token = next_token(self.engine.config.seed, self.request.tokens());
        self.output.push(token);
        Ok(Some(token))
    }

    /// Prompt tokens that were found in the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Ends the request; its blocks stay cached until they are needed.
    pub fn finish(mut self) -> CompletionResult {
        let output = std::mem::take(&mut self.output);
        CompletionResult { rank: self.rank, cached_tokens: self.cached_tokens(), output }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let place = &self.engine.ranks[self.rank as usize];
        let mut life = place.state.lock();
        // Blocks of an earlier life went with its cache.
        if life.number == self.life {
            life.running -= 1;
            // What it lost is not its own any more.
            if life.preemptions == self.preemptions {
                life.cache.finish(&self.request);
            }
            place.publish(&mut life, Moment::Idle);
        }
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("rank", &self.rank)
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}
