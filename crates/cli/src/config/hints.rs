//! `[hints]`: hints for gateways, in inference-cache's protocol.

use anyhow::ensure;
use kvplane_hints::{Eviction, Limits, Policies, Policy, Quota, RESERVED_TENANT, Strategy};
use kvplane_server::{AcceptReports, HintsOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::Span;

/// Hints for gateways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "keys of a file")]
pub(crate) struct HintsConfig {
    /// Whether they are given. Engines are followed for them from the first call on.
    pub(crate) enabled: bool,
    /// The tenant of engines that name none.
    pub(crate) default_tenant: String,
    /// Tokens per block of replicas that report themselves, for lookups that bring tokens. Engines that are
    /// heard here have their own sizes beside it.
    pub(crate) block_size: u32,
    /// Prefixes that replicas report, once per replica; beyond that `eviction` says which go.
    pub(crate) max_entries: usize,
    /// Who may report where there are no keys: `loopback` is callers on this machine, `anyone` everybody who
    /// reaches the port, which beyond loopback also needs `--insecure`. Any reporter can clear any
    /// replica. With keys it says nothing: the role `report` decides.
    pub(crate) accept_reports: AcceptReportsName,
    /// What was not reported again for so long is forgotten. Engines that are heard here say themselves what
    /// goes.
    pub(crate) ttl: Span,
    /// Prompts of fewer tokens get no match.
    pub(crate) minimum_prefix_tokens: u32,
    /// Replicas that match fewer tokens are left out.
    pub(crate) minimum_matched_tokens: u32,
    /// Below this score nobody is named for a match.
    pub(crate) routing_floor_score: f32,
    /// A lookup that takes longer gets `TIMEOUT`; `0s` is no limit but the caller's.
    pub(crate) lookup_timeout: Span,
    /// A prompt that nobody holds always goes to the same replica.
    pub(crate) affinity_routing: bool,
    /// What goes first where there is no room: `lru`, what was reported longest ago, or `lfu`, what answered
    /// the fewest lookups.
    pub(crate) eviction: EvictionName,
    /// Chains are matched block by block; otherwise by their last hash alone.
    pub(crate) chain_matching: bool,
    /// Only lookups with a chain are answered.
    pub(crate) require_chain: bool,
    /// Where a single hash is not found, replicas that serve the tenant well are named.
    pub(crate) tenant_hot: bool,
    /// Tenants that are treated otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tenant: Vec<TenantConfig>,
}

impl Default for HintsConfig {
    fn default() -> Self {
        let options = HintsOptions::default();
        let policy = options.policies.default;
        Self {
            enabled: options.enabled,
            default_tenant: options.default_tenant,
            block_size: options.block_size,
            max_entries: options.limits.max_entries,
            accept_reports: AcceptReportsName::Loopback,
            ttl: Span(policy.ttl),
            minimum_prefix_tokens: policy.minimum_prefix_tokens,
            minimum_matched_tokens: policy.minimum_matched_tokens,
            routing_floor_score: policy.routing_floor_score,
            lookup_timeout: Span(policy.lookup_timeout.unwrap_or_default()),
            affinity_routing: policy.affinity_routing,
            eviction: EvictionName::Lru,
            chain_matching: policy.strategy.chain_matching,
            require_chain: policy.strategy.require_chain,
            tenant_hot: policy.strategy.tenant_hot,
            tenant: Vec::new(),
        }
    }
}

/// A tenant that is treated otherwise: keys that are absent are as in `[hints]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantConfig {
    /// Its name.
    pub(crate) id: String,
    /// Distinct prefixes that it may have, its oldest go first; as many as there is room for when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_entries: Option<usize>,
    /// What was not reported again for so long is forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Span>,
    /// Prompts of fewer tokens get no match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) minimum_prefix_tokens: Option<u32>,
    /// Replicas that match fewer tokens are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) minimum_matched_tokens: Option<u32>,
    /// Below this score nobody is named for a match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) routing_floor_score: Option<f32>,
    /// A lookup takes no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lookup_timeout: Option<Span>,
    /// A prompt that nobody holds always goes to the same replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) affinity_routing: Option<bool>,
    /// What goes first where there is no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eviction: Option<EvictionName>,
    /// Chains are matched block by block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chain_matching: Option<bool>,
    /// Only lookups with a chain are answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) require_chain: Option<bool>,
    /// Replicas that serve the tenant well are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant_hot: Option<bool>,
}

/// Who may report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AcceptReportsName {
    /// Callers on this machine.
    Loopback,
    /// Everybody who reaches the port.
    Anyone,
}

/// What goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EvictionName {
    /// What was reported longest ago.
    Lru,
    /// What answered the fewest lookups.
    Lfu,
}

impl EvictionName {
    fn order(self) -> Eviction {
        match self {
            Self::Lru => Eviction::Lru,
            Self::Lfu => Eviction::Lfu,
        }
    }
}

