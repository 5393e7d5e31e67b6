//! `LookupRoute`: who should serve a prompt. Never fails: what cannot be used gets no hint, and the reason
//! why.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_hints::{Asked, Policy, PrefixHash, Question, RESERVED_TENANT, ReasonCode, Score, Verdict};
use kvplane_metrics::hint_counters::Unusable;
use kvplane_proto::inferencecache as proto;
use kvplane_report::unix_us;

use super::{Hints, text};
use crate::value::Protocol;

/// The longest prompt that is hashed here.
const MAX_TOKENS: usize = 1 << 20;
/// Blocks of the longest chain: a prompt of that many tokens, in blocks of eight.
const MAX_BLOCKS: usize = MAX_TOKENS / 8;
/// Tokens that are hashed on a thread that serves others: some hundred microseconds.
const TOKENS_AT_ONCE: usize = 128 << 10;
/// Blocks that are looked up on a thread that serves others.
const BLOCKS_AT_ONCE: usize = 8 << 10;
/// A long lookup of a caller with all the time in the world waits this long for its turn.
const LONGEST_QUEUE: Duration = Duration::from_secs(5);
/// What a thread keeps for the next lookup.
const KEEP_BLOCKS: usize = 8 << 10;

/// What is sent back, and why the lookup could not be used, if it could not.
pub(super) struct Answer {
    pub(super) response: proto::LookupRouteResponse,
    pub(super) unusable: Option<Unusable>,
}

/// Answers one lookup. `timeout` is the caller's.
pub(super) async fn route(
    hints: &Arc<Hints>,
    request: proto::LookupRouteRequest,
    timeout: Option<Duration>,
) -> Answer {
    let started = kvplane_runtime::now();
    let policies = hints.book.policies();
    let timeouts = [timeout, policies.of(&request.tenant_id).lookup_timeout];
    let deadline = timeouts.into_iter().flatten().min().and_then(|timeout| started.checked_add(timeout));
    if request.tenant_id != RESERVED_TENANT {
        hints.engines_are_heard(deadline).await;
    }
    let (mut request, mut failed) = (request, None);
    let as_text = is_text(&request) && request.token_ids.is_empty();
    if as_text && hints.prompts.model(&request.model_id).is_some() {
        match text::ids(hints, &request, deadline).await {
            Ok(ids) => request.token_ids = ids,
            Err(unusable) => failed = Some(unusable),
        }
    }
    let echo = as_text && !request.token_ids.is_empty();
    let long = request.token_ids.len() > TOKENS_AT_ONCE || request.block_hashes.len() > BLOCKS_AT_ONCE;
    let request = Arc::new(request);
    let (verdict, mut unusable) = if long {
        look_aside(hints, request.clone(), deadline).await
    } else {
        answer(hints, &request, deadline)
    };
    if let (Some(Unusable::PromptText), Some(failed)) = (unusable, failed) {
        unusable = Some(failed);
    }
    let took = started.elapsed();
    hints.counters.lookups.record(&request.model_id, verdict.reason, took);
    let found = match verdict.reason {
        ReasonCode::PrefixMatch => verdict.scores.iter().map(|score| score.matched_tokens).max().unwrap_or(0),
        _ => 0,
    };
    hints.value.count(Protocol::Hints, asked_tokens(&request), u64::from(found));
    if let Some(reason) = unusable {
        hints.counters.unusable.count(reason);
    }
    let response = proto::LookupRouteResponse {
        replica_scores: verdict.scores.iter().map(replica_score).collect(),
        reason_code: verdict.reason.as_str().to_owned(),
        lookup_latency_us: took.as_micros() as i64,
        token_ids: if echo { request.token_ids.clone() } else { Vec::new() },
        adapter_id: request.adapter_id.clone(),
    };
    Answer { response, unusable }
}

/// Whether the prompt is given as text, and in no form that comes first.
fn is_text(request: &proto::LookupRouteRequest) -> bool {
    !request.prompt_text.is_empty() && request.prefix_hash.is_empty() && request.block_hashes.is_empty()
}

/// Tokens of the prompt, in the form that counts first.
fn asked_tokens(request: &proto::LookupRouteRequest) -> u64 {
    let counts = request.block_token_counts.iter().map(|count| u64::try_from(*count).unwrap_or(0));
    match (request.block_token_counts.is_empty(), request.prefix_hash.is_empty()) {
        (false, _) => counts.fold(0, u64::saturating_add),
        (true, false) => u64::try_from(request.prefix_token_count).unwrap_or(0),
        (true, true) => request.token_ids.len() as u64,
    }
}

/// A long lookup, on a thread that serves nobody. Few at a time: what else needs such threads is not shut out
/// by a flood.
async fn look_aside(
    hints: &Arc<Hints>,
    request: Arc<proto::LookupRouteRequest>,
    deadline: Option<Instant>,
) -> (Verdict, Option<Unusable>) {
    let until = deadline.unwrap_or_else(|| kvplane_runtime::now() + LONGEST_QUEUE);
    let permit = tokio::time::timeout_at(until.into(), hints.long_lookups.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = permit else { return (Verdict::nobody(ReasonCode::Timeout), None) };
    let hints = hints.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        answer(&hints, &request, deadline)
    });
    // It does not fail unless the process ends.
    done.await.unwrap_or_else(|_| (Verdict::nobody(ReasonCode::NoHint), None))
}

