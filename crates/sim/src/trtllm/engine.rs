//! The server: requests on caches, events into buffers, lives.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use kvplane_wire::trtllm::encode::{TrtData, TrtEvent, TrtHash, TrtMmKey};
use parking_lot::Mutex;

use super::buffer::{Buffer, Kept};
use super::cache::{Cache, Shape};
use super::config::TrtConfig;
use super::fault::{TrtAnswer, TrtFault, TrtRestart};
use super::http;
use crate::engine::{CompletionOptions, CompletionResult, SimError};
use crate::history::next_token;
use crate::keys::Keys;
use crate::load::Random;
use crate::operate::{Conduct, Desk, before_routes};
use crate::pool::PoolError;
use crate::serve::ServerThread;

/// Requests remembered per life and rank; enough for any scenario, bounded for long demonstrations.
const REMEMBERED: usize = 10_000;

/// Starts simulated servers.
#[derive(Debug)]
pub struct TrtSim;

/// A running server. Cheap to clone; it ends with [`TrtHandle::stop`] or with the last clone.
#[derive(Clone)]
pub struct TrtHandle {
    server: Arc<Server>,
    /// Absent in the handle that the HTTP server itself holds, so that it does not keep itself alive.
    http: Option<Arc<ServerThread>>,
}

/// The truth about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrtRankState {
    /// The rank.
    pub rank: u32,
    /// The id of the next event.
    pub next_event_id: u64,
    /// Events that wait to be drained.
    pub waiting_events: usize,
    /// Events that nobody will ever drain.
    pub forgotten_events: u64,
    /// What is cached, by window.
    pub pools: Vec<TrtPoolState>,
}

/// The truth about one window's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrtPoolState {
    /// The window.
    pub window_size: u32,
    /// Its layer group, where the server names it.
    pub layer_group_id: Option<u32>,
    /// The cached blocks.
    pub blocks: BTreeMap<TrtHash, TrtBlockState>,
}

/// The truth about a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrtBlockState {
    /// The block before it.
    pub parent: Option<TrtHash>,
    /// Its tokens; fewer than others have in a partial block.
    pub tokens: Vec<u32>,
    /// Cache salt.
    pub cache_salt: Option<String>,
    /// Images that it has a part of.
    pub mm_keys: Vec<TrtMmKey>,
    /// Where it lies: 0 is the device, 1 the host, 2 a disk.
    pub level: usize,
}

struct Server {
    config: TrtConfig,
    state: Mutex<State>,
    desk: Arc<Desk>,
}

/// What a server has in one life, and what goes wrong with it.
struct State {
    ranks: Vec<Rank>,
    lives: u64,
    arrivals: u64,
    next_rank: usize,
    answers: VecDeque<TrtAnswer>,
}

struct Rank {
    caches: Vec<Cache>,
    buffer: Buffer,
    history: Vec<Request>,
}

/// A request as it can be served again.
#[derive(Clone)]
struct Request {
    prompt: Vec<u32>,
    max_tokens: usize,
    keys: Keys,
}

impl TrtSim {
    /// Starts a server.
    pub fn start(config: TrtConfig) -> Result<TrtHandle, SimError> {
        let mut state =
            State { ranks: Vec::new(), lives: 0, arrivals: 0, next_rank: 0, answers: VecDeque::new() };
        state.begin_life(&config);
        let address = config.http;
        let desk = Arc::new(Desk::new(config.conduct.clone()));
        let server = Arc::new(Server { config, state: Mutex::new(state), desk });
        let handle = TrtHandle { server: server.clone(), http: None };
        for fault in server.config.faults.clone() {
            handle.fault(None, fault);
        }
        let router = before_routes(http::router(handle), &server.desk);
        let http = ServerThread::start("sim-http", address, router)?;
        Ok(TrtHandle { server, http: Some(Arc::new(http)) })
    }
}

impl TrtHandle {
    /// Runs a request to its end. Adapters keep blocks apart, but do not show in events.
    pub fn complete(
        &self,
        prompt: &[u32],
        max_tokens: usize,
        options: &CompletionOptions,
    ) -> Result<CompletionResult, SimError> {
        let mut state = self.server.state.lock();
        let rank = match options.rank {
            Some(rank) if rank as usize >= state.ranks.len() => return Err(SimError::NoRank(rank)),
            Some(rank) => rank as usize,
            None => state.turn(),
        };
        let keys = options.keys();
        let request = Request { prompt: prompt.to_vec(), max_tokens: max_tokens.max(1), keys };
        let (cached_tokens, output) = state.serve(&self.server.config, rank, request)?;
        Ok(CompletionResult { rank: rank as u32, cached_tokens, output })
    }

