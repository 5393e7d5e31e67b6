//! Telling a second copy from one that is announced again.
//!
//! A request that asks vLLM for a full report (`kv_cache_report_mode`) has the blocks that it reuses announced once more, and nothing
//! on the wire says so. Such a store begins a prompt, lists only what the device holds, and is gone on with in the same batch by what
//! the request computed. In a hybrid cache the other groups announce the same span, with blocks that they do not hold.
//!
//! A second copy of the beginning of a prompt looks the same but for what follows it: nobody goes on from it within its batch,
//! except where a prompt was computed again beside a longer one. That happens to prompts of a single block, and to longer ones of
//! which some group has lost what it needs to go on. And nobody goes on from a report either that ends with a block that is not full.
//! Such a store counts as a copy until reports are known to be asked for; then it is taken back.

use kvplane_core::{Marks, Reason, Tier};
use kvplane_wire::{Batch, Event, Hash, Layout, Stored};

use rustc_hash::FxHashMap;

use super::Journal;
use super::apply::Effects;
use crate::change::Change;
use crate::state::{Place, PlaceId};

/// Copies that may be none and are remembered one by one. Whoever computes so many prompts twice does it all the time.
const MAX_DOUBTFUL: usize = 16_384;

/// What a store says of blocks that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Telling {
    /// Another copy of each.
    Another,
    /// Another copy of each, unless reports are asked for.
    Copy,
    /// One copy of each, or none: it may be a report of blocks of which only some are known.
    Partly,
    /// Nothing new.
    Again,
    /// One or the other.
    Either,
}

impl Journal {
    /// What the `at`th event of a batch, a store, says of blocks that are held. `told` has what was found of the main group's stores: that
    /// is found before any other group's store of the same prompt changes what is held.
    pub(super) fn telling(
        &self,
        batch: &Batch<'_, '_>,
        at: usize,
        told: &mut Vec<(usize, Telling)>,
    ) -> Telling {
        if self.options.semantics.held_once {
            return Telling::Another;
        }
        let Some(begun) = Beginning::of(batch, at) else { return Telling::Another };
        let main =
            if self.is_of_main(&begun) { Some((at, begun)) } else { self.main_beside(batch, at, &begun) };
        let Some((main_at, main)) = main else { return Telling::Another };
        let known = told.iter().find(|(known, _)| *known == main_at).map(|&(_, telling)| telling);
        let telling = known.unwrap_or_else(|| self.main_telling(batch, main_at, &main));
        if known.is_none() {
            told.push((main_at, telling));
        }
        // Of other groups, whole stretches that the main one holds are reported.
        let reported = begun.is_dense && telling != Telling::Partly && self.are_held(&begun, Place::is_main);
        if main_at == at {
            return telling;
        }
        match telling {
            _ if !reported => Telling::Another,
            // A report tells windows whole, also where nothing is held; whoever computes a prompt keeps the end of it.
            Telling::Copy if self.are_partly_held(&begun) => Telling::Either,
            telling => telling,
        }
    }

    /// The main group's store of the same prompt. The groups of a request are told in their order.
    fn main_beside<'b, 'f>(
        &self,
        batch: &'b Batch<'_, 'f>,
        at: usize,
        begun: &Beginning<'_, '_>,
    ) -> Option<(usize, Beginning<'b, 'f>)> {
        let main = |other: usize| {
            let main = Beginning::of(batch, other)?;
            (self.is_of_main(&main) && main.is_of_prompt(begun)).then_some((other, main))
        };
        let before = (0..at).rev().find_map(main);
        let after = || (at + 1..batch.events.len()).find_map(main);
        match before {
            Some((_, main)) if main.stored.group < begun.stored.group => before,
            before => after().or(before),
        }
    }

    fn main_telling(&self, batch: &Batch<'_, '_>, at: usize, begun: &Beginning<'_, '_>) -> Telling {
        let Some(last) = begun.hashes.last() else { return Telling::Another };
        let goes_on = batch.events[at + 1..].iter().any(|event| match event {
            Event::Stored(next) => {
                let same_place = next.medium == begun.stored.medium
                    && next.locality == begun.stored.locality
                    && next.ownership == begun.stored.ownership
                    && next.group == begun.stored.group;
                same_place && next.parent.is_some_and(|parent| parent.bits == last.bits)
            }
            _ => false,
        });
        if !self.are_held(begun, Place::is_main) {
            let may_be_report = self.is_device_in_doubt() && (goes_on || self.reports.seen);
            return if may_be_report { Telling::Partly } else { Telling::Another };
        }
        match (self.could_be_told_again(begun.hashes), goes_on) {
            (Telling::Another, _) => Telling::Another,
            (telling, true) => telling,
            // Where full reports are asked for, they may also end with a block that is not full, and are not gone on with.
            (_, false) if self.reports.seen => Telling::Either,
            (_, false) => Telling::Copy,
        }
    }

