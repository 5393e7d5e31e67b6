//! What sending the prompt to each candidate costs: lower is better. Every policy sees the same.

mod peers;
mod work;

use std::fmt;
use std::str::FromStr;

use crate::load::LoadSource;
pub(crate) use work::terms;

/// The constants of `work`, all in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// The price of prefilling what is cached elsewhere: 1 looks at this request alone; more also prices what
    /// it evicts and duplicates.
    pub alpha: f64,
    /// What a prefill takes from each request that decodes beside it.
    pub g: f64,
    /// Per request in flight: expected output tokens times the cost of a decoded token.
    pub d: f64,
    /// Per KV token in flight.
    pub e: f64,
    /// Prefill, per token, until an engine's own speed is known.
    pub a: f64,
    /// Attention, per pair of tokens.
    pub t: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { alpha: 1.5, g: 0.015, d: 0.003, e: 5e-7, a: 1.0 / 16_000.0, t: 0.6e-9 }
    }
}

/// How a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Seconds of work: what waits, what this prompt adds, what it does to others. The default.
    #[default]
    Work,
    /// One after the other.
    RoundRobin,
    /// The least work, whatever is cached.
    LeastWork,
    /// SMG's rule: among those who hold the most, the shortest wait; those far over the mean are left out.
    Affinity,
    /// A session stays where its hash says.
    Session,
    /// Prompts with the same first 1,024 tokens go where their hash says.
    PrefixHash,
    /// Dynamo's sum of prefill and decode blocks.
    Dynamo,
    /// `LMetric`'s product of new prefill tokens and batch size.
    Lmetric,
    /// llm-d's affinity filter with its token load.
    LlmDFilter,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 9] = [
        Self::Work,
        Self::RoundRobin,
        Self::LeastWork,
        Self::Affinity,
        Self::Session,
        Self::PrefixHash,
        Self::Dynamo,
        Self::Lmetric,
        Self::LlmDFilter,
    ];

    /// Its name in configuration, answers and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::RoundRobin => "round_robin",
            Self::LeastWork => "least_work",
            Self::Affinity => "affinity",
            Self::Session => "session",
            Self::PrefixHash => "prefix_hash",
            Self::Dynamo => "dynamo",
            Self::Lmetric => "lmetric",
            Self::LlmDFilter => "llm_d_filter",
        }
    }

    /// Writes the cost of every candidate.
    pub(crate) fn costs(self, context: &Context, views: &[View], costs: &mut Vec<f64>) {
        costs.clear();
        match self {
            Self::Work => costs.extend(views.iter().map(|view| view.terms.total())),
            Self::LeastWork => costs.extend(views.iter().map(|view| work::blind(context, view))),
            Self::RoundRobin => peers::round_robin(context, views, costs),
            Self::Affinity => peers::affinity(context, views, costs),
            Self::Session => peers::stay(context, context.session, views, costs),
            Self::PrefixHash => peers::stay(context, context.lead, views, costs),
            Self::Dynamo => peers::dynamo(context, views, costs),
            Self::Lmetric => peers::lmetric(context, views, costs),
            Self::LlmDFilter => peers::llm_d_filter(context, views, costs),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A policy that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsePolicyError(String);

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Policy::ALL.iter().map(|policy| policy.as_str()).collect();
        write!(f, "unknown policy {:?}; known policies: {}", self.0, known.join(", "))
    }
}

impl std::error::Error for ParsePolicyError {}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        found.ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}

/// What a policy knows of the request.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) weights: Weights,
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Whose conversation it is.
    pub(crate) session: Option<u64>,
    /// The hash of its beginning.
    pub(crate) lead: Option<u64>,
    /// Whose turn it is.
    pub(crate) turn: u64,
    /// The hash of the first prefix that nobody holds.
    pub(crate) fresh: Option<u64>,
    /// How much it matters that other routers would choose the same, 0 to 1: the part of the prompt that
    /// nobody holds, times the part of all requests that others sent.
    pub(crate) together: f64,
}

/// What a policy knows of a candidate that may be picked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// Where it is among all candidates.
    pub(crate) at: usize,
    pub(crate) identity: u64,
    /// Tokens by its exact state, weighted by trust and tier.
    pub(crate) credit: f64,
    /// The same, or what is on its way there if that is more.
    pub(crate) held: f64,
    /// Tokens of the longest prefix that is on its way there.
    pub(crate) flight: u64,
    /// Seconds of prefill in front of the prompt, at the assumed speed.
    pub(crate) queue: f64,
    /// Uncached tokens booked there and not past their first token.
    pub(crate) pending: f64,
    /// Requests booked there that wait for their first token.
    pub(crate) waiting: f64,
    /// Requests there.
    pub(crate) requests: f64,
    /// Those that others sent.
    pub(crate) foreign: f64,
    /// KV tokens in flight there.
    pub(crate) kv_tokens: f64,
    /// The part of its KV cache in use.
    pub(crate) kv_usage: f64,
    /// What its load is known from.
    pub(crate) load: LoadSource,
    /// Its prefill is slower than assumed by this factor.
    pub(crate) factor: f64,
    pub(crate) terms: Terms,
}

/// What the cost of a choice is made of, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// Until the prompt's turn comes.
    pub queue: f64,
    /// Prefilling what is not held, as weighted.
    pub prefill: f64,
    /// What that takes from requests that decode there.
    pub imposed: f64,
    /// Decoding beside the requests that are there.
    pub decode: f64,
    /// A KV cache that is nearly full.
    pub memory: f64,
}

impl Terms {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.queue + self.prefill + self.imposed + self.decode + self.memory
    }
}

#[cfg(test)]
mod tests;