impl HintsConfig {
    /// Finds mistakes that types cannot.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(self.block_size > 0, "hints.block_size: must not be 0");
        ensure!(!self.default_tenant.is_empty(), "hints.default_tenant: must not be empty");
        ensure!(self.default_tenant != RESERVED_TENANT, "hints.default_tenant: is reserved for probes");
        let score = |score: f32| score.is_finite() && score >= 0.0;
        ensure!(score(self.routing_floor_score), "hints.routing_floor_score: must be 0 or more");
        ensure!(!self.ttl.0.is_zero(), "hints.ttl: must not be 0");
        for (at, tenant) in self.tenant.iter().enumerate() {
            let TenantConfig { id, ttl, routing_floor_score, .. } = tenant;
            ensure!(!id.is_empty(), "hints.tenant[{at}].id: must not be empty");
            ensure!(id != RESERVED_TENANT, "hints.tenant[{at}].id: is reserved for probes");
            let first = self.tenant.iter().position(|other| other.id == *id);
            ensure!(first == Some(at), "hints.tenant[{at}].id: {id:?} is used twice");
            ensure!(
                routing_floor_score.is_none_or(score),
                "hints.tenant[{at}].routing_floor_score: must be 0 or more"
            );
            ensure!(ttl.is_none_or(|ttl| !ttl.0.is_zero()), "hints.tenant[{at}].ttl: must not be 0");
        }
        Ok(())
    }

    /// For the server.
    pub(crate) fn options(&self) -> HintsOptions {
        let by_tenant = self.tenant.iter().map(|tenant| (tenant.id.clone(), self.policy(Some(tenant))));
        let quota = |tenant: &TenantConfig| {
            tenant.max_entries.map(|max| (tenant.id.clone(), Quota { max_entries: Some(max) }))
        };
        HintsOptions {
            enabled: self.enabled,
            default_tenant: self.default_tenant.clone(),
            block_size: self.block_size,
            accept_reports: match self.accept_reports {
                AcceptReportsName::Loopback => AcceptReports::Loopback,
                AcceptReportsName::Anyone => AcceptReports::Anyone,
            },
            limits: Limits { max_entries: self.max_entries, ..Limits::default() },
            policies: Policies {
                default: self.policy(None),
                by_tenant: by_tenant.collect(),
                quotas: self.tenant.iter().filter_map(quota).collect(),
            },
        }
    }

    /// The policy of a tenant, or of all others.
    fn policy(&self, tenant: Option<&TenantConfig>) -> Policy {
        fn own<T>(tenant: Option<&TenantConfig>, key: fn(&TenantConfig) -> Option<T>, common: T) -> T {
            tenant.and_then(key).unwrap_or(common)
        }
        let timeout = own(tenant, |tenant| tenant.lookup_timeout, self.lookup_timeout).0;
        Policy {
            ttl: own(tenant, |tenant| tenant.ttl, self.ttl).0,
            minimum_prefix_tokens: own(
                tenant,
                |tenant| tenant.minimum_prefix_tokens,
                self.minimum_prefix_tokens,
            ),
            minimum_matched_tokens: own(
                tenant,
                |tenant| tenant.minimum_matched_tokens,
                self.minimum_matched_tokens,
            ),
            routing_floor_score: own(tenant, |tenant| tenant.routing_floor_score, self.routing_floor_score),
            lookup_timeout: (!timeout.is_zero()).then_some(timeout),
            affinity_routing: own(tenant, |tenant| tenant.affinity_routing, self.affinity_routing),
            eviction: own(tenant, |tenant| tenant.eviction, self.eviction).order(),
            strategy: Strategy {
                chain_matching: own(tenant, |tenant| tenant.chain_matching, self.chain_matching),
                require_chain: own(tenant, |tenant| tenant.require_chain, self.require_chain),
                tenant_hot: own(tenant, |tenant| tenant.tenant_hot, self.tenant_hot),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> HintsConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_server() {
        let (ours, theirs) = (HintsConfig::default().options(), HintsOptions::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        let printed = toml::to_string(&HintsConfig::default()).unwrap();
        assert_eq!(read(&printed), HintsConfig::default());
    }

    #[test]
    fn a_tenant_is_treated_as_all_but_for_its_keys() {
        let config = read(
            "ttl = \"10m\"\nlookup_timeout = \"5ms\"\nminimum_matched_tokens = 0\naccept_reports = \"anyone\"\n\
            [[tenant]]\nid = \"a\"\nmax_entries = 7\neviction = \"lfu\"\nlookup_timeout = \"0s\"\nrequire_chain = true\n",
        );
        config.check().unwrap();
        let options = config.options();
        let expected = Policy {
            ttl: Duration::from_mins(10),
            minimum_matched_tokens: 0,
            lookup_timeout: Some(Duration::from_millis(5)),
            ..Policy::default()
        };
        assert_eq!(options.policies.of("b"), &expected);
        let strategy = Strategy { require_chain: true, ..Strategy::default() };
        let expected = Policy { lookup_timeout: None, eviction: Eviction::Lfu, strategy, ..expected };
        assert_eq!(options.policies.of("a"), &expected);
        assert_eq!((options.policies.max_entries("a"), options.policies.max_entries("b")), (Some(7), None));
        assert_eq!(options.accept_reports, AcceptReports::Anyone);
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(read(&printed), config);
    }

    #[test]
    fn mistakes_name_their_key() {
        for (text, named) in [
            ("block_size = 0", "hints.block_size"),
            ("default_tenant = \"\"", "hints.default_tenant"),
            ("default_tenant = \"inferencecache.io/probe\"", "hints.default_tenant"),
            ("routing_floor_score = -1.0", "hints.routing_floor_score"),
            ("ttl = \"0s\"", "hints.ttl"),
            ("[[tenant]]\nid = \"\"", "hints.tenant[0].id"),
            ("[[tenant]]\nid = \"a\"\n[[tenant]]\nid = \"a\"", "hints.tenant[1].id"),
            ("[[tenant]]\nid = \"a\"\nttl = \"0s\"", "hints.tenant[0].ttl"),
        ] {
            let error = read(text).check().unwrap_err().to_string();
            assert!(error.starts_with(named), "{text}: {error}");
        }
        assert!(toml::from_str::<HintsConfig>("colour = 1").is_err());
    }
}
