//! Applying a clear, as far as the engine means it.

use std::sync::Arc;

use kvplane_core::{Reason, Trust};

use super::apply::Effects;
use super::{ClearScope, Journal};
use crate::change::{Change, Transition};
use crate::clock::Now;
use crate::seeded::SeededSet;
use crate::state::{Place, PlaceName};

impl Journal {
    /// A clear empties the device for sure. Whether it reaches the other tiers vLLM does not say: what they hold is not known from
    /// here on, so nothing of it is said to be held until it is stored again.
    pub(super) fn apply_cleared(
        &mut self,
        ownership: Option<&str>,
        (engine_sequence, at): (u64, usize),
        effects: &mut Effects,
        now: Now,
    ) {
        self.counters.clears += 1;
        let cleared = |place: &Place| ownership.is_none_or(|owner| place.ownership.as_deref() == Some(owner));
        let places: Vec<Arc<Place>> =
            self.state.places.iter().filter(|(_, place)| cleared(place)).map(|(_, p)| p.clone()).collect();
        // A clear of an owner that holds nothing is no event.
        if ownership.is_some() && places.is_empty() {
            return;
        }
        // What is being flushed is not in doubt for any other reason.
        let was_exact = self.trust.level_besides(Reason::Flushing) == Trust::Exact;
        let on_device_alone = self.options.semantics.clears == ClearScope::Device;
        // What they held before is as unknown as what is left of it.
        let others_unknown = ownership.is_none()
            && on_device_alone
            && (!self.state.nothing_but(is_device)
                || !was_exact && self.state.places.iter().any(|(_, place)| !is_device(place)));
        let begins_life = self.options.semantics.starts_with_clear && (engine_sequence, at) == (0, 0);
        if ownership.is_none() && !begins_life {
            let in_doubt = |id, place: &Place| {
                others_unknown && !is_device(place) && (!was_exact || self.state.places.blocks(id) > 0)
            };
            self.note_clear_sign(in_doubt, effects);
        }
        // Nothing was stored since the last clear: there is nothing to clear, and nothing to tell.
        let (changes, transitions) = (effects.changes.len(), effects.transitions.len());
        if ownership.is_some() || effects.cleared_at != Some((changes, transitions)) {
            // A block that is stored there again may come without its tokens.
            self.clear_places(places, others_unknown, effects);
        }
        if ownership.is_some() {
            return;
        }
        effects.cleared_at = Some((effects.changes.len(), effects.transitions.len()));
        // The whole state is known again: it is empty. Unless another tier turns up later, of which we cannot know what it
        // held before.
        effects.forget_others = on_device_alone;
        if !was_exact {
            self.restore_trust();
            self.trust_changed = true;
            self.known_from = Some(engine_sequence);
            self.other_tiers_unknown |= on_device_alone;
        }
        if others_unknown || !was_exact && self.may_have_other_tiers() {
            self.degrade(Reason::TierHistory, now);
        }
    }

    /// Whether tiers behind the device may hold blocks of a past that was never heard: no event says that an engine has none. A life that
    /// was heard from its beginning shows its tiers.
    pub(super) fn may_have_other_tiers(&self) -> bool {
        let clears_device = self.options.semantics.clears == ClearScope::Device;
        clears_device && !self.options.device_only && !self.was_heard_from_start
    }

    /// A batch with a clear tells what other tiers did behind what the device did, whenever that was: a store there may be older than
    /// the clear, and is not known to have outlived it.
    pub(super) fn forget_others(&mut self, effects: &mut Effects, now: Now) {
        if !effects.forget_others || self.state.nothing_but(is_device) {
            return;
        }
        let others = self.state.places.iter().filter(|(_, place)| !is_device(place));
        let others = others
            .map(|(id, place)| {
                if self.state.places.blocks(id) > 0 {
                    effects.signs.reach.remain(place.tier, None);
                }
                place.clone()
            })
            .collect();
        self.clear_places(others, true, effects);
        self.degrade(Reason::TierHistory, now);
    }

    fn clear_places(&mut self, places: Vec<Arc<Place>>, keep_dictionary: bool, effects: &mut Effects) {
        let mut elsewhere = self.state.held_elsewhere();
        if !elsewhere.is_empty() {
            let named: SeededSet<PlaceName<'_>> = places.iter().map(|place| place.name()).collect();
            elsewhere.retain(|(place, _)| named.contains(&place.name()));
        }
        self.empty_places(&places, keep_dictionary, effects);
        effects.changes.push(Change::Cleared { places, elsewhere });
    }

    /// Drops what places hold, and tells what that takes out of sight. What blocks are stays known where others hold any; or where that
    /// is wanted, but for blocks that waited: whoever follows would have to know that they did.
    pub(super) fn empty_places(
        &mut self,
        places: &[Arc<Place>],
        keep_dictionary: bool,
        effects: &mut Effects,
    ) {
        let named: SeededSet<PlaceName<'_>> = places.iter().map(|place| place.name()).collect();
        let named = &named;
        let emptied = |place: &Place| named.contains(&place.name());
        let of_an_owner = !places.is_empty() && places.iter().all(|place| place.ownership.is_some());
        if of_an_owner || !self.state.nothing_but(emptied) {
            self.drop_visibly(emptied, effects);
            return;
        }
        self.untranslatable = false;
        if keep_dictionary {
            self.state.drop_places(emptied);
            self.reports.forget_all();
            self.state.stop_waiting_at_all();
        } else {
            self.replace_state();
        }
        effects.transitions.push(Transition::Cleared);
    }
}

/// Whether a place is the engine's own on its device, which every clear reaches.
pub(super) fn is_device(place: &Place) -> bool {
    place.is_own_device()
}
