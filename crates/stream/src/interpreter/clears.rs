//! Applying a clear, as far as the engine means it.

use std::sync::Arc;

use kvplane_core::{Reason, Trust};

use super::{Interpreter, Reading};
use crate::clock::Now;
use crate::ledger::{Cleared, Ledger};
use crate::options::ClearScope;
use crate::state::Place;

impl Interpreter {
    /// A clear empties the device for sure. Whether it reaches the other tiers vLLM does not say: what they
    /// hold is not known from here on, so nothing of it is said to be held until it is stored again.
    pub(super) fn apply_cleared(
        &mut self,
        ledger: &mut Ledger,
        ownership: Option<&str>,
        (engine_sequence, at): (u64, usize),
        reading: &mut Reading,
        now: Now,
    ) {
        ledger.counters.clears += 1;
        let cleared = |place: &Place| ownership.is_none_or(|owner| place.ownership.as_deref() == Some(owner));
        let places: Vec<Arc<Place>> = ledger
            .state()
            .places
            .iter()
            .filter(|(_, place)| cleared(place))
            .map(|(_, p)| p.clone())
            .collect();
        // A clear of an owner that holds nothing is no event.
        if ownership.is_some() && places.is_empty() {
            return;
        }
        // What is being flushed is not in doubt for any other reason.
        let was_exact = ledger.trust().level_besides(Reason::Flushing) == Trust::Exact;
        let on_device_alone = self.options.semantics.clears == ClearScope::Device;
        // What they held before is as unknown as what is left of it.
        let others_unknown = ownership.is_none()
            && on_device_alone
            && (!ledger.state().nothing_but(is_device)
                || !was_exact && ledger.state().places.iter().any(|(_, place)| !is_device(place)));
        let begins_life = self.options.semantics.starts_with_clear && (engine_sequence, at) == (0, 0);
        if ownership.is_none() && !begins_life {
            let in_doubt = |id, place: &Place| {
                others_unknown && !is_device(place) && (!was_exact || ledger.state().places.blocks(id) > 0)
            };
            self.note_clear_sign(ledger, in_doubt, reading);
        }
        // Nothing was stored since the last clear: there is nothing to clear, and nothing to tell.
        let (changes, transitions) = (reading.draft.changes.len(), reading.draft.transitions.len());
        if ownership.is_some() || reading.cleared_at != Some((changes, transitions)) {
            // A block that is stored there again may come without its tokens.
            self.clear_places(ledger, places, others_unknown, reading);
        }
        if ownership.is_some() {
            return;
        }
        reading.cleared_at = Some((reading.draft.changes.len(), reading.draft.transitions.len()));
        // The whole state is known again: it is empty. Unless another tier turns up later, of which we cannot
        // know what it held before.
        reading.forget_others = on_device_alone;
        if !was_exact {
            self.restore_trust(ledger);
            ledger.tell_trust();
            ledger.set_known_from(engine_sequence);
            self.epoch.tiers.unknown |= on_device_alone;
        }
        if others_unknown || !was_exact && self.may_have_other_tiers() {
            ledger.degrade(Reason::TierHistory, now);
        }
    }

    /// Whether tiers behind the device may hold blocks of a past that was never heard: no event says that an
    /// engine has none. A life that was heard from its beginning shows its tiers.
    pub(super) fn may_have_other_tiers(&self) -> bool {
        let clears_device = self.options.semantics.clears == ClearScope::Device;
        clears_device && !self.options.device_only && !self.epoch.tiers.heard_from_start
    }

    /// A batch with a clear announces what other tiers did behind what the device did, whenever that was: a
    /// store there may be older than the clear, and is not known to have outlived it.
    pub(super) fn forget_others(&mut self, ledger: &mut Ledger, reading: &mut Reading, now: Now) {
        if !reading.forget_others || ledger.state().nothing_but(is_device) {
            return;
        }
        let others = ledger.state().places.iter().filter(|(_, place)| !is_device(place));
        let others = others
            .map(|(id, place)| {
                if ledger.state().places.blocks(id) > 0 {
                    reading.signs.reach.remain(place.tier, None);
                }
                place.clone()
            })
            .collect();
        self.clear_places(ledger, others, true, reading);
        ledger.degrade(Reason::TierHistory, now);
    }

    fn clear_places(
        &mut self,
        ledger: &mut Ledger,
        places: Vec<Arc<Place>>,
        keep_dictionary: bool,
        reading: &mut Reading,
    ) {
        match ledger.clear(places, keep_dictionary, &mut reading.draft) {
            Cleared::Partly => {}
            Cleared::Residency => self.epoch.reports.forget_all(),
            Cleared::Everything => self.forget_state(),
        }
    }
}

/// Whether a place is the engine's own on its device, which every clear reaches.
pub(super) fn is_device(place: &Place) -> bool {
    place.is_own_device()
}
