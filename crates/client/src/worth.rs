//! What a replica's state is worth, as the plane says.

use kvplane_core::Trust;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::trust_level;

/// What answers from a stream are worth, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustReport {
    /// The level. One that this build does not know is read as [`Trust::Unsound`].
    pub level: Trust,
    /// All that keeps it from being exact, oldest first.
    pub reasons: Vec<TrustReason>,
}

/// One reason, in the plane's words: a newer plane may have reasons that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustReason {
    /// Why.
    pub reason: String,
    /// Since when, unix milliseconds.
    pub since_ms: u64,
}

impl TrustReport {
    /// Nothing was heard: nothing is held, and everything may be missing.
    pub(crate) fn unheard() -> Self {
        let reason = kvplane_core::Reason::Unheard;
        Self { level: reason.trust(), reasons: vec![TrustReason { reason: reason.to_string(), since_ms: 0 }] }
    }
}

impl From<&proto::Trust> for TrustReport {
    fn from(trust: &proto::Trust) -> Self {
        let reasons = trust
            .degradations
            .iter()
            .map(|one| TrustReason { reason: one.reason.clone(), since_ms: one.since_ms })
            .collect();
        Self { level: trust_level(trust), reasons }
    }
}
