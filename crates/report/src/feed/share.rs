//! How much of a stream can be reported over a protocol without trust.

use kvplane_core::{Reason, Resumption, Tier, Trust, TrustState};

use crate::sink::Withheld;

/// Which tiers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All that are known.
    All,
    /// What lies behind the device is in doubt; what lies on it is not.
    Device,
}

impl Share {
    /// What counts of a stream of this worth, which needs this to go on from a boundary; or why nothing does.
    pub(super) fn of(trust: &TrustState, resumption: &Resumption) -> Result<Self, Withheld> {
        let grouped = [Reason::UnknownGroup, Reason::NoFullGroup, Reason::GroupLayout, Reason::Reannounced];
        if !resumption.sides.is_empty() || grouped.into_iter().any(|reason| trust.has(reason)) {
            return Err(Withheld::Hybrid);
        }
        if resumption.drops_last {
            return Err(Withheld::GivesUpLast);
        }
        let mut share = if in_single_blocks(resumption) { Self::All } else { Self::Device };
        for degradation in trust.active() {
            match degradation.reason {
                reason if reason.trust() <= Trust::Lower => {}
                Reason::UnremovedTier | Reason::UnknownMedium => share = Self::Device,
                _ => return Err(Withheld::NotExact),
            }
        }
        Ok(share)
    }

    /// Whether a tier counts; if not, why.
    pub(super) fn counts(self, tier: Tier) -> Result<(), Withheld> {
        match (self, tier) {
            (_, Tier::Unknown) => Err(Withheld::UnknownTier),
            (Self::All, _) | (Self::Device, Tier::Device) => Ok(()),
            (Self::Device, _) => Err(Withheld::NotExact),
        }
    }
}

/// A tier that gives back several blocks at once may give back less than it holds.
fn in_single_blocks(resumption: &Resumption) -> bool {
    resumption.units.iter().all(|&unit| unit <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvplane_core::{Need, Side, SpecKind};

    fn of(reasons: &[Reason], resumption: &Resumption) -> Result<Share, Withheld> {
        let mut trust = TrustState::default();
        for &reason in reasons {
            trust.degrade(reason, 1);
        }
        Share::of(&trust, resumption)
    }

    #[test]
    fn every_reason_is_reported_without_phantoms_or_not_at_all() {
        let plain = Resumption::default();
        assert_eq!(of(&[], &plain), Ok(Share::All));
        for reason in Reason::ALL {
            let share = of(&[reason], &plain);
            match (share, reason.trust()) {
                (Ok(Share::All), trust) => assert!(trust <= Trust::Lower, "{reason}"),
                (Ok(Share::Device), _) => {
                    assert!([Reason::UnremovedTier, Reason::UnknownMedium].contains(&reason), "{reason}");
                }
                (Err(_), _) => {}
            }
        }
        assert_eq!(of(&[Reason::Gap, Reason::History], &plain), Ok(Share::All));
        assert_eq!(of(&[Reason::Gap, Reason::UnremovedTier], &plain), Ok(Share::Device));
        assert_eq!(of(&[Reason::UnremovedTier, Reason::UntoldAdapters], &plain), Err(Withheld::NotExact));
        assert_eq!(of(&[Reason::GapKept], &plain), Err(Withheld::NotExact));
    }

    #[test]
    fn main_blocks_alone_would_promise_too_much_of_a_hybrid_cache() {
        let need = Need::Run { blocks: 2, stride: 1, tail: false };
        let sided = Resumption {
            sides: vec![Side { group: Some(1), kind: SpecKind::Sliding, need }],
            ..Resumption::default()
        };
        assert_eq!(of(&[], &sided), Err(Withheld::Hybrid));
        assert_eq!(of(&[Reason::NoFullGroup], &Resumption::default()), Err(Withheld::Hybrid));
        let eagle = Resumption { drops_last: true, ..Resumption::default() };
        assert_eq!(of(&[], &eagle), Err(Withheld::GivesUpLast));
        let chunks = Resumption { units: [1, 4, 4, 4], ..Resumption::default() };
        assert_eq!(of(&[], &chunks), Ok(Share::Device));
    }
}
