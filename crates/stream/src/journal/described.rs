//! What the engine says of itself, held against what is configured, and reasons that hold as long as something is so.

use kvplane_core::{Reason, Tier};

use super::Journal;
use super::clears::is_device;
use crate::clock::Now;
use crate::state::Place;

impl Journal {
    /// The engine says that its blocks have so many tokens. True if that contradicts the configured number, and did not before.
    pub fn describe_block_size(&mut self, block_size: u32, now: Now) -> bool {
        let contradicts = self.options.block_size.is_some_and(|configured| configured != block_size);
        match (contradicts, self.misdescribed_since_ms) {
            (true, None) => {
                self.misdescribed_since_ms = Some(now.unix_ms);
                self.counters.block_size_contradictions += 1;
                self.degrade_source(Reason::BlockSize, now);
                true
            }
            (false, Some(_)) => {
                self.misdescribed_since_ms = None;
                self.resolve_source(Reason::BlockSize);
                false
            }
            (true, Some(_)) | (false, None) => false,
        }
    }

    /// The engine says whether it serves adapters that its events do not name. True if it does, and did not before.
    pub fn describe_adapters(&mut self, untold: bool, now: Now) -> bool {
        let news = untold && !self.untold_adapters;
        self.untold_adapters = untold;
        if untold {
            self.degrade_source(Reason::UntoldAdapters, now);
        } else {
            self.resolve_source(Reason::UntoldAdapters);
        }
        news
    }

    /// The state is known whole again. What the engine says of itself is as wrong as before, and what is so stays so.
    pub(super) fn restore_trust(&mut self) {
        self.copies_uncounted = false;
        let standing: Vec<_> =
            self.trust.active().iter().copied().filter(|active| self.stands(active.reason)).collect();
        self.trust.restore();
        for active in standing {
            self.trust.degrade(active.reason, active.since_ms);
        }
        if let Some(since_ms) = self.misdescribed_since_ms {
            self.trust.degrade(Reason::BlockSize, since_ms);
        }
    }

    /// Reasons that describe what is, and not what happened: they come and go with it.
    pub(super) fn note_standing_reasons(&mut self, now: Now) {
        for reason in Reason::ALL.into_iter().filter(|reason| reason.is_standing()) {
            if self.stands(reason) {
                self.degrade(reason, now);
            } else {
                self.trust_changed |= self.trust.resolve(reason);
            }
        }
    }

    fn stands(&self, reason: Reason) -> bool {
        match reason {
            Reason::UnremovedTier => !self.state.nothing_but(|place| self.tells_removals(place)),
            // Blocks that lost their last certain copy may have one more.
            Reason::Presence => self.copies_uncounted || self.reports.has_unsure(),
            Reason::ChunkSize => self.chunks_are_unclear(),
            Reason::UntoldAdapters => self.untold_adapters,
            Reason::Flushing => self.is_fenced(),
            // How an engine looks for windows and states behind its device is not proven.
            Reason::UnknownGroup if self.sides.are_there() && !self.state.nothing_but(is_device) => true,
            _ => self.sides.stands(reason),
        }
    }

    /// Whether what leaves a place is told: the engine is known to, or has done so.
    fn tells_removals(&self, place: &Place) -> bool {
        Tier::tells_removals(place.medium.as_deref())
            || self.removed_from.iter().any(|told| told.is_beside(place))
    }

    /// The engine tells what leaves a place.
    pub(super) fn note_removal_from(&mut self, place: &Place) {
        if !self.tells_removals(place) {
            self.removed_from.push(place.clone());
        }
    }
}
