//! The decision: gates, scores and ties, in the order in which they count.

use std::cmp::Ordering;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::RESERVED_TENANT;
use crate::policy::Policy;
use crate::prefix::{CacheTier, PrefixHash};
use crate::question::{Asked, Question, ReasonCode, Score, Verdict};

/// A caller that wants its first token sooner than this (milliseconds) is served better by what is surely
/// still there.
const URGENT_TTFT_MS: i32 = 200;

/// A replica that holds something of the prompt.
#[derive(Debug, Clone)]
pub(crate) struct Candidate<Who> {
    pub(crate) who: Who,
    pub(crate) matched_tokens: u32,
    /// Entries that matched: blocks of a chain, else 1.
    pub(crate) depth: usize,
    /// Of the oldest entry that matched.
    pub(crate) freshness: f32,
    /// Of the coldest entry that matched.
    pub(crate) tier: CacheTier,
    /// 0 where nothing was reported.
    pub(crate) pressure: f32,
}

/// Which part of the question is unknown; the outermost counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Nothing is known at all.
    Everything,
    Tenant,
    Model,
    Scheme,
}

/// What the decision is made from. All of it is about one moment. Replicas are in scope while they have at
/// least one entry of the tenant, model and scheme, with any adapter.
pub(crate) trait Knowledge {
    /// Stands for a replica.
    type Who: Copy;
    /// Its name.
    fn name(&self, who: Self::Who) -> &Arc<str>;
    /// The outermost part of the question that nothing is known of.
    fn unknown(&self) -> Option<Unknown>;
    /// How many replicas are in scope.
    fn replicas(&self) -> usize;
    /// The name of one of them, in the order of names.
    fn nth(&self, at: usize) -> Option<Arc<str>>;
    /// Who holds the first block, and for how long a run from there; one candidate each.
    fn chain(&self, hashes: &[PrefixHash], counts: &[u32]) -> Vec<Candidate<Self::Who>>;
    /// Who holds the hash.
    fn exact(&self, hash: &PrefixHash) -> Vec<Candidate<Self::Who>>;
    /// Replicas in scope that serve the tenant well.
    fn hot(&self) -> Vec<Warm>;
}

/// A replica that serves the tenant well.
#[derive(Debug, Clone)]
pub(crate) struct Warm {
    pub(crate) replica: Arc<str>,
    pub(crate) hit_rate: f32,
    pub(crate) pressure: f32,
    /// How recent these numbers are: 1 when they were just reported, 0 when they say nothing any more.
    pub(crate) freshness: f32,
}

/// What was found.
pub(crate) struct Decision<Who> {
    /// The answer; `None` where nobody matches well enough, so that [`affinity`] has the last word.
    pub(crate) verdict: Option<Verdict>,
    /// Replicas that were named because they match, and how many entries of each did.
    pub(crate) delivered: Vec<(Who, usize)>,
}

impl<Who> From<Verdict> for Decision<Who> {
    fn from(verdict: Verdict) -> Self {
        Self { verdict: Some(verdict), delivered: Vec::new() }
    }
}

/// Answers what needs no knowledge, or says how the prompt is to be looked up.
pub(crate) fn before_lookup<'a>(question: &Question<'a>, policy: &Policy) -> Result<Asked<'a>, ReasonCode> {
    if question.tenant == RESERVED_TENANT {
        return Err(ReasonCode::NoHint);
    }
    if question.expired {
        return Err(ReasonCode::Timeout);
    }
    if policy.strategy.require_chain && !question.chain_on_wire {
        return Err(ReasonCode::PolicyRequiresChain);
    }
    let (asked, tokens) = match question.asked {
        Asked::Nothing => return Err(ReasonCode::NoHint),
        Asked::Chain { hashes, counts } => {
            let tokens = sum(counts);
            match hashes.last() {
                None => return Err(ReasonCode::NoHint),
                Some(hash) if !policy.strategy.chain_matching => (Asked::Exact { hash, tokens }, tokens),
                Some(_) => (question.asked, tokens),
            }
        }
        Asked::Exact { tokens, .. } => (question.asked, tokens),
    };
    if !policy.affinity_routing && tokens < policy.minimum_prefix_tokens {
        return Err(ReasonCode::NoHint);
    }
    if question.tenant.is_empty() || question.model.is_empty() || question.scheme.is_empty() {
        return Err(ReasonCode::NoHint);
    }
    Ok(asked)
}

