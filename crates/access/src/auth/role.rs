//! What callers may do.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Ask and follow: questions, streams, status, metrics.
    Read,
    /// Report what replicas hold, and nothing else: a reporter need not see other replicas' prompts.
    Report,
    /// Send requests to engines through the gateway, and nothing else.
    Infer,
    /// Everything, all that changes state included.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Report, Self::Infer, Self::Admin];

    /// The role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Report => "report",
            Self::Infer => "infer",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a route or a method asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: whether the process lives is no secret.
    Nothing,
    /// Any role at all.
    AnyRole,
    /// This one.
    Role(Role),
}

/// The roles of one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each role")]
pub struct Roles {
    read: bool,
    report: bool,
    infer: bool,
    admin: bool,
}

impl Roles {
    /// What somebody may who reaches a port that was opened to everybody: nothing that changes engines.
    pub(super) const ANYONE: Self = Self { read: true, report: true, infer: true, admin: false };

    /// Whether a caller with these may do what `role` may.
    pub fn include(self, role: Role) -> bool {
        match role {
            Role::Read => self.read,
            Role::Report => self.report,
            Role::Infer => self.infer,
            Role::Admin => self.admin,
        }
    }

    pub(super) fn meet(self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing | Needs::AnyRole => true,
            Needs::Role(role) => self.include(role),
        }
    }
}

impl From<Role> for Roles {
    /// `admin` includes the others; they do not include each other.
    fn from(role: Role) -> Self {
        let admin = role == Role::Admin;
        let has = |one: Role| admin || role == one;
        Self { read: has(Role::Read), report: has(Role::Report), infer: has(Role::Infer), admin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_includes_the_others_and_they_stay_apart() {
        let includes = |mine: Role| Role::ALL.map(|role| Roles::from(mine).include(role));
        assert_eq!(includes(Role::Read), [true, false, false, false]);
        assert_eq!(includes(Role::Report), [false, true, false, false]);
        assert_eq!(includes(Role::Infer), [false, false, true, false]);
        assert_eq!(includes(Role::Admin), [true; 4]);
        assert!(!Roles::ANYONE.include(Role::Admin));
    }
}
