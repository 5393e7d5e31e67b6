//! Who is credited: the one rule that every answer and every protocol goes by.

use crate::{Continuity, Reason, Trust, TrustState};

/// Whether a stream that stands here, with this trust, is credited where these levels are. `worst` is the
/// reason that decides its trust ([`TrustState::worst`]).
pub fn is_credited(continuity: Continuity, trust: Trust, worst: Option<Reason>, credit: &[Trust]) -> bool {
    continuity == Continuity::Live && credit.contains(&trust) && !worst.is_some_and(Reason::forbids_credit)
}

/// Whether a copy of a stream that another plane records is ready to be asked: it is complete, and what is
/// credited `there` is credited `here` too. A stream that is live there is not live here before the first
/// proof that its engine is there has arrived.
pub fn is_caught_up(is_complete: bool, there: Continuity, here: Continuity) -> bool {
    is_complete && (there != Continuity::Live || here == Continuity::Live)
}

impl TrustState {
    /// Whether a stream that stands here with this trust is credited where these levels are.
    pub fn is_credited_at(&self, continuity: Continuity, credit: &[Trust]) -> bool {
        is_credited(continuity, self.level(), self.worst().map(|worst| worst.reason), credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_ready_once_it_is_complete_and_as_live_as_what_it_copies() {
        use Continuity::{Connecting, Down, Live, Recovering};
        assert!(is_caught_up(true, Live, Live));
        assert!(!is_caught_up(false, Live, Live));
        assert!(!is_caught_up(true, Live, Recovering), "no proof has arrived");
        for trouble in [Connecting, Recovering, Down] {
            assert!(is_caught_up(true, trouble, trouble), "there is nothing to wait for");
        }
    }
}