fn replica_score(score: &Score) -> proto::ReplicaScore {
    proto::ReplicaScore {
        replica_id: score.replica.as_ref().to_owned(),
        score: score.score,
        matched_tokens: i32::try_from(score.matched_tokens).unwrap_or(i32::MAX),
        estimated_cache_hit_prob: score.freshness,
        tier: score.tier.map_or(0, kvplane_hints::CacheTier::to_wire),
    }
}

/// Room for a chain, kept from lookup to lookup.
#[derive(Debug, Default)]
struct Scratch {
    contents: Vec<u64>,
    hashes: Vec<PrefixHash>,
    counts: Vec<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// The chain that a caller sent.
    fn set_chain(&mut self, request: &proto::LookupRouteRequest) -> Result<(), Unusable> {
        self.clear();
        for count in &request.block_token_counts {
            self.counts.push(u32::try_from(*count).map_err(|_| Unusable::NegativeCount)?);
        }
        self.hashes.extend(request.block_hashes.iter().map(|hash| PrefixHash::from_bytes(hash)));
        Ok(())
    }

    /// The chain of a prompt in blocks of this size: adapter and salt are no part of it.
    pub(super) fn hash_tokens(&mut self, tokens: &[u32], block_size: u32) {
        self.clear();
        hash_blocks(tokens, block_size as usize, Namespace::PLAIN, &mut self.contents);
        let mut previous = None;
        for content in &self.contents {
            let hash = chain_hash(previous, *content);
            self.hashes.push(PrefixHash::Fingerprint(hash));
            previous = Some(hash);
        }
        self.counts.resize(self.hashes.len(), block_size);
    }

    fn chain(&self) -> Asked<'_> {
        Asked::Chain { hashes: &self.hashes, counts: &self.counts }
    }

    fn clear(&mut self) {
        self.contents.clear();
        self.hashes.clear();
        self.counts.clear();
    }

    /// Gives back what a long prompt took.
    fn forget(&mut self) {
        self.clear();
        self.contents.shrink_to(KEEP_BLOCKS);
        self.hashes.shrink_to(KEEP_BLOCKS);
        self.counts.shrink_to(KEEP_BLOCKS);
    }
}

/// Which of the ways in which a prompt can be named is used.
enum Input<'a> {
    Exact(PrefixHash),
    Chain,
    Tokens(&'a [u32]),
    Unusable(Unusable),
}

/// One hash or a chain, then tokens, then text.
fn input<'a>(request: &'a proto::LookupRouteRequest, policy: &Policy) -> Input<'a> {
    let proto::LookupRouteRequest { prefix_hash, block_hashes, block_token_counts, token_ids, .. } = request;
    let exact = || Input::Exact(PrefixHash::from_bytes(prefix_hash));
    if !policy.strategy.chain_matching && !prefix_hash.is_empty() {
        return exact();
    }
    if block_hashes.len() != block_token_counts.len() {
        return Input::Unusable(Unusable::UnequalArrays);
    }
    if block_hashes.len() > MAX_BLOCKS {
        return Input::Unusable(Unusable::TooLong);
    }
    if !block_hashes.is_empty() {
        return Input::Chain;
    }
    if !prefix_hash.is_empty() {
        return exact();
    }
    if token_ids.len() > MAX_TOKENS {
        return Input::Unusable(Unusable::TooLong);
    }
    if !token_ids.is_empty() {
        return Input::Tokens(token_ids);
    }
    Input::Unusable(if request.prompt_text.is_empty() { Unusable::NoPrompt } else { Unusable::PromptText })
}

