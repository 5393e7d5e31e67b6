//! What the plane is worth: tokens asked for and tokens found, by protocol, and the prefixes that save the
//! most.
//!
//! Every answered question counts, whatever protocol it came by. Prefixes are kept as keyed hashes: neither
//! tokens nor text can be recovered from them, and another run has other hashes.

mod sketch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kvplane_catalog::{Answer, Question};
use kvplane_core::Namespace;
use kvplane_metrics::{PrefixRow, ValueRows};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use sketch::{Point, Sketch};

/// Prefixes on a page.
const LISTED: usize = 10;
/// Tokens of the shortest prefix that is counted; each further one is twice as long.
const SHORTEST: usize = 64;
/// Tokens of the longest prefix that is counted.
const LONGEST: usize = 8_192;

/// How a question came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `/v1/query`.
    Http,
    /// `Query`, `QueryBatch` and `QueryStream`.
    Grpc,
    /// `/v1/pick` and `Pick`.
    Pick,
    /// `/query` and `/query_by_hash`, in the JSON of Dynamo's and Mooncake's indexers.
    Indexer,
    /// `LookupRoute` of inference-cache.
    Hints,
}

impl Protocol {
    const ALL: [(Self, &str); 5] = [
        (Self::Http, "http"),
        (Self::Grpc, "grpc"),
        (Self::Pick, "pick"),
        (Self::Indexer, "indexer"),
        (Self::Hints, "hints"),
    ];
}

#[derive(Debug, Default)]
struct Counts {
    questions: AtomicU64,
    asked: AtomicU64,
    found: AtomicU64,
}

/// What was asked for and what was found of it, since the process started.
#[derive(Debug)]
pub(crate) struct Value {
    counts: [Counts; Protocol::ALL.len()],
    prefixes: Mutex<Sketch>,
    /// Keys the hashes of prefixes.
    seed: u64,
}

/// Questions and their tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Tally {
    pub(crate) questions: u64,
    /// Tokens of their prompts.
    pub(crate) tokens_asked: u64,
    /// Tokens that the engine with the longest credited match holds.
    pub(crate) tokens_found: u64,
}

/// A prefix and the tokens that it saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct TopPrefix {
    /// A keyed hash; another run of kvplane has another.
    pub(crate) prefix: String,
    pub(crate) model: String,
    /// Its length.
    pub(crate) tokens: u64,
    /// Questions that found it, times its length.
    pub(crate) tokens_found: u64,
    /// `tokens_found` may be too high by at most this: the table is bounded.
    pub(crate) over_by_at_most: u64,
}

/// All of it, for a page.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ValueStatus {
    #[serde(flatten)]
    all: Tally,
    by_protocol: BTreeMap<&'static str, Tally>,
    /// The prefixes that saved the most, most first.
    top_prefixes: Vec<TopPrefix>,
}

impl Value {
    /// Nothing was asked yet. The seed is that of one run.
    pub(crate) fn new(plane: &str) -> Self {
        Self { counts: Default::default(), prefixes: Mutex::default(), seed: xxh3_64(plane.as_bytes()) }
    }

    /// Counts a question without its prefix.
    pub(crate) fn count(&self, protocol: Protocol, asked: u64, found: u64) {
        let counts = &self.counts[protocol as usize];
        counts.questions.fetch_add(1, Ordering::Relaxed);
        counts.asked.fetch_add(asked, Ordering::Relaxed);
        counts.found.fetch_add(found.min(asked), Ordering::Relaxed);
    }

    /// Counts an answered question, and the prefix that was found.
    pub(crate) fn answered(&self, protocol: Protocol, question: &Question, answer: &Answer<'_>) {
        let (asked, found) = (answer.asked_tokens(), answer.most_tokens);
        self.count(protocol, asked, found);
        // Images are not in the tokens: two prompts with the same tokens may differ.
        if question.extra_keys.is_some() || question.multimodal.is_some() || found == 0 {
            return;
        }
        let model = question.model.as_deref().unwrap_or_default();
        let points = match (&question.token_ids, &question.block_hashes) {
            (Some(ids), _) => self.points_of_tokens(ids, found, model, question.names().namespace()),
            (None, Some(hashes)) => self.points_of_hashes(hashes, answer.blocks_size(), found, model),
            (None, None) => return,
        };
        self.prefixes.lock().add(&points, model);
    }

