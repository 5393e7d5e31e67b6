//! Telling a second copy from one that is announced again.
//!
//! A request that asks vLLM for a full report (`kv_cache_report_mode`) has the blocks that it reuses
//! announced once more, and nothing on the wire says so. Such a store begins a prompt, lists only what the
//! device holds, and is gone on with in the same batch by what the request computed. In a hybrid cache the
//! other groups announce the same span, with blocks that they do not hold.
//!
//! A second copy of the beginning of a prompt looks the same but for what follows it: nobody goes on from it
//! within its batch, except where a prompt was computed again beside a longer one. That happens to prompts of
//! a single block, and to longer ones of which some group has lost what it needs to go on. And nobody goes on
//! from a report either that ends with a block that is not full. Such a store counts as a copy until reports
//! are known to be asked for; then it is taken back.

use kvplane_core::{Marks, Reason, Tier};
use kvplane_wire::{Batch, Event, Hash, Layout, Stored};
use rustc_hash::FxHashMap;

use super::{Interpreter, Reading};
use crate::ledger::Ledger;
use crate::persist::persist;
use crate::seeded::{SeededMap, SeededSet};
use crate::state::{Place, PlaceId, PlaceName};

/// Blocks whose number of copies is in doubt and that are remembered one by one. An engine that computes this
/// many prompts twice does it all the time.
const MAX_DOUBTFUL: usize = 16_384;

/// How many beginnings of prompts lie at most between the groups' stores of one: engines tell all groups of a
/// request together.
const REACH: usize = 64;

/// What a store says of blocks that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreMeaning {
    /// Another copy of each.
    NewCopy,
    /// Another copy of each, unless reports are asked for.
    ProbableCopy,
    /// One copy of each, or none: it may be a report of blocks of which only some are known.
    Partial,
    /// Nothing new.
    Reannouncement,
    /// One or the other.
    Ambiguous,
}

impl Interpreter {
    /// What the `at`th event of a batch, a store, says of blocks that are held. What is found of the main
    /// group's stores is kept: that is found before any other group's store of the same prompt changes what
    /// is held.
    pub(super) fn meaning_of(
        &self,
        ledger: &Ledger,
        batch: &Batch<'_, '_>,
        at: usize,
        neighbours: &mut Neighbours,
    ) -> StoreMeaning {
        if self.options.semantics.held_once {
            return StoreMeaning::NewCopy;
        }
        let Some(begun) = Beginning::of(batch, at) else { return StoreMeaning::NewCopy };
        let main = if begun.is_of_main(ledger) {
            Beside::Main(at, begun)
        } else {
            main_beside(ledger, batch, at, &begun, neighbours)
        };
        let (main_at, main) = match main {
            Beside::Main(main_at, main) => (main_at, main),
            Beside::None => return StoreMeaning::NewCopy,
            Beside::OutOfReach => return StoreMeaning::Ambiguous,
        };
        let known = neighbours.meanings.get(&main_at).copied();
        let meaning = known.unwrap_or_else(|| self.main_meaning(ledger, main_at, &main, neighbours));
        if known.is_none() {
            neighbours.meanings.insert(main_at, meaning);
        }
        // Of other groups, whole stretches that the main one holds are reported.
        let reported = begun.is_dense && meaning != StoreMeaning::Partial && begun.is_held(ledger);
        if main_at == at {
            return meaning;
        }
        match meaning {
            _ if !reported => StoreMeaning::NewCopy,
            // A report announces windows whole, also where nothing is held; an engine that computes a prompt
            // keeps the end of it.
            StoreMeaning::ProbableCopy if begun.is_partly_held(ledger) => StoreMeaning::Ambiguous,
            meaning => meaning,
        }
    }

