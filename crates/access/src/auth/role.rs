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
    /// Everything, all that changes state included.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Report, Self::Admin];

    /// The role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Report => "report",
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
pub struct Roles {
    read: bool,
    report: bool,
    admin: bool,
}

impl Roles {
    /// What somebody may who reaches a port that was opened to everybody: nothing that changes engines.
    pub(super) const ANYONE: Self = Self { read: true, report: true, admin: false };

    /// Whether a caller with these may do what `role` may.
    pub fn include(self, role: Role) -> bool {
        match role {
            Role::Read => self.read,
            Role::Report => self.report,
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
        Self { read: admin || role == Role::Read, report: admin || role == Role::Report, admin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_includes_the_others_and_they_stay_apart() {
        let includes = |mine: Role| Role::ALL.map(|role| Roles::from(mine).include(role));
        assert_eq!(includes(Role::Read), [true, false, false]);
        assert_eq!(includes(Role::Report), [false, true, false]);
        assert_eq!(includes(Role::Admin), [true, true, true]);
        assert!(!Roles::ANYONE.include(Role::Admin));
    }
}