    /// Changes how long the blocks of a prompt are kept, on every rank: events that move nothing.
    pub fn reprioritise(&self, prompt: &[u32], options: &CompletionOptions, priority: u32) {
        let mut state = self.server.state.lock();
        for rank in 0..state.ranks.len() {
            for cache in &mut state.ranks[rank].caches {
                cache.reprioritise(prompt, &options.keys(), priority);
            }
            state.tell(&self.server.config, rank);
        }
    }

    /// Takes all events of all ranks, in the order in which they happened. They are gone then: this is what
    /// another reader of the drain does.
    pub fn drain(&self) -> Vec<TrtEvent> {
        let mut state = self.server.state.lock();
        let mut kept: Vec<Kept> = state.ranks.iter_mut().flat_map(|rank| rank.buffer.drain()).collect();
        kept.sort_by_key(|kept| kept.arrival);
        kept.into_iter().map(|kept| kept.event).collect()
    }

    /// Makes something go wrong, on one rank or on all. Armed when this returns.
    pub fn fault(&self, rank: Option<u32>, fault: TrtFault) {
        match fault {
            TrtFault::Answer { answer, polls } => {
                let answers = std::iter::repeat_n(answer, polls as usize);
                self.server.state.lock().answers.extend(answers);
            }
            TrtFault::Heal => self.server.state.lock().answers.clear(),
            TrtFault::Lose(events) => {
                let mut state = self.server.state.lock();
                let ranks = state.ranks.iter_mut().enumerate();
                ranks
                    .filter(|(index, _)| rank.is_none_or(|rank| rank as usize == *index))
                    .for_each(|(_, rank)| rank.buffer.lose(events));
            }
            TrtFault::Steal => drop(self.drain()),
            TrtFault::Restart(restart) => self.server.state.lock().restart(&self.server.config, restart),
        }
    }

    /// The truth.
    pub fn state(&self) -> Vec<TrtRankState> {
        let state = self.server.state.lock();
        let config = &self.server.config;
        let pool = |(index, cache): (usize, &Cache)| {
            let block = |block: super::cache::Resident| {
                let state = TrtBlockState {
                    parent: block.parent,
                    tokens: block.tokens,
                    cache_salt: block.salt,
                    mm_keys: block.items,
                    level: block.level,
                };
                (block.hash, state)
            };
            TrtPoolState {
                window_size: config.windows[index],
                layer_group_id: config.layer_group(index),
                blocks: cache.resident().map(block).collect(),
            }
        };
        let rank = |(index, rank): (usize, &Rank)| TrtRankState {
            rank: index as u32,
            next_event_id: rank.buffer.next_id(),
            waiting_events: rank.buffer.len(),
            forgotten_events: rank.buffer.forgotten(),
            pools: rank.caches.iter().enumerate().map(pool).collect(),
        };
        state.ranks.iter().enumerate().map(rank).collect()
    }

    /// The id of a rank's next event; 0 for a rank that there is not.
    pub fn next_event_id(&self, rank: u32) -> u64 {
        let state = self.server.state.lock();
        state.ranks.get(rank as usize).map_or(0, |rank| rank.buffer.next_id())
    }

    /// Where HTTP is served.
    pub fn http_address(&self) -> SocketAddr {
        self.http.as_ref().map_or(self.server.config.http, |http| http.address())
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &TrtConfig {
        &self.server.config
    }

    /// Ends the server, even where others hold a handle.
    pub fn stop(&self) {
        if let Some(http) = &self.http {
            http.stop();
        }
    }

    /// How operations go from now on, until somebody says otherwise.
    pub fn conduct(&self, conduct: Conduct) {
        self.server.desk.set(conduct);
    }

    pub(super) fn is_well(&self) -> bool {
        self.server.desk.is_well()
    }

    /// How the next drain is to be answered, if not rightly.
    pub(super) fn next_answer(&self) -> Option<TrtAnswer> {
        self.server.state.lock().answers.pop_front()
    }

    /// Blocks in use of each level, over all ranks, of the first window.
    pub(super) fn used_blocks(&self) -> Vec<usize> {
        let state = self.server.state.lock();
        let levels = self.server.config.levels.len();
        let caches = || state.ranks.iter().filter_map(|rank| rank.caches.first());
        let used = |level: usize| caches().filter_map(|cache| cache.used().get(level)).sum();
        (0..levels).map(used).collect()
    }
}

impl std::fmt::Debug for TrtHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrtHandle").field("http", &self.http_address()).finish_non_exhaustive()
    }
}