    fn points_of_tokens(&self, ids: &[u32], found: u64, model: &str, namespace: Namespace) -> Vec<Point> {
        let seed = self.seed ^ namespace.seed() ^ xxh3_64(model.as_bytes());
        let end = ids.len().min(usize::try_from(found).unwrap_or(usize::MAX));
        let hash = |tokens: usize| xxh3_64_with_seed(bytemuck::cast_slice(&ids[..tokens]), seed);
        lengths(end).map(|tokens| Point { hash: hash(tokens), tokens: tokens as u64 }).collect()
    }

    fn points_of_hashes(&self, hashes: &[u64], size: u64, found: u64, model: &str) -> Vec<Point> {
        let seed = self.seed ^ xxh3_64(model.as_bytes());
        let size = usize::try_from(size.max(1)).unwrap_or(usize::MAX);
        let end = hashes.len().saturating_mul(size).min(usize::try_from(found).unwrap_or(usize::MAX));
        let blocks = lengths(end).map(|tokens| tokens / size).filter(|blocks| *blocks > 0);
        let hash = |blocks: usize| xxh3_64_with_seed(bytemuck::cast_slice(&hashes[..blocks]), seed);
        blocks.map(|blocks| Point { hash: hash(blocks), tokens: (blocks * size) as u64 }).collect()
    }

    fn of(&self, protocol: Protocol) -> Tally {
        let counts = &self.counts[protocol as usize];
        Tally {
            questions: counts.questions.load(Ordering::Relaxed),
            tokens_asked: counts.asked.load(Ordering::Relaxed),
            tokens_found: counts.found.load(Ordering::Relaxed),
        }
    }

    /// Over all protocols.
    pub(crate) fn all(&self) -> Tally {
        Protocol::ALL.iter().fold(Tally::default(), |sum, (protocol, _)| {
            let one = self.of(*protocol);
            Tally {
                questions: sum.questions + one.questions,
                tokens_asked: sum.tokens_asked + one.tokens_asked,
                tokens_found: sum.tokens_found + one.tokens_found,
            }
        })
    }

    /// The prefixes that saved the most.
    pub(crate) fn top_prefixes(&self) -> Vec<TopPrefix> {
        self.prefixes.lock().top(LISTED)
    }

    /// For `/v1/status`.
    pub(crate) fn status(&self) -> ValueStatus {
        let asked = Protocol::ALL.iter().map(|(protocol, name)| (*name, self.of(*protocol)));
        ValueStatus {
            all: self.all(),
            by_protocol: asked.filter(|(_, tokens)| tokens.questions > 0).collect(),
            top_prefixes: self.top_prefixes(),
        }
    }

    /// For `/metrics`.
    pub(crate) fn rows(&self) -> ValueRows {
        let row = |(protocol, name): &(Protocol, &'static str)| {
            let Tally { questions, tokens_asked, tokens_found } = self.of(*protocol);
            (*name, [questions, tokens_asked, tokens_found])
        };
        let prefix = |top: TopPrefix| PrefixRow {
            prefix: top.prefix,
            model: top.model,
            tokens: top.tokens,
            tokens_found: top.tokens_found,
        };
        ValueRows {
            protocols: Protocol::ALL.iter().map(row).collect(),
            prefixes: self.top_prefixes().into_iter().map(prefix).collect(),
        }
    }
}

/// Lengths of the prefixes that are counted, up to `end` tokens.
fn lengths(end: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(SHORTEST), |length| length.checked_mul(2))
        .take_while(move |length| *length <= end.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_double_in_length_and_stop_at_what_was_found() {
        assert_eq!(lengths(63).count(), 0);
        assert_eq!(lengths(300).collect::<Vec<_>>(), [64, 128, 256]);
        assert_eq!(lengths(1 << 20).last(), Some(LONGEST));
    }

    #[test]
    fn hashes_of_prefixes_are_keyed_by_run_model_and_namespace() {
        let ids: Vec<u32> = (0..64).collect();
        let hash = |plane: &str, model, namespace| {
            Value::new(plane).points_of_tokens(&ids, 64, model, namespace)[0].hash
        };
        let first = hash("a", "m", Namespace::PLAIN);
        assert_eq!(first, hash("a", "m", Namespace::PLAIN));
        assert_ne!(first, hash("b", "m", Namespace::PLAIN));
        assert_ne!(first, hash("a", "n", Namespace::PLAIN));
    }

    #[test]
    fn a_match_never_counts_for_more_than_was_asked() {
        let value = Value::new("a");
        value.count(Protocol::Hints, 100, 128);
        value.count(Protocol::Pick, 50, 0);
        assert_eq!(value.all(), Tally { questions: 2, tokens_asked: 150, tokens_found: 100 });
    }
}
