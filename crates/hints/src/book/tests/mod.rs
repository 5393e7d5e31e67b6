//! The book against the plain one, gate by gate, at its bounds, and with many at once.

mod bounds;
mod gates;
mod model;
mod observed;
mod oracle;
mod threads;

use std::sync::Arc;

use super::*;
use crate::policy::Policy;
use crate::prefix::{CacheTier, Note, Prefix};
use crate::question::{Asked, ReasonCode};

/// Some moment; times of tests count from here.
const NOW: i64 = 1_700_000_000_000_000;
const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;

fn whose(replica: &str) -> Whose<'_> {
    Whose { tenant: "t", model: "m", replica }
}

fn hash(number: u64) -> PrefixHash {
    PrefixHash::Fingerprint(number)
}

fn hashes(numbers: impl IntoIterator<Item = u64>) -> Vec<PrefixHash> {
    numbers.into_iter().map(hash).collect()
}

fn entry(number: u64, tokens: u32) -> Entry {
    Entry { hash: hash(number), tokens, tier: CacheTier::T1, adapter: "".into() }
}

/// A chain of blocks of 16 tokens.
fn entries(numbers: impl IntoIterator<Item = u64>) -> Vec<Entry> {
    numbers.into_iter().zip(1..).map(|(number, block)| entry(number, block * 16)).collect()
}

fn held(fingerprint: u64, tokens: u32) -> Note {
    Note::Held(Prefix { fingerprint, tokens, block: 16, tier: CacheTier::T1, sure: true, adapter: "".into() })
}

fn question(asked: Asked<'_>) -> Question<'_> {
    Question {
        tenant: "t",
        model: "m",
        scheme: "s",
        adapter: "",
        asked,
        chain_on_wire: matches!(asked, Asked::Chain { .. }),
        ttft_ms: 0,
        expired: false,
    }
}

/// The answer to a report of which all, this many, were taken.
fn taken(taken: usize) -> Reported {
    Reported { taken, unnamed: 0 }
}

fn book(policy: Policy) -> Book {
    Book::new(Limits::default(), Policies { default: policy, ..Policies::default() }, None)
}

/// Names and matched tokens, best first.
fn named(verdict: &Verdict) -> Vec<(&str, u32)> {
    verdict.scores.iter().map(|score| (&*score.replica, score.matched_tokens)).collect()
}

impl Book {
    fn ask(&self, asked: Asked<'_>) -> Verdict {
        self.lookup(&question(asked), NOW)
    }

    fn ask_chain(&self, numbers: impl IntoIterator<Item = u64>) -> Verdict {
        let hashes = hashes(numbers);
        let counts = vec![16; hashes.len()];
        self.ask(Asked::Chain { hashes: &hashes, counts: &counts })
    }

    fn ask_exact(&self, number: u64, tokens: u32) -> Verdict {
        self.ask(Asked::Exact { hash: &hash(number), tokens })
    }

    /// Reports that must be taken.
    fn reported(&self, replica: &str, at_us: i64, entries: &[Entry]) {
        assert_eq!(self.report(whose(replica), "s", at_us, entries), Ok(taken(entries.len())));
    }
}