impl State {
    /// Replaces everything that does not outlive the process.
    fn begin_life(&mut self, config: &TrtConfig) {
        self.lives += 1;
        let shape = Shape {
            block_size: config.block_size.max(1),
            levels: config.levels.clone(),
            algo: config.hash_algo.unwrap_or_default(),
            partial_reuse: config.partial_reuse,
        };
        let rank = |_| Rank {
            caches: config.windows.iter().map(|_| Cache::new(shape.clone())).collect(),
            buffer: Buffer::new(config.event_buffer),
            history: Vec::new(),
        };
        self.ranks = (0..config.ranks.max(1)).map(rank).collect();
        for rank in 0..self.ranks.len() {
            self.tell(config, rank);
        }
    }

    fn restart(&mut self, config: &TrtConfig, restart: TrtRestart) {
        let old: Vec<_> = self.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.history)).collect();
        self.begin_life(config);
        let mut random = Random::new(config.seed ^ self.lives.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for (rank, history) in old.into_iter().enumerate() {
            let again = history.into_iter().filter(|_| restart.same_content);
            let new = std::iter::repeat_with(|| made_up(config, &mut random));
            for request in again.chain(new) {
                let has_enough = self.ranks[rank].buffer.next_id() >= restart.first_event_id;
                let buffer = &self.ranks[rank].buffer;
                if has_enough || !buffer.has_events() || self.serve(config, rank, request).is_err() {
                    break;
                }
            }
        }
    }

    fn turn(&mut self) -> usize {
        let rank = self.next_rank % self.ranks.len();
        self.next_rank += 1;
        rank
    }

    /// Runs a request: how many of its tokens were cached, and what it generated.
    fn serve(
        &mut self,
        config: &TrtConfig,
        rank: usize,
        request: Request,
    ) -> Result<(usize, Vec<u32>), PoolError> {
        let Request { prompt, max_tokens, keys } = &request;
        let place = &mut self.ranks[rank];
        let mut tokens = prompt.clone();
        let mut output = Vec::new();
        while output.len() < *max_tokens {
            // The last token is sampled but never computed, so it is in no block.
            tokens.extend(output.last());
            output.push(next_token(config.seed, &tokens));
        }
        // What one window lacks has to be computed for all.
        let reused = place.caches.iter().map(|cache| cache.full_matches(prompt, keys)).min().unwrap_or(0);
        let mut partial = usize::MAX;
        for cache in &mut place.caches {
            let (held, part) = cache.begin(prompt, keys, reused, tokens.len())?;
            cache.finish(held, &tokens);
            partial = partial.min(part);
        }
        let cached = reused * config.block_size.max(1) + if partial == usize::MAX { 0 } else { partial };
        if place.history.len() < REMEMBERED {
            place.history.push(request);
        }
        self.tell(config, rank);
        Ok((cached, output))
    }

    /// Numbers what a rank's caches have done.
    fn tell(&mut self, config: &TrtConfig, rank: usize) {
        let Rank { caches, buffer, .. } = &mut self.ranks[rank];
        for (index, cache) in caches.iter_mut().enumerate() {
            for data in cache.take_events() {
                self.arrivals += 1;
                buffer.push(self.arrivals, |event_id| event(config, rank, index, event_id, data));
            }
        }
    }
}

fn event(config: &TrtConfig, rank: usize, window: usize, event_id: u64, data: TrtData) -> TrtEvent {
    TrtEvent {
        event_id,
        data,
        window_size: Some(config.windows[window]),
        attention_dp_rank: (config.ranks > 1).then_some(rank as u32),
        hash_algo: config.hash_algo,
        layer_group_id: config.layer_group(window),
    }
}

fn made_up(config: &TrtConfig, random: &mut Random) -> Request {
    const VOCABULARY: u64 = 32_000;
    // Whole blocks and one token more, but never more than the device holds.
    let blocks = config.levels.first().map_or(0, |blocks| blocks.saturating_sub(1)).min(2);
    let length = blocks * config.block_size.max(1) + 1;
    let prompt = (0..length).map(|_| random.below(VOCABULARY) as u32).collect();
    Request { prompt, max_tokens: 1, keys: Keys::default() }
}

impl TrtConfig {
    /// The layer group of a window, where the cache manager has such.
    fn layer_group(&self, window: usize) -> Option<u32> {
        self.hash_algo.map(|_| window as u32)
    }
}
