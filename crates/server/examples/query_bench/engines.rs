//! The engines that the servers hear of, and the prompts that they hold.

use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};

/// The model that all engines serve.
pub(crate) const MODEL: &str = "m";
/// Tokens per block.
pub(crate) const BLOCK_SIZE: usize = 16;
/// Blocks per prompt.
pub(crate) const BLOCKS: usize = 512;
/// Different prompts, so that no cache of the processor holds all of them.
pub(crate) const PROMPTS: usize = 64;
/// Engines, each of which holds another share of every prompt.
pub(crate) const ENGINES: usize = 8;
/// Room for the blocks of the prompts that only make an engine publish.
const SPARE_BLOCKS: usize = 4096;

/// Simulated engines. They are idle while something is measured.
pub(crate) struct Engines(Vec<SimHandle>);

impl Engines {
    /// Engines that have run every prompt as far as [`blocks_held`] says.
    pub(crate) fn start() -> Self {
        let blocks = PROMPTS * (BLOCKS + 2) + SPARE_BLOCKS;
        let start = |_| SimEngine::start(SimConfig { blocks, ..SimConfig::default() }).unwrap();
        let engines: Vec<SimHandle> = (0..ENGINES).map(start).collect();
        for (at, engine) in engines.iter().enumerate() {
            for prompt in prompts(0) {
                run(engine, &prompt[..blocks_held(at) * BLOCK_SIZE]);
            }
        }
        Self(engines)
    }

    /// Where each publishes, and where it can be asked for what it has published.
    pub(crate) fn endpoints(&self) -> Vec<(String, String)> {
        let endpoints = |engine: &SimHandle| {
            (engine.event_endpoints().remove(0), engine.replay_endpoints().remove(0).unwrap())
        };
        self.0.iter().map(endpoints).collect()
    }

    /// Makes every engine publish something. Dynamo's indexer asks for what it has missed only when it hears
    /// a batch.
    pub(crate) fn publish_something(&self, round: u32) {
        for engine in &self.0 {
            run(engine, &[u32::MAX - round; BLOCK_SIZE]);
        }
    }

    /// Ends them.
    pub(crate) fn stop(&self) {
        self.0.iter().for_each(SimHandle::stop);
    }
}

fn run(engine: &SimHandle, prompt: &[u32]) {
    engine.complete(prompt, 1, &CompletionOptions::default()).unwrap();
}

/// How many blocks of every prompt an engine holds: the last all of them, the others less.
pub(crate) fn blocks_held(engine: usize) -> usize {
    BLOCKS * (engine + 1) / ENGINES
}

/// Prompts that differ from their first block on, as do those of different sets.
pub(crate) fn prompts(set: usize) -> Vec<Vec<u32>> {
    let token = |prompt: usize, at: usize| ((at * 31 + prompt * 7_919) % 128_000) as u32;
    let tokens = |prompt| (0..BLOCKS * BLOCK_SIZE).map(|at| token(prompt, at)).collect();
    (set * PROMPTS..(set + 1) * PROMPTS).map(tokens).collect()
}
