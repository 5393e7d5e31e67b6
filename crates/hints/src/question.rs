//! What is asked, and what is answered.

use std::fmt;
use std::sync::Arc;

use crate::prefix::{CacheTier, PrefixHash};

/// How the prompt is named.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// By one hash of all of it.
    Exact {
        /// The hash.
        hash: &'a PrefixHash,
        /// How many tokens it covers.
        tokens: u32,
    },
    /// By the hash after each block.
    Chain {
        /// The hashes.
        hashes: &'a [PrefixHash],
        /// Tokens of each block; as many as hashes.
        counts: &'a [u32],
    },
    /// Not at all, or in a way that cannot be used: nobody is named.
    Nothing,
}

impl<'a> Asked<'a> {
    /// Every hash that is looked for.
    pub(crate) fn hashes(self) -> &'a [PrefixHash] {
        match self {
            Self::Exact { hash, .. } => std::slice::from_ref(hash),
            Self::Chain { hashes, .. } => hashes,
            Self::Nothing => &[],
        }
    }
}

/// Who should serve a prompt?
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Whose prompt.
    pub tenant: &'a str,
    /// The model.
    pub model: &'a str,
    /// How prefixes were hashed.
    pub scheme: &'a str,
    /// The adapter; empty for none.
    pub adapter: &'a str,
    /// The prompt.
    pub asked: Asked<'a>,
    /// The caller sent the chain itself: a policy may insist on it.
    pub chain_on_wire: bool,
    /// The time to the first token that the caller wants, in milliseconds; 0 for none.
    pub ttft_ms: i32,
    /// The caller's time, or the policy's, is over.
    pub expired: bool,
}

/// Why the answer is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonCode {
    /// Replicas hold the prefix.
    PrefixMatch,
    /// Nobody holds it; these serve the tenant well.
    TenantHot,
    /// Nobody holds it; this one is as good as any, and always the same.
    AffinityHint,
    /// Nothing to say.
    NoHint,
    /// The policy wants a chain, and there was none.
    PolicyRequiresChain,
    /// Time was over.
    Timeout,
    /// Nothing is known of the tenant.
    UnknownTenant,
    /// Nothing is known of the tenant's model.
    UnknownModel,
    /// Nothing is known under that scheme.
    UnknownHashScheme,
}

impl ReasonCode {
    /// Every code, for metrics and tables.
    pub const ALL: [ReasonCode; 9] = [
        Self::PrefixMatch,
        Self::TenantHot,
        Self::AffinityHint,
        Self::NoHint,
        Self::PolicyRequiresChain,
        Self::Timeout,
        Self::UnknownTenant,
        Self::UnknownModel,
        Self::UnknownHashScheme,
    ];

    /// The code on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PrefixMatch => "PREFIX_MATCH",
            Self::TenantHot => "TENANT_HOT",
            Self::AffinityHint => "AFFINITY_HINT",
            Self::NoHint => "NO_HINT",
            Self::PolicyRequiresChain => "POLICY_REQUIRES_CHAIN",
            Self::Timeout => "TIMEOUT",
            Self::UnknownTenant => "UNKNOWN_TENANT",
            Self::UnknownModel => "UNKNOWN_MODEL",
            Self::UnknownHashScheme => "UNKNOWN_HASH_SCHEME",
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A replica and how well it fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Its name.
    pub replica: Arc<str>,
    /// Higher is better.
    pub score: f32,
    /// How much of the prompt it holds.
    pub matched_tokens: u32,
    /// How likely it still does: 1 right after a report, falling to 0 over the time that entries last.
    pub freshness: f32,
    /// The coldest place of what matched; `None` where nothing did.
    pub tier: Option<CacheTier>,
}

/// The answer: replicas, best first, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The candidates; empty for no hint.
    pub scores: Vec<Score>,
    /// Why.
    pub reason: ReasonCode,
}

impl Verdict {
    /// Nobody, for a reason.
    pub fn nobody(reason: ReasonCode) -> Self {
        Self { scores: Vec::new(), reason }
    }
}