    fn main_meaning(
        &self,
        ledger: &Ledger,
        at: usize,
        begun: &Beginning<'_, '_>,
        neighbours: &Neighbours,
    ) -> StoreMeaning {
        let Some(last) = begun.hashes.last() else { return StoreMeaning::NewCopy };
        let goes_on = neighbours.goes_on(at, last.bits);
        if !begun.is_held(ledger) {
            let may_be_report = ledger.may_lack_device_blocks() && (goes_on || self.epoch.reports.seen);
            return if may_be_report { StoreMeaning::Partial } else { StoreMeaning::NewCopy };
        }
        match (could_be_reannounced(ledger, begun.hashes), goes_on) {
            (StoreMeaning::NewCopy, _) => StoreMeaning::NewCopy,
            (meaning, true) => meaning,
            // Where full reports are asked for, they may also end with a block that is not full, and are not
            // gone on with.
            (_, false) if self.epoch.reports.seen => StoreMeaning::Ambiguous,
            (_, false) => StoreMeaning::ProbableCopy,
        }
    }

    /// How many copies of a block there may be besides those that are counted.
    pub fn possible_copies(&self, ledger: &Ledger, hash: u64) -> u32 {
        let places = ledger.state().places.iter().map(|(place, _)| place);
        places.filter_map(|place| self.epoch.reports.possible.get(&(place, hash))).sum()
    }

    /// Copies are counted that may be none.
    pub(super) fn doubt_copies(&mut self, place: PlaceId, hashes: &[Hash]) {
        for hash in hashes {
            if self.epoch.reports.doubtful.len() >= MAX_DOUBTFUL {
                self.epoch.reports.overflowed = true;
                return;
            }
            *self.epoch.reports.doubtful.entry((place, hash.bits)).or_default() += 1;
        }
    }

    /// Blocks may have another copy, which is not counted. They are held as long as one that is counted is
    /// left. Only from then on it is not known whether they are.
    pub(super) fn suppose_copies(
        &mut self,
        ledger: &Ledger,
        place: PlaceId,
        hashes: &[Hash],
        reading: &mut Reading,
    ) {
        for hash in hashes {
            let slot = ledger.state().find(hash.bits);
            let is_held = slot.is_some_and(|slot| ledger.state().copies(slot, place) > 0);
            if !self.epoch.reports.suppose(place, hash.bits, 1, is_held) {
                reading.doubt(Reason::Presence);
                return;
            }
        }
    }

    /// The same, only for those blocks that are held.
    pub(super) fn suppose_held_copies(
        &mut self,
        ledger: &Ledger,
        place: PlaceId,
        hashes: &[Hash],
        reading: &mut Reading,
    ) {
        let is_held = |hash: &Hash| {
            let slot = ledger.state().find(hash.bits);
            slot.is_some_and(|slot| ledger.state().copies(slot, place) > 0)
        };
        for hash in hashes.iter().filter(|hash| is_held(hash)) {
            self.suppose_copies(ledger, place, std::slice::from_ref(hash), reading);
        }
    }

    /// Reports are asked for: what may have been one before is not counted as a copy. False if that is more
    /// than was remembered.
    pub(super) fn see_report(&mut self, ledger: &mut Ledger, reading: &mut Reading) -> bool {
        if std::mem::replace(&mut self.epoch.reports.seen, true) {
            return true;
        }
        let mut doubtful: Vec<_> = std::mem::take(&mut self.epoch.reports.doubtful).into_iter().collect();
        doubtful.sort_unstable();
        for ((place, hash), copies) in doubtful {
            let slot = ledger.state().find(hash).filter(|&slot| ledger.state().copies(slot, place) > 0);
            let Some(slot) = slot else { continue };
            let copies = copies.min(ledger.state().copies(slot, place));
            if !self.epoch.reports.suppose(place, hash, copies, true) {
                reading.doubt(Reason::Presence);
            }
            let left = self.take_copies(ledger, slot, hash, place, copies, reading);
            let place = ledger.state().places.get(place).clone();
            reading.draft.tell_removed(place, vec![left]);
        }
        !std::mem::take(&mut self.epoch.reports.overflowed)
    }
}

