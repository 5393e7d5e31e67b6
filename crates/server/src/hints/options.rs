//! How hints are given.

use kvplane_hints::{Limits, Policies};

/// How hints are given.
#[derive(Debug, Clone)]
pub struct HintsOptions {
    /// Whether they are given at all.
    pub enabled: bool,
    /// The tenant of engines that name none.
    pub default_tenant: String,
    /// Tokens per block of replicas that report themselves: for lookups that bring tokens.
    pub block_size: u32,
    /// Who may report what replicas hold.
    pub accept_reports: AcceptReports,
    /// How much is kept of reports.
    pub limits: Limits,
    /// How tenants are treated, until `/policy` says otherwise.
    pub policies: Policies,
}

impl Default for HintsOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            default_tenant: "default".to_owned(),
            block_size: 16,
            accept_reports: AcceptReports::Loopback,
            limits: Limits::default(),
            policies: Policies::default(),
        }
    }
}

/// Who may report what replicas hold. The protocol knows no passwords: every reporter may clear any replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptReports {
    /// Callers on this machine.
    #[default]
    Loopback,
    /// Everybody who reaches the port.
    Anyone,
}
