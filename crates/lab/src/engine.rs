//! One engine: a queue, steps of chunked prefill and decode, and a cache.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use kvplane_route::Load;

use crate::cache::{Cache, Pool};
use crate::trace::Request;

/// What an engine takes for what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Seconds per prefilled token.
    pub prefill: f64,
    /// Seconds per pair of tokens that attend to each other in a prefill.
    pub attention: f64,
    /// Tokens prefilled in one step at most.
    pub chunk: u64,
    /// Seconds of any step.
    pub step: f64,
    /// Seconds of a step per request that decodes.
    pub sequence: f64,
    /// Seconds of a step per KV token that is read.
    pub kv_token: f64,
}

impl Default for Speed {
    fn default() -> Self {
        Self {
            prefill: 1.0 / 16_000.0,
            attention: 0.6e-9,
            chunk: 8_192,
            step: 0.012,
            sequence: 3e-5,
            kv_token: 1.1e-8,
        }
    }
}

/// A request on an engine.
#[derive(Debug, Clone)]
struct Job {
    request: usize,
    cached: u64,
    done: u64,
}

/// What a step brought.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// Requests whose first token came, with what was cached of them.
    pub(crate) first: Vec<(usize, u64)>,
    /// Requests that are over.
    pub(crate) finished: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    speed: Speed,
    block: u64,
    pub(crate) cache: Cache,
    waiting: VecDeque<usize>,
    prefilling: VecDeque<Job>,
    /// Requests that decode, by the step at which they are over.
    decoding: BinaryHeap<Reverse<(u64, usize)>>,
    steps: u64,
    kv_tokens: u64,
    /// Which blocks the step under way completes.
    computed: Vec<(usize, u64, u64)>,
    pub(crate) stepping: bool,
    pub(crate) up: bool,
    /// When the step under way ends.
    ends: f64,
    pub(crate) busy: f64,
}

impl Engine {
    pub(crate) fn new(speed: Speed, block: u64, capacity_tokens: u64) -> Self {
        Self {
            speed,
            block,
            cache: Cache::new(capacity_tokens / block),
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: BinaryHeap::new(),
            steps: 0,
            kv_tokens: 0,
            computed: Vec::new(),
            stepping: false,
            up: true,
            ends: 0.0,
            busy: 0.0,
        }
    }

    pub(crate) fn send(&mut self, request: usize) {
        self.waiting.push_back(request);
    }

    /// What its metrics say.
    pub(crate) fn load(&self) -> Load {
        Load {
            running: (self.prefilling.len() + self.decoding.len()) as u32,
            waiting: self.waiting.len() as u32,
            waiting_tokens: None,
            kv_usage: Some(self.cache.usage()),
            kv_capacity: Some(self.cache.capacity().saturating_mul(self.block)),
        }
    }

    /// When a request that comes now would have its first token, if no other came: exactly, but for room in
    /// the cache, of which there is enough.
    pub(crate) fn foresee(&self, requests: &[Request], request: usize, now: f64) -> f64 {
        let pool = Pool::default();
        for &waiting in self.waiting.iter().chain([&request]) {
            let blocks = &requests[waiting].blocks;
            pool.borrow_mut().extend(&blocks[..self.cache.found(blocks)]);
        }
        let mut twin = Self {
            cache: Cache::pooled(pool),
            waiting: self.waiting.clone(),
            prefilling: self.prefilling.clone(),
            decoding: self.decoding.clone(),
            computed: self.computed.clone(),
            ..*self
        };
        twin.send(request);
        let mut at = now;
        if twin.stepping {
            at = twin.ends;
            twin.end(requests);
        }
        while let Some(seconds) = twin.begin(requests, at) {
            at += seconds;
            if twin.end(requests).first.iter().any(|(first, _)| *first == request) {
                return at;
            }
        }
        f64::INFINITY
    }

