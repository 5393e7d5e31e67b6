//! Refused callers: each is counted, and log lines are rate limited.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_core::{ErrorCode, PublicError};
use parking_lot::Mutex;
use tracing::warn;

use super::access::Port;
use super::role::Role;

/// At most one line in this time: refused callers must not fill the disk.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Why a caller was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Neither token nor certificate.
    NoKey,
    /// An `authorization` that holds no bearer token.
    NotBearer,
    /// A token that nobody has.
    UnknownToken,
    /// A certificate without a role.
    UnknownCertificate,
    /// Somebody who may not do this.
    WrongRole(Role),
    /// Nobody is asked who they are here, and the caller is on another machine.
    NotLoopback,
    /// A page of another site, in a browser on this machine.
    ForeignPage,
    /// Asked on this machine under a name that is not this machine's.
    ForeignHost,
}

impl Refused {
    /// Its names in metrics, in the order of [`Self::index`].
    const NAMES: [&str; 8] = [
        "no_key",
        "not_bearer",
        "unknown_token",
        "unknown_certificate",
        "wrong_role",
        "not_loopback",
        "foreign_page",
        "foreign_host",
    ];

    fn index(self) -> usize {
        match self {
            Self::NoKey => 0,
            Self::NotBearer => 1,
            Self::UnknownToken => 2,
            Self::UnknownCertificate => 3,
            Self::WrongRole(_) => 4,
            Self::NotLoopback => 5,
            Self::ForeignPage => 6,
            Self::ForeignHost => 7,
        }
    }

    fn as_str(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The message to the caller: what is missing, and nothing about what is behind.
    pub fn public(self) -> PublicError {
        let unauthenticated = |message: &str| PublicError::new(ErrorCode::Unauthenticated, message);
        let forbidden = |message: String| PublicError::new(ErrorCode::Forbidden, message);
        match self {
            Self::NoKey => unauthenticated("a bearer token or a client certificate with a role is required"),
            Self::NotBearer => unauthenticated("the authorization header is not one bearer token"),
            Self::UnknownToken => unauthenticated("unknown token").with_next(
                "compare it with the file or variable that [[auth.token]] names, and reload kvplane",
            ),
            Self::UnknownCertificate => unauthenticated("the client certificate has no role here")
                .with_next("give its name a role under [[auth.certificate]], and reload kvplane"),
            Self::WrongRole(role) => forbidden(format!("this needs the role {role}")),
            Self::NotLoopback => {
                forbidden("loopback only until [auth] is configured".to_owned())
                    .with_next("connect over loopback, or configure [auth] and send a token; clients of an indexer may be admitted by [indexer] open")
            }
            Self::ForeignPage => forbidden("requests from pages of other sites are rejected".to_owned())
                .with_next("use this plane's own pages, or a client that is not a browser"),
            Self::ForeignHost => forbidden(
                "without keys, the host must be localhost or an address".to_owned(),
            )
            .with_next("write localhost or 127.0.0.1 in the URL, or configure [auth] and send a token"),
        }
    }
}

/// The refusals of all listeners.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [[AtomicU64; Refused::NAMES.len()]; Port::ALL.len()],
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    last: Option<Instant>,
    unsaid: u64,
}

impl Refusals {
    pub(super) fn count(&self, port: Port, refused: Refused, peer: Option<SocketAddr>, caller: Option<&str>) {
        self.counts[port as usize][refused.index()].fetch_add(1, Ordering::Relaxed);
        let Some(unsaid) = self.log.lock().due(kvplane_runtime::now()) else { return };
        let why = refused.as_str();
        let from = peer.map(|peer| peer.ip().to_canonical().to_string());
        warn!(listener = port.as_str(), reason = why, from, caller, suppressed = unsaid, "caller refused");
    }

    /// Each listener, each reason, and how often.
    pub(super) fn counted(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut counted = Vec::new();
        for port in Port::ALL {
            let counts = &self.counts[port as usize];
            for (why, count) in Refused::NAMES.iter().zip(counts) {
                counted.push((port.as_str(), *why, count.load(Ordering::Relaxed)));
            }
        }
        counted
    }
}

impl Log {
    /// How many log lines were suppressed, if one may be written now.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_one_line() {
        let (mut log, start) = (Log::default(), kvplane_runtime::now());
        assert_eq!(log.due(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.due(start), None);
        }
        assert_eq!(log.due(start + LOG_EVERY), Some(1000));
    }
}
