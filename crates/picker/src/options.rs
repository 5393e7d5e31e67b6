//! How the picker behaves.

use std::collections::HashMap;
use std::time::Duration;

use crate::rewrite::Rewrites;

/// How the picker behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Endpoints behind the first that a gateway may try, where its load balancer takes a list.
    pub fallbacks: usize,
    /// Tells what every endpoint in the list was worth.
    pub scores: bool,
    /// The policy to decide by; absent: the router's.
    pub policy: Option<String>,
    /// How long a prompt may take to become ids, before a millisecond for every 4 KiB of it. Then the load
    /// decides.
    pub tokenize_timeout: Duration,
    /// The longest body of a request.
    pub max_body: usize,
    /// Bodies that are held at the same time, in bytes.
    pub max_bodies: usize,
    /// Sends engines the ids of chats that nothing but their text decides about.
    pub token_in: bool,
    /// Asks engines for the usage of streamed answers, and takes it out where the client did not.
    pub include_usage: bool,
    /// Uncached tokens from which on a prompt is prefilled elsewhere, where the pool has endpoints for that;
    /// 0: never.
    pub prefill_from: u64,
    /// Tokens that another endpoint has to hold more than the one that computes a prompt, for that one to
    /// pull them; 0: engines cannot.
    pub pull_from: u64,
    /// Which model is asked for in the place of another, where the rules are silent.
    pub rewrites: Rewrites,
    /// Priorities by the names of objectives. Below 0: may be shed.
    pub objectives: HashMap<String, i32>,
    /// Requests in flight per endpoint from which on those that may be shed are.
    pub shed_at: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fallbacks: 0,
            scores: false,
            policy: None,
            tokenize_timeout: Duration::from_millis(50),
            max_body: 64 << 20,
            max_bodies: 512 << 20,
            token_in: false,
            include_usage: false,
            prefill_from: 16,
            pull_from: 0,
            rewrites: Rewrites::default(),
            objectives: HashMap::new(),
            shed_at: 128,
        }
    }
}

impl Options {
    /// How long a prompt of a given number of bytes may take.
    pub(crate) fn tokenize_within(&self, bytes: usize) -> Duration {
        const PER_MILLISECOND: usize = 4 << 10;
        self.tokenize_timeout + Duration::from_millis((bytes / PER_MILLISECOND) as u64)
    }
}