/// The answer from what is known.
pub(crate) fn decide<K: Knowledge>(
    question: &Question<'_>,
    asked: Asked<'_>,
    policy: &Policy,
    known: &K,
) -> Decision<K::Who> {
    let (candidates, tokens) = match asked {
        Asked::Chain { hashes, counts } => (known.chain(hashes, counts), sum(counts)),
        Asked::Exact { hash, tokens } => (known.exact(hash), tokens),
        Asked::Nothing => return Verdict::nobody(ReasonCode::NoHint).into(),
    };
    let long_enough = tokens >= policy.minimum_prefix_tokens;
    if candidates.is_empty() {
        if let Some(unknown) = known.unknown() {
            let reason = match unknown {
                Unknown::Everything => ReasonCode::NoHint,
                Unknown::Tenant => ReasonCode::UnknownTenant,
                Unknown::Model => ReasonCode::UnknownModel,
                Unknown::Scheme => ReasonCode::UnknownHashScheme,
            };
            return Verdict::nobody(reason).into();
        }
        // A chain that nobody holds says more than that somebody is warm.
        if matches!(asked, Asked::Exact { .. }) && policy.strategy.tenant_hot && long_enough {
            let scores = hot(known, question.ttft_ms);
            if !scores.is_empty() {
                return Verdict { scores, reason: ReasonCode::TenantHot }.into();
            }
        }
    } else if long_enough {
        let scored = scored(candidates, known, question.ttft_ms, policy.minimum_matched_tokens);
        if scored.first().is_some_and(|(best, _)| best.score >= policy.routing_floor_score) {
            let (scores, delivered) = scored.into_iter().unzip();
            let verdict = Some(Verdict { scores, reason: ReasonCode::PrefixMatch });
            return Decision { verdict, delivered };
        }
    }
    Decision { verdict: None, delivered: Vec::new() }
}

/// Scores, best first; equals by name. Those that match too little are left out, but they count: what they
/// hold tells others apart no more.
fn scored<K: Knowledge>(
    mut candidates: Vec<Candidate<K::Who>>,
    known: &K,
    ttft_ms: i32,
    minimum_matched_tokens: u32,
) -> Vec<(Score, (K::Who, usize))> {
    // Runs of a chain by their blocks, which may have no tokens; exact matches, one entry each, by their
    // tokens.
    let reach = |candidate: &Candidate<K::Who>| (candidate.depth, candidate.matched_tokens);
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(reach(candidate)));
    let in_scope = known.replicas();
    let mut scores = Vec::with_capacity(candidates.len());
    let mut deeper = 0;
    for equals in candidates.chunk_by(|a, b| reach(a) == reach(b)) {
        if equals[0].matched_tokens < minimum_matched_tokens {
            break;
        }
        deeper += equals.len();
        // What everybody holds tells nobody apart.
        let distinction = if in_scope <= 1 { 1.0 } else { 1.0 - deeper as f32 / in_scope as f32 };
        scores.extend(equals.iter().map(|candidate| {
            let freshness = candidate.freshness;
            let fits = freshness * room(candidate.pressure) * urgency(ttft_ms, freshness);
            let score = Score {
                replica: known.name(candidate.who).clone(),
                score: finite(candidate.matched_tokens as f32 * fits * distinction),
                matched_tokens: candidate.matched_tokens,
                freshness,
                tier: Some(candidate.tier),
            };
            (score, (candidate.who, candidate.depth))
        }));
    }
    scores.sort_by(|(a, _), (b, _)| best_first(a, b));
    scores
}

/// What a busy replica has left; more than 1 if it says that it is less busy than possible.
fn room(pressure: f32) -> f32 {
    (1.0 - pressure).max(0.0)
}

/// A product of numbers that replicas tell may be beyond all bounds. Where another factor is 0, all is 0.
fn finite(score: f32) -> f32 {
    if score.is_nan() { 0.0 } else { score.min(f32::MAX) }
}

/// Tenants in a hurry weigh freshness higher.
fn urgency(ttft_ms: i32, freshness: f32) -> f32 {
    if (1..URGENT_TTFT_MS).contains(&ttft_ms) { 1.0 + freshness } else { 1.0 }
}

fn hot(known: &impl Knowledge, ttft_ms: i32) -> Vec<Score> {
    let score = |Warm { replica, hit_rate, pressure, freshness }| Score {
        replica,
        score: finite(hit_rate * freshness * room(pressure) * urgency(ttft_ms, freshness)),
        matched_tokens: 0,
        freshness: hit_rate,
        tier: None,
    };
    let mut scores: Vec<Score> = known.hot().into_iter().map(score).collect();
    scores.sort_by(best_first);
    scores
}

fn best_first(a: &Score, b: &Score) -> Ordering {
    b.score.total_cmp(&a.score).then_with(|| a.replica.cmp(&b.replica))
}

fn sum(counts: &[u32]) -> u32 {
    counts.iter().fold(0, |sum: u32, count| sum.saturating_add(*count))
}

/// One replica for one prompt, as long as the replicas stay the same.
pub(crate) fn affinity(seed: u64, known: &impl Knowledge) -> Verdict {
    let chosen = seed.checked_rem(known.replicas() as u64).and_then(|at| known.nth(at as usize));
    let Some(replica) = chosen else { return Verdict::nobody(ReasonCode::NoHint) };
    let score = Score { replica, score: 0.0, matched_tokens: 0, freshness: 0.0, tier: None };
    Verdict { scores: vec![score], reason: ReasonCode::AffinityHint }
}

/// A number that depends on the whole prompt, and takes a while for a long one.
pub(crate) fn seed(asked: Asked<'_>) -> u64 {
    let mut seed = Sha256::new();
    match asked {
        Asked::Chain { hashes, .. } => {
            for hash in hashes {
                hash.with_bytes(|bytes| {
                    seed.update((bytes.len() as u32).to_be_bytes());
                    seed.update(bytes);
                });
            }
        }
        Asked::Exact { hash, .. } => hash.with_bytes(|bytes| seed.update(bytes)),
        Asked::Nothing => {}
    }
    seed.finalize().iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}
