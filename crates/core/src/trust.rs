//! What an answer from a stream is worth.

use std::fmt;

use crate::Reason;

/// Where a stream's state machine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Continuity {
    /// Never reached yet.
    Connecting,
    /// A verdict is pending: after a (re)connect, or while a gap is being filled.
    Recovering,
    /// Following.
    Live,
    /// Out of reach for longer than the limit: not credited, state kept for a return.
    Down,
}

impl Continuity {
    /// Every one of them.
    pub const ALL: [Continuity; 4] = [Self::Connecting, Self::Recovering, Self::Live, Self::Down];

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Recovering => "recovering",
            Self::Live => "live",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for Continuity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an answer is worth, best first. The order is the order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// What is said to be resident is exactly what the engine holds.
    Exact,
    /// No phantoms, but blocks may be missing.
    Lower,
    /// Something unknown was skipped.
    Unverified,
    /// May hold phantoms.
    Unsound,
}

impl Trust {
    /// Every level, best first.
    pub const ALL: [Trust; 4] = [Trust::Exact, Trust::Lower, Trust::Unverified, Trust::Unsound];

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Lower => "lower",
            Self::Unverified => "unverified",
            Self::Unsound => "unsound",
        }
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reason and since when it holds (unix milliseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degradation {
    /// Why.
    pub reason: Reason,
    /// Since when, unix milliseconds.
    pub since_ms: u64,
}

/// All that keeps a stream from being `exact`. The worst reason decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustState {
    active: Vec<Degradation>,
}

impl TrustState {
    /// What another plane says that a state is worth: `(reason, since)` as reported, and never better than
    /// its level.
    pub fn reported<'t>(level: Trust, reasons: impl IntoIterator<Item = (&'t str, u64)>) -> Self {
        let mut reported_state = Self::default();
        let mut since = 0;
        for (name, since_ms) in reasons {
            since = since_ms;
            if let Some(reason) = Reason::named(name).or_else(|| Reason::unknown(level)) {
                reported_state.degrade(reason, since_ms);
            }
        }
        if reported_state.level() < level
            && let Some(reason) = Reason::unknown(level)
        {
            reported_state.degrade(reason, since);
        }
        reported_state
    }

    /// The level: the worst of what is active.
    pub fn level(&self) -> Trust {
        self.active.iter().map(|d| d.reason.trust()).max().unwrap_or(Trust::Exact)
    }

    /// The degradation that decides: one that forbids credit, or else the level; of equal ones the first that
    /// came.
    pub fn worst(&self) -> Option<Degradation> {
        let level = self.level();
        let decides = |d: &&Degradation| d.reason.trust() == level;
        let forbids = self.active.iter().find(|d| d.reason.forbids_credit());
        forbids.or_else(|| self.active.iter().find(decides)).copied()
    }

    /// Whether the state is credited where these levels are.
    pub fn is_credited(&self, credit: &[Trust]) -> bool {
        credit.contains(&self.level()) && !self.active.iter().any(|d| d.reason.forbids_credit())
    }

    /// The level, were it not for one reason.
    pub fn level_besides(&self, reason: Reason) -> Trust {
        let others = self.active.iter().filter(|d| d.reason != reason);
        others.map(|d| d.reason.trust()).max().unwrap_or(Trust::Exact)
    }

    /// Adds a reason. Returns true if it was not there yet.
    pub fn degrade(&mut self, reason: Reason, now_ms: u64) -> bool {
        if self.has(reason) {
            return false;
        }
        self.active.push(Degradation { reason, since_ms: now_ms });
        true
    }

    /// Takes a reason away. Returns true if it was there.
    pub fn resolve(&mut self, reason: Reason) -> bool {
        let before = self.active.len();
        self.active.retain(|d| d.reason != reason);
        self.active.len() != before
    }

    /// The state is known whole again: only what is in the nature of the source stays.
    pub fn restore(&mut self) {
        self.active.retain(|degradation| degradation.reason.is_permanent());
    }

    /// Whether a reason is active.
    pub fn has(&self, reason: Reason) -> bool {
        self.active.iter().any(|d| d.reason == reason)
    }

    /// All active reasons, oldest first.
    pub fn active(&self) -> &[Degradation] {
        &self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_is_never_taken_for_better() {
        let reported_state = TrustState::reported(Trust::Lower, [("gap", 1), ("history", 2)]);
        assert_eq!(
            reported_state.active().iter().map(|d| d.reason).collect::<Vec<_>>(),
            [Reason::Gap, Reason::History]
        );
        let reported_state = TrustState::reported(Trust::Unsound, [("gap", 1), ("a_later_word", 2)]);
        assert_eq!(
            reported_state.worst(),
            Some(Degradation { reason: Reason::UpstreamUnsound, since_ms: 2 })
        );
        let reported_state = TrustState::reported(Trust::Unverified, [("gap", 3)]);
        assert_eq!(
            reported_state.worst(),
            Some(Degradation { reason: Reason::UpstreamUnverified, since_ms: 3 })
        );
        assert_eq!(TrustState::reported(Trust::Exact, []).level(), Trust::Exact);
        assert!(Reason::ALL.into_iter().all(|reason| Reason::named(reason.as_str()) == Some(reason)));
    }

    #[test]
    fn what_is_being_flushed_is_never_credited() {
        let mut trust = TrustState::default();
        trust.degrade(Reason::GapKept, 1);
        assert!(trust.is_credited(&[Trust::Unsound]) && !trust.is_credited(&[Trust::Lower]));
        trust.degrade(Reason::Flushing, 2);
        assert!(!trust.is_credited(&Trust::ALL));
        assert_eq!(trust.worst(), Some(Degradation { reason: Reason::Flushing, since_ms: 2 }));
        trust.resolve(Reason::GapKept);
        assert_eq!(trust.level_besides(Reason::Flushing), Trust::Exact);
    }

    #[test]
    fn the_worst_reason_decides() {
        let mut trust = TrustState::default();
        assert_eq!(trust.level(), Trust::Exact);
        assert!(trust.degrade(Reason::Gap, 1));
        assert!(trust.degrade(Reason::MalformedRemoval, 2));
        assert!(!trust.degrade(Reason::Gap, 3));
        assert_eq!(trust.worst(), Some(Degradation { reason: Reason::MalformedRemoval, since_ms: 2 }));
        assert!(trust.resolve(Reason::MalformedRemoval));
        assert_eq!(trust.level(), Trust::Lower);
    }
}