/// The main group's store of the same prompt. The groups of a request are announced in their order.
fn main_beside<'b, 'f>(
    ledger: &Ledger,
    batch: &'b Batch<'_, 'f>,
    at: usize,
    begun: &Beginning<'_, '_>,
    neighbours: &Neighbours,
) -> Beside<'b, 'f> {
    let main = |&other: &u32| {
        let main = Beginning::of(batch, other as usize)?;
        (main.is_of_main(ledger) && main.is_of_prompt(begun)).then_some((other as usize, main))
    };
    let begins = &neighbours.begins;
    let earlier = &begins[..begins.partition_point(|&other| (other as usize) < at)];
    let later = &begins[begins.partition_point(|&other| other as usize <= at)..];
    let before = earlier.iter().rev().take(REACH).find_map(main);
    let found = match before {
        Some((_, main)) if main.stored.group < begun.stored.group => before,
        before => later.iter().take(REACH).find_map(main).or(before),
    };
    match found {
        Some((at, main)) => Beside::Main(at, main),
        None if earlier.len() > REACH || later.len() > REACH => Beside::OutOfReach,
        None => Beside::None,
    }
}

/// Whether a request that is served these blocks of a prompt could announce them, or one that is not could
/// compute them. A request computes from the start only if it can go on from nowhere within its prompt, of
/// which it never takes the last token.
fn could_be_reannounced(ledger: &Ledger, hashes: &[Hash]) -> StoreMeaning {
    if !ledger.sides.are_known() {
        return StoreMeaning::Ambiguous;
    }
    let marks: Vec<Marks> =
        hashes.iter().map(|hash| ledger.marks_of(hash.bits, None).unwrap_or_default()).collect();
    let has = |at: u32, channel| marks[at as usize].has(Tier::Device.index(), channel);
    let served = |blocks: usize| ledger.resumption().resumable_at_once(blocks as u32, has);
    match (served(hashes.len().saturating_sub(1)), served(hashes.len())) {
        (1.., _) => StoreMeaning::Reannouncement,
        (0, 1..) => StoreMeaning::Ambiguous,
        (0, 0) => StoreMeaning::NewCopy,
    }
}

/// What is known of full reports, and of blocks whose copies are in doubt because of them.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// There has been one in this life.
    pub(super) seen: bool,
    /// Copies that were counted and may be none, of each block in each place.
    doubtful: SeededMap<(PlaceId, u64), u32>,
    /// There were more than are remembered.
    overflowed: bool,
    /// Copies that were not counted and may be there: a place has as many of a block as are counted, and up
    /// to this many more.
    possible: SeededMap<(PlaceId, u64), u32>,
    /// Of those, the blocks of which no copy is counted: whether they are held is not known.
    unsure: SeededSet<(PlaceId, u64)>,
}

persist!(Reports { seen, doubtful, overflowed, possible, unsure });

impl Reports {
    /// Whether every copy that was counted is one.
    pub(super) fn are_out_of_question(&self) -> bool {
        !self.seen && self.doubtful.is_empty() && !self.overflowed
    }

    /// Whether blocks may be held that are not said to be.
    pub(super) fn has_unsure(&self) -> bool {
        !self.unsure.is_empty()
    }

    /// There may be this many copies more than are counted. False if that cannot be remembered.
    fn suppose(&mut self, place: PlaceId, hash: u64, copies: u32, is_held: bool) -> bool {
        let block = (place, hash);
        if self.possible.len() >= MAX_DOUBTFUL && !self.possible.contains_key(&block) {
            return false;
        }
        let possible = self.possible.entry(block).or_default();
        *possible = possible.saturating_add(copies);
        if !is_held {
            self.unsure.insert(block);
        }
        true
    }

    /// A place has a copy of a block for certain.
    pub(super) fn come(&mut self, place: PlaceId, hash: u64) {
        if !self.unsure.is_empty() {
            self.unsure.remove(&(place, hash));
        }
    }

    /// A block of which no copy is counted is held all the same: one of those that were possible is there,
    /// and counted from now on.
    pub(super) fn prove(&mut self, place: PlaceId, hash: u64) {
        if !self.possible.is_empty() {
            self.resolve(place, hash);
            self.unsure.remove(&(place, hash));
        }
    }

    /// A copy was there that had not been counted. False if none was possible.
    pub(super) fn resolve(&mut self, place: PlaceId, hash: u64) -> bool {
        let block = (place, hash);
        let Some(possible) = self.possible.get_mut(&block) else { return false };
        *possible -= 1;
        if *possible == 0 {
            self.possible.remove(&block);
            self.unsure.remove(&block);
        }
        true
    }

