//! What a life has served, and how a new one can have served it before anyone listened.

use kvplane_wire::OwnedEvent;

use crate::cache::{Cache, Moment, Request};
use crate::config::SimConfig;
use crate::fault::Restart;
use crate::keys::Keys;
use crate::load::Random;
use crate::pool::Report;

/// Requests remembered per life; enough for any scenario, bounded for long demonstrations.
const REMEMBERED: usize = 10_000;

/// A request as it can be served again.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) keys: Keys,
    pub(crate) report: Report,
}

/// The requests of one life, in order.
#[derive(Debug, Default)]
pub(crate) struct History(Vec<Recorded>);

impl History {
    pub(crate) fn push(&mut self, request: Recorded) {
        if self.0.len() < REMEMBERED {
            self.0.push(request);
        }
    }
}

/// The next token of a text: noise, but the same noise for the same text and seed.
pub(crate) fn next_token(seed: u64, tokens: &[u32]) -> u32 {
    const VOCABULARY: u64 = 32_000;
    /// Tokens that the next one depends on: enough to tell conversations apart, cheap to hash.
    const CONTEXT: usize = 64;
    let context = &tokens[tokens.len().saturating_sub(CONTEXT)..];
    let bytes: Vec<u8> = context.iter().flat_map(|token| token.to_le_bytes()).collect();
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, seed ^ tokens.len() as u64);
    (hash % VOCABULARY) as u32
}

/// Serves requests on a fresh cache until `restart.first_sequence` batches came of it: first those of the old
/// life if its content is wanted, then made-up ones.
pub(crate) fn relive(
    cache: &mut Cache,
    config: &SimConfig,
    old: &History,
    restart: Restart,
    life: u64,
) -> (History, Vec<Vec<OwnedEvent>>) {
    let mut lived = History::default();
    let mut batches = Vec::new();
    let wanted = restart.first_sequence as usize;
    if wanted > 0 {
        collect(cache, Moment::Idle, &mut batches);
    }
    let mut random = Random::new(config.seed ^ life.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let again = old.0.iter().filter(|_| restart.same_content).cloned();
    // Each makes a batch at least, unless the cache has no room for a block.
    let new = std::iter::repeat_with(|| made_up(config, &mut random)).take(wanted);
    for request in again.chain(new) {
        if batches.len() >= wanted || !serve(cache, config, &request, wanted, &mut batches) {
            break;
        }
        lived.push(request);
    }
    (lived, batches)
}

fn made_up(config: &SimConfig, random: &mut Random) -> Recorded {
    // Whole blocks and one token more, but never more than the cache holds.
    let step = config.step();
    let room = config.blocks * config.block_size / config.vllm.groups.len().max(1);
    let length = if room > step { (room - 1).min(2 * step) / step * step + 1 } else { step };
    let prompt = (0..length).map(|_| random.below(32_000) as u32).collect();
    Recorded { prompt, max_tokens: 1, keys: Keys::default(), report: Report::New }
}

/// Serves one request, taking no more batches than wanted; false when the cache cannot serve it.
fn serve(
    cache: &mut Cache,
    config: &SimConfig,
    request: &Recorded,
    wanted: usize,
    batches: &mut Vec<Vec<OwnedEvent>>,
) -> bool {
    let Ok(mut running) = cache.begin(&request.prompt, request.keys.clone(), request.report) else {
        return false;
    };
    collect(cache, Moment::Prefill, batches);
    for _ in 1..request.max_tokens {
        if batches.len() >= wanted || !step(cache, config, &mut running) {
            break;
        }
        collect(cache, Moment::Decode, batches);
    }
    cache.finish(&running);
    let enough = batches.len() >= wanted;
    match batches.last_mut().filter(|_| enough) {
        Some(last) => last.extend(cache.take_events(Moment::Idle)),
        None => collect(cache, Moment::Idle, batches),
    }
    true
}

fn step(cache: &mut Cache, config: &SimConfig, running: &mut Request) -> bool {
    let token = next_token(config.seed, running.tokens());
    cache.append(running, token).is_ok()
}

fn collect(cache: &mut Cache, moment: Moment, batches: &mut Vec<Vec<OwnedEvent>>) {
    let events = cache.take_events(moment);
    if !events.is_empty() {
        batches.push(events);
    }
}