    /// Whether a request that is served these blocks of a prompt could announce them, or one that is not could compute them. A request
    /// computes from the start only if it can go on from nowhere within its prompt, of which it never takes the last token.
    fn could_be_told_again(&self, hashes: &[Hash]) -> Telling {
        if !self.sides.are_known() {
            return Telling::Either;
        }
        let marks: Vec<Marks> =
            hashes.iter().map(|hash| self.marks_of(hash.bits, None).unwrap_or_default()).collect();
        let has = |at: u32, channel| marks[at as usize].has(Tier::Device.index(), channel);
        let served = |blocks: usize| self.resumption().resumable(blocks as u32, has);
        match (served(hashes.len().saturating_sub(1)), served(hashes.len())) {
            (1.., _) => Telling::Again,
            (0, 1..) => Telling::Either,
            (0, 0) => Telling::Another,
        }
    }

    /// Copies are counted that may be none.
    pub(super) fn doubt_copies(&mut self, place: PlaceId, hashes: &[Hash]) {
        for hash in hashes {
            if self.reports.doubtful.len() >= MAX_DOUBTFUL {
                self.reports.overflowed = true;
                return;
            }
            *self.reports.doubtful.entry((place, hash.bits)).or_default() += 1;
        }
    }

    /// Reports are asked for: what may have been one before was no copy. False if that is more than was remembered.
    pub(super) fn see_report(&mut self, effects: &mut Effects) -> bool {
        if std::mem::replace(&mut self.reports.seen, true) {
            return true;
        }
        let mut doubtful: Vec<_> = std::mem::take(&mut self.reports.doubtful).into_iter().collect();
        doubtful.sort_unstable();
        for ((place, hash), copies) in doubtful {
            let slot = self.state.find(hash).filter(|&slot| self.state.copies(slot, place) > 0);
            let Some(slot) = slot else { continue };
            let left = self.take_copies(slot, hash, place, copies, effects);
            let place = self.state.places.get(place).clone();
            effects.changes.push(Change::Removed { place, blocks: vec![left] });
            effects.doubt(Reason::Presence);
        }
        !std::mem::take(&mut self.reports.overflowed)
    }

    fn are_held(&self, begun: &Beginning<'_, '_>, here: impl Fn(&Place) -> bool) -> bool {
        let held = |slot| self.state.held_where(slot, |place| place.tier == Tier::Device && here(place));
        begun.hashes.iter().all(|hash| self.state.find(hash.bits).is_some_and(held))
    }

    /// Whether a group holds some of a store's blocks, and not all.
    fn are_partly_held(&self, begun: &Beginning<'_, '_>) -> bool {
        let here = |place: &Place| place.tier == Tier::Device && place.group == begun.stored.group;
        let slots = begun.hashes.iter().map(|hash| self.state.find(hash.bits));
        let held = slots.filter(|slot| slot.is_some_and(|slot| self.state.held_where(slot, here))).count();
        held > 0 && held < begun.hashes.len()
    }

    fn is_of_main(&self, begun: &Beginning<'_, '_>) -> bool {
        let place = self.state.places.find(super::stores::place_name(begun.stored));
        begun.is_dense && place.is_some_and(|place| self.state.places.get(place).is_main())
    }
}

/// What is known of full reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// There has been one in this life.
    pub(super) seen: bool,
    /// Copies that were counted and may be none, of each block in each place.
    doubtful: FxHashMap<(PlaceId, u64), u32>,
    /// There were more than are remembered.
    overflowed: bool,
}

impl Reports {
    /// Whether every copy that was counted is one.
    pub(super) fn are_out_of_question(&self) -> bool {
        !self.seen && self.doubtful.is_empty() && !self.overflowed
    }

    /// A place holds no copy of a block any more.
    pub(super) fn forget(&mut self, place: PlaceId, hash: u64) {
        if !self.doubtful.is_empty() {
            self.doubtful.remove(&(place, hash));
        }
    }

    /// Nothing is held any more.
    pub(super) fn forget_all(&mut self) {
        self.doubtful.clear();
        self.overflowed = false;
    }
}

/// A store that begins a prompt on the device.
#[derive(Clone, Copy)]
struct Beginning<'b, 'f> {
    stored: &'b Stored<'f>,
    hashes: &'b [Hash],
    tokens: &'b [u32],
    is_dense: bool,
}

impl<'b, 'f> Beginning<'b, 'f> {
    fn of(batch: &'b Batch<'_, 'f>, at: usize) -> Option<Self> {
        let Event::Stored(stored) = &batch.events[at] else { return None };
        let layout = batch.layout(stored);
        let begins = stored.parent.is_none() && layout != Layout::HashOnly;
        let on_device = Tier::of(stored.medium, stored.locality) == Tier::Device;
        let (hashes, tokens) = (batch.stored_hashes(stored), batch.tokens(stored).ids());
        let begun = Self { stored, hashes, tokens, is_dense: layout == Layout::Dense };
        (begins && on_device).then_some(begun)
    }

    /// Whether another store may be of the same prompt: groups with larger blocks store less of its end.
    fn is_of_prompt(&self, other: &Self) -> bool {
        let common = self.tokens.len().min(other.tokens.len());
        self.tokens[..common] == other.tokens[..common]
    }
}