    /// Begins a step; says how long it takes, or `None` if there is nothing to do.
    pub(crate) fn begin(&mut self, requests: &[Request], now: f64) -> Option<f64> {
        let mut budget = self.speed.chunk;
        let mut seconds = 0.0;
        let mut at = 0;
        while budget > 0 {
            if at == self.prefilling.len() && !self.admit_next(requests) {
                break;
            }
            let job = &mut self.prefilling[at];
            let tokens = (requests[job.request].prompt - job.done).min(budget);
            budget -= tokens;
            let attended = tokens as f64 * (job.done as f64 + tokens as f64 / 2.0);
            seconds += tokens as f64 * self.speed.prefill + attended * self.speed.attention;
            self.computed.push((job.request, job.done, job.done + tokens));
            job.done += tokens;
            at += 1;
        }
        if at == 0 && self.decoding.is_empty() {
            return None;
        }
        let decoding = self.decoding.len() as f64 * self.speed.sequence;
        seconds += self.speed.step + decoding + self.kv_tokens as f64 * self.speed.kv_token;
        self.busy += seconds;
        self.ends = now + seconds;
        self.stepping = true;
        Some(seconds)
    }

    /// A request that waits is taken in, if there is room.
    fn admit_next(&mut self, requests: &[Request]) -> bool {
        let Some(&next) = self.waiting.front() else { return false };
        let request = &requests[next];
        let Some(found) = self.cache.admit(&request.blocks, self.private(request)) else {
            assert!(
                !(self.decoding.is_empty() && self.prefilling.is_empty()),
                "a prompt is larger than an engine's cache"
            );
            return false;
        };
        self.waiting.pop_front();
        // The last token is always computed.
        let cached = (found as u64 * self.block).min(request.prompt - 1);
        self.prefilling.push_back(Job { request: next, cached, done: cached });
        true
    }

    fn private(&self, request: &Request) -> u64 {
        (request.prompt + request.output).div_ceil(self.block) - request.blocks.len() as u64
    }

    /// Ends the step under way.
    pub(crate) fn end(&mut self, requests: &[Request]) -> Brought {
        self.stepping = false;
        self.steps += 1;
        let mut brought = Brought::default();
        for (request, from, to) in std::mem::take(&mut self.computed) {
            let blocks = &requests[request].blocks;
            let range = (from / self.block) as usize..((to / self.block) as usize).min(blocks.len());
            if range.start < range.end {
                self.cache.announce(&blocks[range]);
            }
        }
        while let Some(&Reverse((ends, request))) = self.decoding.peek() {
            if ends > self.steps {
                break;
            }
            self.decoding.pop();
            self.over(&requests[request]);
            brought.finished.push(request);
        }
        while let Some(job) = self.prefilling.pop_front_if(|job| job.done >= requests[job.request].prompt) {
            brought.first.push((job.request, job.cached));
            let request = &requests[job.request];
            self.kv_tokens += request.prompt + request.output / 2;
            if request.output > 1 {
                self.decoding.push(Reverse((self.steps + request.output - 1, job.request)));
            } else {
                self.over(request);
                brought.finished.push(job.request);
            }
        }
        brought
    }

    fn over(&mut self, request: &Request) {
        self.kv_tokens -= request.prompt + request.output / 2;
        let private = self.private(request);
        self.cache.release(&request.blocks, private, &request.filled);
    }

    /// Holds what any engine with the same pool has computed.
    pub(crate) fn share(&mut self, pool: Pool) {
        self.cache = Cache::pooled(pool);
    }

    /// Everything is gone; says which requests were there.
    pub(crate) fn crash(&mut self) -> Vec<usize> {
        let mut lost: Vec<usize> = self.prefilling.drain(..).map(|job| job.request).collect();
        lost.extend(self.waiting.drain(..));
        lost.extend(self.decoding.drain().map(|Reverse((_, request))| request));
        lost.sort_unstable();
        self.computed.clear();
        self.cache.clear();
        self.kv_tokens = 0;
        self.up = false;
        lost
    }
}