fn answer(
    hints: &Hints,
    request: &proto::LookupRouteRequest,
    deadline: Option<Instant>,
) -> (Verdict, Option<Unusable>) {
    let policies = hints.book.policies();
    let policy = policies.of(&request.tenant_id);
    let chain_on_wire =
        !request.block_hashes.is_empty() && request.block_hashes.len() == request.block_token_counts.len();
    let expired = || deadline.is_some_and(|deadline| kvplane_runtime::now() >= deadline);
    let look_up = |asked: Asked<'_>| {
        let question = Question {
            tenant: &request.tenant_id,
            model: &request.model_id,
            scheme: &request.hash_scheme,
            adapter: &request.adapter_id,
            asked,
            chain_on_wire,
            ttft_ms: request.slo.as_ref().map_or(0, |slo| slo.ttft_ms),
            expired: expired(),
        };
        hints.book.lookup(&question, unix_us())
    };
    let unusable = |reason: Unusable| {
        let verdict = look_up(Asked::Nothing);
        // Gates that come first have their own reason.
        let unusable = (verdict.reason == ReasonCode::NoHint).then_some(reason);
        (verdict, unusable)
    };
    let found = SCRATCH.with_borrow_mut(|scratch| {
        let found = match input(request, policy) {
            Input::Unusable(reason) => unusable(reason),
            Input::Exact(hash) => {
                let tokens = u32::try_from(request.prefix_token_count).unwrap_or(0);
                (look_up(Asked::Exact { hash: &hash, tokens }), None)
            }
            Input::Chain => match scratch.set_chain(request) {
                Ok(()) => (look_up(scratch.chain()), None),
                Err(reason) => unusable(reason),
            },
            // Nobody would look at what was hashed.
            Input::Tokens(_) if policy.strategy.require_chain => (look_up(Asked::Nothing), None),
            Input::Tokens(tokens) => {
                let mut best: Option<Verdict> = None;
                for size in block_sizes(hints, &request.model_id) {
                    scratch.hash_tokens(tokens, size);
                    if !scratch.hashes.is_empty() {
                        best = Some(better(best, look_up(scratch.chain())));
                    }
                }
                best.map_or_else(|| unusable(Unusable::TooShort), |verdict| (verdict, None))
            }
        };
        scratch.forget();
        found
    });
    if expired() && request.tenant_id != RESERVED_TENANT {
        return (Verdict::nobody(ReasonCode::Timeout), None);
    }
    found
}

/// Tokens per block of those who may hold a prompt of this model: what is configured for replicas that
/// report, and what engines that are heard here have.
fn block_sizes(hints: &Hints, model: &str) -> impl Iterator<Item = u32> {
    let configured = hints.options.block_size;
    let heard = hints.feeds().map(|feeds| feeds.block_sizes(model)).unwrap_or_default();
    std::iter::once(configured).chain(heard.into_iter().filter(move |size| *size != configured))
}

/// The answer from what was found in blocks of different sizes. Matches are put together, each replica with
/// its best; otherwise the first that says more than nothing stays. How rare a match is was counted among
/// replicas of one size.
fn better(best: Option<Verdict>, next: Verdict) -> Verdict {
    let Some(mut best) = best else { return next };
    match (best.reason, next.reason) {
        (ReasonCode::PrefixMatch, ReasonCode::PrefixMatch) => {
            for score in next.scores {
                match best.scores.iter_mut().find(|known| known.replica == score.replica) {
                    Some(known) if known.score >= score.score => {}
                    Some(known) => *known = score,
                    None => best.scores.push(score),
                }
            }
            best.scores.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.replica.cmp(&b.replica)));
            best
        }
        (_, ReasonCode::PrefixMatch) | (ReasonCode::NoHint, _) => next,
        _ => best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(scores: &[(&str, f32)]) -> Verdict {
        let score = |(replica, score): &(&str, f32)| Score {
            replica: Arc::from(*replica),
            score: *score,
            matched_tokens: 64,
            freshness: 1.0,
            tier: None,
        };
        Verdict { scores: scores.iter().map(score).collect(), reason: ReasonCode::PrefixMatch }
    }

    #[test]
    fn what_is_found_in_blocks_of_several_sizes_is_put_together() {
        let put_together =
            better(Some(matched(&[("a", 4.0), ("b", 2.0)])), matched(&[("b", 3.0), ("c", 4.0)]));
        assert_eq!(put_together, matched(&[("a", 4.0), ("c", 4.0), ("b", 3.0)]));
        let nobody = Verdict::nobody;
        for (first, second, stays) in [
            (nobody(ReasonCode::AffinityHint), matched(&[("a", 1.0)]), ReasonCode::PrefixMatch),
            (matched(&[("a", 1.0)]), nobody(ReasonCode::AffinityHint), ReasonCode::PrefixMatch),
            (nobody(ReasonCode::NoHint), nobody(ReasonCode::AffinityHint), ReasonCode::AffinityHint),
            (nobody(ReasonCode::UnknownModel), nobody(ReasonCode::UnknownModel), ReasonCode::UnknownModel),
        ] {
            assert_eq!(better(Some(first), second).reason, stays);
        }
    }

    #[test]
    fn fingerprints_are_those_that_peers_agree_on() {
        let chain = |tokens: std::ops::RangeInclusive<u32>| {
            let mut scratch = Scratch::default();
            scratch.hash_tokens(&tokens.collect::<Vec<_>>(), 16);
            scratch.hashes
        };
        let chain_of =
            |hashes: &[u64]| hashes.iter().map(|hash| PrefixHash::Fingerprint(*hash)).collect::<Vec<_>>();
        assert_eq!(chain(1..=16), chain_of(&[16_863_443_419_780_771_464]));
        assert_eq!(chain(1..=32), chain_of(&[16_863_443_419_780_771_464, 12_466_389_667_045_779_788]));
        let four = [
            15_310_707_395_893_867_146,
            13_769_157_705_258_532_664,
            11_879_827_756_109_914_528,
            3_888_788_807_566_526_800,
        ];
        assert_eq!(chain(0..=63), chain_of(&four));
        assert_eq!(chain(100..=119), chain_of(&[10_823_191_264_391_160_519]));
    }
}
