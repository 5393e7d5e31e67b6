//! What an engine held, and when; and what an answer about it is worth.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tokens of each document that the engine would have served from its cache.
pub type Hits = Vec<usize>;

/// The states of one engine, oldest first. The last one is now.
pub struct Truth {
    states: VecDeque<State>,
    keep: Duration,
}

struct State {
    hits: Hits,
    /// When the change to the next state was over.
    left: Option<Instant>,
}

/// What the plane says of one document.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub document: usize,
    pub tokens: usize,
    pub is_exact: bool,
}

impl Truth {
    pub fn new(hits: Hits, keep: Duration) -> Self {
        Self { states: VecDeque::from([State { hits, left: None }]), keep }
    }

    /// The engine is in this state from now on; call it when a change is over.
    pub fn record(&mut self, hits: Hits) {
        let now = Instant::now();
        if let Some(last) = self.states.back_mut() {
            last.left = Some(now);
        }
        self.states.push_back(State { hits, left: None });
        while self.states.front().and_then(|state| state.left).is_some_and(|left| left + self.keep * 4 < now)
        {
            self.states.pop_front();
        }
    }

    /// Whether an answer describes a state that there was within the bound before it was asked for.
    pub fn allows(&self, claim: Claim, asked: Instant) -> bool {
        let bound = self.keep;
        let mut recent =
            self.states.iter().filter(|state| state.left.is_none_or(|left| left + bound >= asked));
        if claim.is_exact {
            recent.any(|state| state.hits[claim.document] == claim.tokens)
        } else {
            recent.any(|state| state.hits[claim.document] >= claim.tokens)
        }
    }

    /// What the engine would have served of a document, and how long ago it last did.
    pub fn describe(&self, document: usize) -> String {
        let mut runs: Vec<(usize, Option<Instant>)> = Vec::new();
        for state in &self.states {
            let hits = state.hits[document];
            match runs.last_mut() {
                Some((last, left)) if *last == hits => *left = state.left,
                _ => runs.push((hits, state.left)),
            }
        }
        let word = |(hits, left): &(usize, Option<Instant>)| match left {
            Some(left) => format!(" {hits} until {:.2} s ago,", left.elapsed().as_secs_f64()),
            None => format!(" {hits} now"),
        };
        runs.iter().rev().take(6).rev().map(word).collect()
    }
}
