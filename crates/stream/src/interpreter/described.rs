//! What the engine says of itself, held against what is configured, and reasons that hold as long as
//! something is so.

use kvplane_core::{Reason, Tier, Trust};

use super::Interpreter;
use super::clears::is_device;
use crate::clock::Now;
use crate::ledger::Ledger;
use crate::state::Place;

impl Interpreter {
    /// The engine says that its blocks have this many tokens. True if that contradicts the configured number,
    /// and did not before.
    pub fn describe_block_size(&mut self, ledger: &mut Ledger, block_size: u32, now: Now) -> bool {
        let contradicts = self.options.block_size.is_some_and(|configured| configured != block_size);
        match (contradicts, self.misdescribed_since_ms) {
            (true, None) => {
                self.misdescribed_since_ms = Some(now.unix_ms);
                ledger.counters.block_size_contradictions += 1;
                ledger.degrade_source(Reason::BlockSize, now);
                true
            }
            (false, Some(_)) => {
                self.misdescribed_since_ms = None;
                ledger.resolve_source(Reason::BlockSize);
                false
            }
            (true, Some(_)) | (false, None) => false,
        }
    }

    /// The engine says whether it serves adapters that its events do not name. True if it does, and did not
    /// before.
    pub fn describe_adapters(&mut self, ledger: &mut Ledger, untold: bool, now: Now) -> bool {
        let news = untold && !self.untold_adapters;
        self.untold_adapters = untold;
        if untold {
            ledger.degrade_source(Reason::UntoldAdapters, now);
        } else {
            ledger.resolve_source(Reason::UntoldAdapters);
        }
        news
    }

    /// The state is known whole again. What the engine says of itself is as wrong as before, and what is so
    /// stays so.
    pub(super) fn restore_trust(&mut self, ledger: &mut Ledger) {
        self.epoch.copies.uncounted = false;
        let active = ledger.trust().active().iter();
        let continuity = active.filter(|active| self.stands(ledger, active.reason));
        let mut continuity: Vec<_> = continuity.map(|active| (active.reason, active.since_ms)).collect();
        continuity.extend(self.misdescribed_since_ms.map(|since_ms| (Reason::BlockSize, since_ms)));
        ledger.restore_trust(&continuity);
    }

    /// Reasons that describe what is, and not what happened: they come and go with it.
    pub(super) fn note_standing_reasons(&mut self, ledger: &mut Ledger, now: Now) {
        for reason in Reason::ALL.into_iter().filter(|reason| reason.is_standing()) {
            if self.stands(ledger, reason) {
                ledger.degrade(reason, now);
            } else {
                ledger.resolve(reason);
            }
        }
    }

    fn stands(&self, ledger: &Ledger, reason: Reason) -> bool {
        match reason {
            Reason::UnremovedTier => !ledger.state().nothing_but(|place| self.tells_removals(place)),
            // Blocks that lost their last certain copy may have one more.
            Reason::Presence => self.epoch.copies.uncounted || self.epoch.reports.has_unsure(),
            Reason::ChunkSize => self.chunks_are_unclear(ledger),
            Reason::UnknownContent => {
                let cold = |place: &Place| !is_device(place) && place.is_main();
                // While the past is unknown, any number of blocks may wait, and the stream is `lower` anyway.
                let mut active = ledger.trust().active().iter().map(|active| active.reason);
                let lacks_past = active.any(|other| other.trust() == Trust::Lower && !other.is_standing());
                ledger.state().has_unjoined(cold) || !lacks_past && ledger.state().has_waiting(cold)
            }
            Reason::UntoldAdapters => self.untold_adapters,
            Reason::Flushing => self.is_fenced(),
            // How an engine looks for windows and states behind its device is not proven.
            Reason::UnknownGroup if ledger.sides.are_there() && !ledger.state().nothing_but(is_device) => {
                true
            }
            _ => ledger.sides.stands(reason),
        }
    }

    /// Whether what leaves a place is announced: the engine is known to, or has done so.
    fn tells_removals(&self, place: &Place) -> bool {
        Tier::tells_removals(place.medium.as_deref())
            || self.epoch.removed_from.iter().any(|place_before| place_before.is_beside(place))
    }

    /// The engine announces what leaves a place.
    pub(super) fn note_removal_from(&mut self, place: &Place) {
        if !self.tells_removals(place) {
            self.epoch.removed_from.push(place.clone());
        }
    }
}
