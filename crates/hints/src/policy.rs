//! What tenants are promised and held to.

use std::collections::HashMap;
use std::time::Duration;

/// Which entries go first when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// The one that was reported longest ago.
    #[default]
    Lru,
    /// The one that answered the fewest lookups; among equals the one that was reported longest ago.
    Lfu,
}

impl Eviction {
    /// The name used in metrics and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "LRU",
            Self::Lfu => "LFU",
        }
    }
}

/// How a tenant's lookups are decided, and how long its entries last.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Entries that were not reported again for so long are forgotten.
    pub ttl: Duration,
    /// Prompts shorter than this get no match.
    pub minimum_prefix_tokens: u32,
    /// Replicas that match less than this are left out.
    pub minimum_matched_tokens: u32,
    /// Below this score nobody is named for a match.
    pub routing_floor_score: f32,
    /// A lookup takes no longer than this.
    pub lookup_timeout: Option<Duration>,
    /// A prompt that nobody holds always goes to the same replica.
    pub affinity_routing: bool,
    /// Which entries go first.
    pub eviction: Eviction,
    /// How prompts are matched.
    pub strategy: Strategy,
}

/// How prompts are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// Chains are matched block by block; otherwise by their last hash alone.
    pub chain_matching: bool,
    /// Only lookups with a chain are answered.
    pub require_chain: bool,
    /// Where a single hash is not found, replicas that serve the tenant well are named.
    pub tenant_hot: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self { chain_matching: true, require_chain: false, tenant_hot: true }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            ttl: Duration::from_mins(30),
            minimum_prefix_tokens: 0,
            minimum_matched_tokens: 64,
            routing_floor_score: 0.1,
            lookup_timeout: None,
            affinity_routing: true,
            eviction: Eviction::Lru,
            strategy: Strategy::default(),
        }
    }
}

impl Policy {
    /// At least a microsecond: freshness is a part of it.
    pub(crate) fn ttl_us(&self) -> i64 {
        i64::try_from(self.ttl.as_micros()).unwrap_or(i64::MAX).max(1)
    }
}

/// How much a tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Distinct prefixes; no limit when absent.
    pub max_entries: Option<usize>,
}

/// Everything by tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    /// For tenants that have none of their own.
    pub default: Policy,
    /// By tenant.
    pub by_tenant: HashMap<String, Policy>,
    /// By tenant.
    pub quotas: HashMap<String, Quota>,
}

impl Policies {
    /// The policy of a tenant.
    pub fn of(&self, tenant: &str) -> &Policy {
        self.by_tenant.get(tenant).unwrap_or(&self.default)
    }

    /// How many distinct prefixes a tenant may have.
    pub fn max_entries(&self, tenant: &str) -> Option<usize> {
        self.quotas.get(tenant).and_then(|quota| quota.max_entries)
    }
}
