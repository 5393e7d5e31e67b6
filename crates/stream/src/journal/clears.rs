//! Applying a clear, as far as the engine means it.

use std::sync::Arc;

use kvplane_core::Tier;

use super::apply::Effects;
use super::{ClearScope, Journal};
use crate::change::{Change, Transition};
use crate::state::Place;

impl Journal {
    /// A clear empties the device for sure. What other tiers keep vLLM does not say, so they stay as they are there.
    pub(super) fn apply_cleared(
        &mut self,
        ownership: Option<&str>,
        engine_sequence: u64,
        effects: &mut Effects,
    ) {
        self.counters.clears += 1;
        let scope = self.options.semantics.clears;
        let cleared = |place: &Place| match ownership {
            None if scope == ClearScope::Everything => true,
            None => place.tier == Tier::Device && place.ownership.is_none(),
            Some(owner) => place.ownership.as_deref() == Some(owner),
        };
        let places: Vec<Arc<Place>> =
            self.state.places.iter().filter(|(_, place)| cleared(place)).map(|(_, p)| p.clone()).collect();
        let mut elsewhere = self.state.held_elsewhere();
        elsewhere.retain(|(place, _)| cleared(place));
        let everything = ownership.is_none() && self.state.nothing_but(cleared);
        if everything {
            self.untranslatable = false;
            self.replace_state();
            effects.transitions.push(Transition::Cleared);
        } else {
            self.drop_visibly(cleared, effects);
        }
        // A clear of an owner that holds nothing is no event.
        let nothing = ownership.is_some() && places.is_empty();
        if !nothing {
            effects.changes.push(Change::Cleared { places, elsewhere });
        }
        if everything {
            // The whole state is known again: it is empty. Unless another tier turns up later, of which we cannot know
            // what it held before.
            let restores = self.trust.level() != kvplane_core::Trust::Exact;
            self.other_tiers_unknown = restores && scope == ClearScope::Device;
            if restores {
                self.restore_trust();
                self.trust_changed = true;
                self.known_from = Some(engine_sequence);
            }
        }
    }
}