    /// A place has no copy of a block left that is counted.
    pub(super) fn leave(&mut self, place: PlaceId, hash: u64) {
        let block = (place, hash);
        if !self.doubtful.is_empty() {
            self.doubtful.remove(&block);
        }
        if !self.possible.is_empty() && self.possible.contains_key(&block) {
            self.unsure.insert(block);
        }
    }

    /// Every copy is counted.
    pub(super) fn rule_out_possible(&mut self) {
        self.possible.clear();
        self.unsure.clear();
    }

    /// Nothing is held any more.
    pub(super) fn forget_all(&mut self) {
        self.doubtful.clear();
        self.possible.clear();
        self.unsure.clear();
        self.overflowed = false;
    }
}

/// Where the main group's store of a prompt is.
enum Beside<'b, 'f> {
    Main(usize, Beginning<'b, 'f>),
    None,
    /// Perhaps somewhere in a batch that has more beginnings than any engine announces at once.
    OutOfReach,
}

/// What is found once for a batch, in one pass: which of its stores go together.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// The stores that begin a prompt on the device.
    begins: Vec<u32>,
    /// By the number of the event: which place it names, as a number within the batch.
    places: Vec<u32>,
    /// By a block and a place: the last store there that builds on it.
    continued: SeededMap<(u64, u32), u32>,
    /// What stores of the main group that begin a prompt say of it, by their number in the batch.
    meanings: FxHashMap<usize, StoreMeaning>,
}

impl Neighbours {
    pub(super) fn of(batch: &Batch<'_, '_>) -> Self {
        let begins = (0..batch.events.len()).filter(|&at| Beginning::of(batch, at).is_some());
        let mut found = Self { begins: begins.map(|at| at as u32).collect(), ..Self::default() };
        if found.begins.is_empty() {
            return found;
        }
        let mut numbers: SeededMap<PlaceName<'_>, u32> = SeededMap::default();
        for (at, event) in batch.events.iter().enumerate() {
            let Event::Stored(stored) = event else {
                found.places.push(u32::MAX);
                continue;
            };
            let next = numbers.len() as u32;
            let place = *numbers.entry(super::stores::place_name(stored)).or_insert(next);
            found.places.push(place);
            if let Some(parent) = stored.parent {
                found.continued.insert((parent.bits, place), at as u32);
            }
        }
        found
    }

    /// Blocks are removed. What was found of stores that are still to come depends on what is held, and
    /// groups of a request store without a removal in between.
    pub(super) fn forget_meanings(&mut self) {
        self.meanings.clear();
    }

    /// Whether a later store in the place of the `at`th event builds on a block.
    fn goes_on(&self, at: usize, hash: u64) -> bool {
        let place = self.places.get(at).copied().unwrap_or(u32::MAX);
        self.continued.get(&(hash, place)).is_some_and(|&last| last as usize > at)
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

    /// Whether it is a store of the main group that says what its blocks are.
    fn is_of_main(&self, ledger: &Ledger) -> bool {
        let place = ledger.state().places.find(super::stores::place_name(self.stored));
        self.is_dense && place.is_some_and(|place| ledger.state().places.get(place).is_main())
    }

    /// Whether the device holds all of its blocks in the main group.
    fn is_held(&self, ledger: &Ledger) -> bool {
        let here = |place: &Place| place.tier == Tier::Device && place.is_main();
        let held = |slot| ledger.state().held_where(slot, here);
        self.hashes.iter().all(|hash| ledger.state().find(hash.bits).is_some_and(held))
    }

    /// Whether its group holds some of its blocks, and not all.
    fn is_partly_held(&self, ledger: &Ledger) -> bool {
        let here = |place: &Place| place.tier == Tier::Device && place.group == self.stored.group;
        let slots = self.hashes.iter().map(|hash| ledger.state().find(hash.bits));
        let held =
            slots.filter(|slot| slot.is_some_and(|slot| ledger.state().held_where(slot, here))).count();
        held > 0 && held < self.hashes.len()
    }

    /// Whether another store may be of the same prompt: groups with larger blocks store less of its end.
    fn is_of_prompt(&self, other: &Self) -> bool {
        let common = self.tokens.len().min(other.tokens.len());
        self.tokens[..common] == other.tokens[..common]
    }
}
