//! The decision: gates, scores and ties, in the order in which they count.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::RESERVED_TENANT;
use crate::policy::Policy;
use crate::prefix::{CacheTier, PrefixHash};
use crate::question::{Asked, Question, ReasonCode, Score, Verdict};

/// A caller that wants its first token sooner than this (milliseconds) is served better by what is surely still there.
const URGENT_TTFT_MS: i32 = 200;

/// A replica that holds something of the prompt.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) replica: Arc<str>,
    pub(crate) matched_tokens: u32,
    /// Of the oldest entry that matched.
    pub(crate) freshness: f32,
    /// Of the coldest entry that matched.
    pub(crate) tier: CacheTier,
    /// 0 where nothing was told.
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

/// What the decision is made from. All of it is about one moment.
pub(crate) trait Knowledge {
    /// The outermost part of the question that nothing is known of.
    fn unknown(&self) -> Option<Unknown>;
    /// Replicas with at least one entry in scope: any adapter.
    fn replicas(&self) -> usize;
    /// Their names, sorted.
    fn names(&self) -> Vec<Arc<str>>;
    /// Who holds the first block, and for how long a run from there; one candidate each.
    fn chain(&self, hashes: &[PrefixHash], counts: &[u32]) -> Vec<Candidate>;
    /// Who holds the hash.
    fn exact(&self, hash: &PrefixHash) -> Vec<Candidate>;
    /// Replicas in scope that serve the tenant well, and their hit rate and pressure.
    fn hot(&self) -> Vec<(Arc<str>, f32, f32)>;
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
            let tokens = counts.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
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
pub(crate) fn decide(
    question: &Question<'_>,
    asked: Asked<'_>,
    policy: &Policy,
    known: &impl Knowledge,
) -> Verdict {
    let (candidates, tokens) = match asked {
        Asked::Chain { hashes, counts } => {
            let tokens = counts.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
            (known.chain(hashes, counts), tokens)
        }
        Asked::Exact { hash, tokens } => (known.exact(hash), tokens),
        Asked::Nothing => return Verdict::nobody(ReasonCode::NoHint),
    };
    let long_enough = tokens >= policy.minimum_prefix_tokens;
    if candidates.is_empty() {
        if let Some(unknown) = known.unknown() {
            return Verdict::nobody(match unknown {
                Unknown::Everything => ReasonCode::NoHint,
                Unknown::Tenant => ReasonCode::UnknownTenant,
                Unknown::Model => ReasonCode::UnknownModel,
                Unknown::Scheme => ReasonCode::UnknownHashScheme,
            });
        }
        // A chain that nobody holds says more than that somebody is warm.
        if matches!(asked, Asked::Exact { .. }) && policy.strategy.tenant_hot && long_enough {
            let scores = hot(known);
            if !scores.is_empty() {
                return Verdict { scores, reason: ReasonCode::TenantHot };
            }
        }
    } else if long_enough {
        let mut scores = scored(candidates, known.replicas(), question.ttft_ms);
        scores.retain(|score| score.matched_tokens >= policy.minimum_matched_tokens);
        if scores.first().is_some_and(|best| best.score >= policy.routing_floor_score) {
            return Verdict { scores, reason: ReasonCode::PrefixMatch };
        }
    }
    affinity(asked, policy, known)
}

/// Scores, best first; equals by name.
fn scored(mut candidates: Vec<Candidate>, in_scope: usize, ttft_ms: i32) -> Vec<Score> {
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.matched_tokens));
    let urgent = (1..URGENT_TTFT_MS).contains(&ttft_ms);
    let mut scores = Vec::with_capacity(candidates.len());
    let mut deeper = 0;
    for equals in candidates.chunk_by(|a, b| a.matched_tokens == b.matched_tokens) {
        deeper += equals.len();
        // What everybody holds tells nobody apart.
        let distinction = if in_scope <= 1 { 1.0 } else { 1.0 - deeper as f32 / in_scope as f32 };
        scores.extend(equals.iter().map(|candidate| {
            let freshness = candidate.freshness;
            let urgency = if urgent { 1.0 + freshness } else { 1.0 };
            let room = (1.0 - candidate.pressure).max(0.0);
            Score {
                replica: candidate.replica.clone(),
                score: candidate.matched_tokens as f32 * freshness * room * urgency * distinction,
                matched_tokens: candidate.matched_tokens,
                freshness,
                tier: Some(candidate.tier),
            }
        }));
    }
    best_first(&mut scores);
    scores
}

fn hot(known: &impl Knowledge) -> Vec<Score> {
    let mut scores: Vec<Score> = known
        .hot()
        .into_iter()
        .map(|(replica, hit_rate, pressure)| Score {
            replica,
            score: hit_rate * (1.0 - pressure).max(0.0),
            matched_tokens: 0,
            freshness: hit_rate,
            tier: None,
        })
        .collect();
    best_first(&mut scores);
    scores
}

fn best_first(scores: &mut [Score]) {
    scores.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.replica.cmp(&b.replica)));
}

/// One replica for one prompt, as long as the replicas stay the same.
fn affinity(asked: Asked<'_>, policy: &Policy, known: &impl Knowledge) -> Verdict {
    let names = if policy.affinity_routing { known.names() } else { Vec::new() };
    let mut seed = Sha256::new();
    match asked {
        Asked::Chain { hashes, .. } => {
            for hash in hashes {
                let bytes = hash.to_bytes();
                seed.update((bytes.len() as u32).to_be_bytes());
                seed.update(bytes);
            }
        }
        Asked::Exact { hash, .. } => seed.update(hash.to_bytes()),
        Asked::Nothing => {}
    }
    let digest = seed.finalize();
    let number = digest.iter().take(8).fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
    let Some(at) = number.checked_rem(names.len() as u64) else {
        return Verdict::nobody(ReasonCode::NoHint);
    };
    let replica = names[at as usize].clone();
    let score = Score { replica, score: 0.0, matched_tokens: 0, freshness: 0.0, tier: None };
    Verdict { scores: vec![score], reason: ReasonCode::AffinityHint }
}
