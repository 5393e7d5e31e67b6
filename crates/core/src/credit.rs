//! Who is credited: the one rule that every answer and every protocol goes by.

use crate::{Continuity, Reason, Trust, TrustState};

/// Whether a stream that stands here, with this trust, is credited where these levels are. `worst` is the reason that decides
/// its trust ([`TrustState::worst`]).
pub fn is_credited(
    continuity: Continuity,
    trust: Trust,
    worst: Option<Reason>,
    credit: &[Trust],
) -> bool {
    continuity == Continuity::Live
        && credit.contains(&trust)
        && !worst.is_some_and(Reason::forbids_credit)
}

impl TrustState {
    /// Whether a stream that stands here with this trust is credited where these levels are.
    pub fn is_credited_at(&self, continuity: Continuity, credit: &[Trust]) -> bool {
        is_credited(continuity, self.level(), self.worst().map(|worst| worst.reason), credit)
    }
}
