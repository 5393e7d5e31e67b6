//! Telling a second copy from one that is announced again.
//!
//! A request that asks vLLM for a full report (`kv_cache_report_mode`) has the blocks that it reuses announced once more, and nothing
//! on the wire says so. Such a store begins a prompt, lists only what the device holds, and is gone on with in the same batch by what
//! the request computed. In a hybrid cache the other groups announce the same span, with blocks that they do not hold.
//!
//! A second copy of the beginning of a prompt looks the same but for what follows it: nobody goes on from it within its batch,
//! except where a prompt of a single block was computed again beside a longer one.

use kvplane_wire::{Batch, Event, Hash, Layout, Stored};

use super::Journal;
use crate::state::Place;

/// What a store says of blocks that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Telling {
    /// Another copy of each.
    Another,
    /// Nothing new.
    Again,
    /// One or the other.
    Either,
}

impl Journal {
    /// What the `at`th event of a batch, a store, says of blocks that are held. `told` has what was found of the stores before it.
    pub(super) fn telling(&self, batch: &Batch<'_, '_>, at: usize, told: &[(usize, Telling)]) -> Telling {
        if self.options.semantics.held_once {
            return Telling::Another;
        }
        let Some(begun) = Beginning::of(batch, at).filter(|begun| self.are_held(begun.hashes)) else {
            return Telling::Another;
        };
        if self.is_of_main(begun.stored) {
            return self.main_telling(batch, at, &begun);
        }
        // Whatever the main group says of the same span.
        let main = (0..batch.events.len()).find_map(|other| {
            let main = Beginning::of(batch, other).filter(|main| self.is_of_main(main.stored))?;
            main.hashes.iter().any(|hash| hash.bits == begun.last.bits).then_some((other, main))
        });
        match main {
            Some((other, main)) if other > at => self.main_telling(batch, other, &main),
            Some((other, _)) => told
                .iter()
                .find(|(index, _)| *index == other)
                .map_or(Telling::Another, |&(_, telling)| telling),
            None => Telling::Another,
        }
    }

    fn main_telling(&self, batch: &Batch<'_, '_>, at: usize, begun: &Beginning<'_, '_, '_>) -> Telling {
        let goes_on = batch.events[at + 1..].iter().any(|event| match event {
            Event::Stored(next) => {
                next.parent.is_some_and(|parent| parent.bits == begun.last.bits)
                    && (next.medium, next.locality, next.ownership, next.group)
                        == (
                            begun.stored.medium,
                            begun.stored.locality,
                            begun.stored.ownership,
                            begun.stored.group,
                        )
            }
            _ => false,
        });
        match (goes_on, begun.hashes.len()) {
            (true, 2..) => Telling::Again,
            (true, _) => Telling::Either,
            // Where full reports are asked for, they may also end with a block that is not full, and are not gone on with.
            (false, _) if self.reports_in_full => Telling::Either,
            (false, _) => Telling::Another,
        }
    }

    fn are_held(&self, hashes: &[Hash]) -> bool {
        hashes.iter().all(|hash| {
            self.state
                .find(hash.bits)
                .is_some_and(|slot| self.state.held_where(slot, Place::proves_ancestors))
        })
    }

    fn is_of_main(&self, stored: &Stored<'_>) -> bool {
        let place = self.state.places.find(super::stores::place_name(stored));
        place.is_some_and(|place| self.state.places.get(place).proves_ancestors())
    }
}

/// A store that begins a prompt on the device.
struct Beginning<'b, 'd, 'f> {
    stored: &'b Stored<'f>,
    hashes: &'d [Hash],
    last: Hash,
}

impl<'b, 'd, 'f> Beginning<'b, 'd, 'f> {
    fn of(batch: &'b Batch<'d, 'f>, at: usize) -> Option<Self> {
        let Event::Stored(stored) = &batch.events[at] else { return None };
        let begins = stored.parent.is_none() && batch.layout(stored) == Layout::Dense;
        let on_device = kvplane_core::Tier::of(stored.medium, stored.locality) == kvplane_core::Tier::Device;
        let hashes = batch.stored_hashes(stored);
        let last = *hashes.last()?;
        (begins && on_device).then_some(Self { stored, hashes, last })
    }
}
