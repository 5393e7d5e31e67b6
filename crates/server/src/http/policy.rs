//! `/policy`: how tenants are treated, replaced as a whole. Tenants that are not in it are treated as
//! configured; of those that are, a minimum or timeout that is absent is none, as the peer's form has it, and
//! everything else is as configured.

use std::collections::HashMap;
use std::time::Duration;

use kvplane_core::PublicError;
use kvplane_hints::{Eviction, Policies, Policy, Quota, Strategy};
use schemars::JsonSchema;
use serde::Deserialize;

/// Versions of the form that are understood.
const VERSIONS: std::ops::RangeInclusive<i64> = 3..=7;
/// Since this version a minimum of no matched tokens is meant; before there was no such field.
const KNOWS_MATCHED_TOKENS: i64 = 4;

/// The whole body.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicySnapshot {
    version: i64,
    #[serde(default)]
    policies: Option<Vec<PolicyJson>>,
    #[serde(default)]
    tenants: Option<Vec<TenantJson>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PolicyJson {
    namespace: String,
    /// Nanoseconds.
    #[serde(default, rename = "evictionTTL")]
    eviction_ttl: u64,
    #[serde(default)]
    minimum_prefix_tokens: u32,
    #[serde(default)]
    minimum_matched_tokens: u32,
    routing_floor_score: Option<f32>,
    #[serde(default)]
    lookup_timeout_ms: u32,
    affinity_routing: Option<bool>,
    eviction: Option<String>,
    strategy: Option<StrategyJson>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StrategyJson {
    enable_chain_matching: Option<bool>,
    require_chain: Option<bool>,
    enable_tenant_hot: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TenantJson {
    #[serde(rename = "tenantID")]
    tenant_id: String,
    max_index_entries: usize,
    /// Tenants are always isolated.
    #[serde(default, rename = "isolationMode")]
    _isolation_mode: Option<String>,
}

impl PolicySnapshot {
    /// The policies, where `default` is for tenants and fields that are absent.
    pub(super) fn policies(self, default: &Policy) -> Result<Policies, PublicError> {
        let Self { version, policies, tenants } = self;
        if !VERSIONS.contains(&version) {
            let (first, last) = (VERSIONS.start(), VERSIONS.end());
            let message = format!("{version} is not supported; {first} to {last} are");
            return Err(PublicError::field("version", message));
        }
        let mut by_tenant = HashMap::new();
        for entry in policies.unwrap_or_default() {
            if entry.namespace.is_empty() {
                return Err(PublicError::field("namespace", "must not be empty"));
            }
            by_tenant.insert(entry.namespace.clone(), entry.policy(version, default)?);
        }
        let mut quotas = HashMap::new();
        for TenantJson { tenant_id, max_index_entries, .. } in tenants.unwrap_or_default() {
            if tenant_id.is_empty() {
                return Err(PublicError::field("tenantID", "must not be empty"));
            }
            quotas.insert(tenant_id, Quota { max_entries: Some(max_index_entries) });
        }
        Ok(Policies { default: default.clone(), by_tenant, quotas })
    }
}

impl PolicyJson {
    fn policy(self, version: i64, default: &Policy) -> Result<Policy, PublicError> {
        let eviction = match self.eviction.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("") => default.eviction,
            Some("lru") => Eviction::Lru,
            Some("lfu") => Eviction::Lfu,
            Some(other) => {
                return Err(PublicError::field("eviction", format!("{other:?} is not lru or lfu")));
            }
        };
        let score = self.routing_floor_score.unwrap_or(default.routing_floor_score);
        if !score.is_finite() || score < 0.0 {
            return Err(PublicError::field("routingFloorScore", "must be 0 or more"));
        }
        let untold = version < KNOWS_MATCHED_TOKENS && self.minimum_matched_tokens == 0;
        let strategy = self.strategy.unwrap_or_default();
        let Strategy { chain_matching, require_chain, tenant_hot } = default.strategy;
        Ok(Policy {
            ttl: Some(self.eviction_ttl).filter(|ns| *ns > 0).map_or(default.ttl, Duration::from_nanos),
            minimum_prefix_tokens: self.minimum_prefix_tokens,
            minimum_matched_tokens: if untold {
                default.minimum_matched_tokens
            } else {
                self.minimum_matched_tokens
            },
            routing_floor_score: score,
            lookup_timeout: Some(self.lookup_timeout_ms)
                .filter(|ms| *ms > 0)
                .map(|ms| Duration::from_millis(ms.into())),
            affinity_routing: self.affinity_routing.unwrap_or(default.affinity_routing),
            eviction,
            strategy: Strategy {
                chain_matching: strategy.enable_chain_matching.unwrap_or(chain_matching),
                require_chain: strategy.require_chain.unwrap_or(require_chain),
                tenant_hot: strategy.enable_tenant_hot.unwrap_or(tenant_hot),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(body: &Value) -> Result<Policies, String> {
        let snapshot: PolicySnapshot =
            serde_json::from_value(body.clone()).map_err(|error| error.to_string())?;
        snapshot.policies(&Policy::default()).map_err(|error| error.message)
    }

    #[test]
    fn everything_that_can_be_announced() {
        let policies = parsed(&json!({"version": 7, "policies": [{
            "namespace": "a", "evictionTTL": 90_000_000_000_u64, "minimumPrefixTokens": 1, "minimumMatchedTokens": 2,
            "routingFloorScore": 0.5, "lookupTimeoutMs": 3, "affinityRouting": false, "eviction": "lfu",
            "strategy": {"enableChainMatching": false, "requireChain": true, "enableTenantHot": false},
        }], "tenants": [{"tenantID": "a", "maxIndexEntries": 0, "isolationMode": "Strict"}]}))
        .unwrap();
        let expected = Policy {
            ttl: Duration::from_secs(90),
            minimum_prefix_tokens: 1,
            minimum_matched_tokens: 2,
            routing_floor_score: 0.5,
            lookup_timeout: Some(Duration::from_millis(3)),
            affinity_routing: false,
            eviction: Eviction::Lfu,
            strategy: Strategy { chain_matching: false, require_chain: true, tenant_hot: false },
        };
        assert_eq!(policies.of("a"), &expected);
        assert_eq!(policies.of("b"), &Policy::default());
        assert_eq!((policies.max_entries("a"), policies.max_entries("b")), (Some(0), None));
    }

    #[test]
    fn what_older_versions_cannot_tell_is_as_configured() {
        for (version, matched) in [(3, 64), (4, 0), (7, 0)] {
            let body = json!({"version": version, "policies": [{"namespace": "a"}], "tenants": null});
            let expected = Policy { minimum_matched_tokens: matched, ..Policy::default() };
            assert_eq!(parsed(&body).unwrap().of("a"), &expected, "version {version}");
        }
        assert_eq!(parsed(&json!({"version": 5, "policies": null})).unwrap(), Policies::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, named) in [
            (json!({"version": 2, "policies": []}), "3 to 7"),
            (json!({"version": 8, "policies": []}), "3 to 7"),
            (json!({"policies": []}), "version"),
            (json!({"version": 7, "policies": [], "more": 1}), "more"),
            (json!({"version": 7, "policies": [{"namespace": "a", "more": 1}]}), "more"),
            (json!({"version": 7, "policies": [{"namespace": ""}]}), "namespace"),
            (json!({"version": 7, "policies": [{"namespace": "a", "eviction": "fifo"}]}), "fifo"),
            (
                json!({"version": 7, "policies": [{"namespace": "a", "routingFloorScore": -1}]}),
                "routingFloorScore",
            ),
            (json!({"version": 7, "policies": [{"namespace": "a", "minimumMatchedTokens": -1}]}), "-1"),
            (
                json!({"version": 7, "policies": [], "tenants": [{"tenantID": "", "maxIndexEntries": 1}]}),
                "tenantID",
            ),
        ] {
            let error = parsed(&body).unwrap_err();
            assert!(error.contains(named), "{body}: {error}");
        }
    }
}
