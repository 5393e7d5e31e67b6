//! A state that was loaded: what follows from the rest is worked out again, and what does not fit is found.

use std::sync::Arc;

use kvplane_core::StateDigest;

use super::memory::{allocation, slot_cost};
use super::{Attributes, Limits, SlotId, State};
use crate::persist::Damaged;

impl State {
    /// Makes a loaded state one that can be used. Fails where its parts contradict each other.
    pub(crate) fn revive(&mut self, limits: Limits) -> Result<(), Damaged> {
        self.limits = limits;
        self.places.revive()?;
        let slots = self.slots.len();
        if SlotId::try_from(slots).is_err() {
            return Err(Damaged("too many blocks"));
        }
        let plain = Arc::new(Attributes::default());
        let (mut used, mut own) = (0, 0);
        let mut digests = vec![(StateDigest::default(), 0_u64); self.places.len()];
        self.index.reserve(slots - self.free.len().min(slots), &self.slots);
        for at in 0..slots {
            let slot = &mut self.slots[at];
            if !slot.in_use() {
                continue;
            }
            used += 1;
            for chain in &mut slot.chains {
                if chain.attached && !limits.keep_tokens {
                    chain.drop_tokens();
                }
                if *chain.attributes == *plain {
                    chain.attributes = plain.clone();
                } else {
                    self.attributes.keep(&mut chain.attributes);
                }
            }
            own += slot_cost(slot);
            for holding in &slot.holdings {
                let place = self.places.numbered(holding.place);
                let (number, seed) = place.ok_or(Damaged("a block is in no place"))?;
                if self.places.is_current(holding) {
                    digests[number].0.change(seed, slot.hash, 0, holding.copies);
                    digests[number].1 += u64::from(holding.copies);
                }
            }
            let hash = slot.hash;
            if self.index.find(hash, &self.slots).is_some() {
                return Err(Damaged("two blocks have one hash"));
            }
            self.index.insert(at as SlotId, &self.slots);
        }
        own += self.wide.values().map(|digest| allocation(16 + digest.len())).sum::<usize>();
        self.own = own;
        let is_free = |&at: &SlotId| self.slots.get(at as usize).is_some_and(|slot| !slot.in_use());
        let ids = self.waiting.slots().chain(self.elsewhere.iter().copied());
        if !self.places.agree(&digests) {
            return Err(Damaged("what places hold is not what blocks say"));
        }
        if self.free.len() + used != slots || !self.free.iter().all(is_free) {
            return Err(Damaged("the free numbers are others"));
        }
        if ids.into_iter().any(|id| id as usize >= slots) || self.sweep_at > slots {
            return Err(Damaged("a block has an unknown number"));
        }
        Ok(())
    }
}
