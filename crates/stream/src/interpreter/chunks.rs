//! The unit in which tiers behind vLLM's device give blocks back.
//!
//! vLLM offloads chunks of one or more blocks, finds them by the hash of their last block, and gives back
//! whole ones. A store that describes itself names every block of its chunk. A placeholder names the last
//! one: with a known size of chunks the blocks before it count with it, and go with it. Chunks of different
//! prompts may share blocks, so these are counted like copies.
//!
//! Where the size of chunks is not known, every placeholder's end in its prompt is a multiple of it. So is
//! their greatest common divisor: once that is one block, chunks are single blocks. Until then what counts is
//! in units of the divisor, which is too little and never too much.

use kvplane_core::{Tier, common_divisor, common_multiple};
use kvplane_wire::{Batch, Layout, Stored};

use super::{Interpreter, Reading};
use crate::ledger::Ledger;
use crate::options::ClearScope;
use crate::persist::persist;
use crate::state::{Parent, Place, PlaceId, SlotId};

/// What is known of the chunks of a life.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// Tokens of a chunk, as configured or as stores show it; a common multiple where they disagree.
    tokens: Option<u32>,
    /// What stores show contradicts itself, or what is configured.
    contradicted: bool,
    /// The greatest common divisor of placeholders' ends, in blocks; 0 before the first.
    ends: u32,
    /// A placeholder's end in its prompt is not known.
    endless: bool,
    /// A placeholder counts for one block, because more was learned of chunks only later.
    alone: bool,
}

persist!(Chunks { tokens, contradicted, ends, endless, alone });

impl Chunks {
    pub(super) fn new(configured: Option<u32>) -> Self {
        Self { tokens: configured.filter(|&tokens| tokens > 0), ..Self::default() }
    }

    /// A store shows the size of a chunk. False if that contradicts what was known.
    fn show(&mut self, tokens: u32) -> bool {
        let fits = self.tokens.is_none_or(|known| known == tokens);
        self.tokens = Some(self.tokens.map_or(tokens, |known| common_multiple(known, tokens)));
        fits
    }

    /// Blocks of a chunk, where that is known.
    fn blocks(&self, block_size: u32) -> Option<u32> {
        match self.tokens {
            _ if self.contradicted => None,
            Some(tokens) => (tokens > 0 && tokens.is_multiple_of(block_size)).then_some(tokens / block_size),
            None => (self.ends == 1).then_some(1),
        }
    }

    /// Blocks of which a prefix must be a multiple to count.
    fn unit(&self, block_size: u32) -> u32 {
        if let Some(blocks) = self.blocks(block_size) {
            return blocks;
        }
        if self.endless && self.ends == 0
            || self.tokens.is_some_and(|tokens| !tokens.is_multiple_of(block_size))
        {
            // Nothing is known to fit.
            return u32::MAX;
        }
        common_multiple(self.tokens.map_or(1, |tokens| tokens / block_size), self.ends.max(1))
    }

    /// Whether more may be there than counts.
    fn are_unclear(&self, block_size: u32) -> bool {
        self.alone || self.contradicted || (self.blocks(block_size).is_none() && self.unit(block_size) > 1)
    }
}

impl Interpreter {
    /// Whether a place is behind vLLM's offloading: a chunk is stored there, and goes, as a whole.
    fn is_in_chunks(&self, place: &Place) -> bool {
        let offloads = self.options.semantics.clears == ClearScope::Device;
        let medium = matches!(place.medium.as_deref(), Some("CPU" | "STORAGE" | "FS" | "OBJ"));
        offloads && medium && place.tier != Tier::Device && place.is_main()
    }

    /// What a store shows of the size of chunks. True for a placeholder, whose blocks are the last ones of
    /// chunks.
    pub(super) fn note_chunks(
        &mut self,
        ledger: &mut Ledger,
        batch: &Batch<'_, '_>,
        stored: &Stored<'_>,
        place: &Place,
        reading: &mut Reading,
    ) -> bool {
        if !self.is_in_chunks(place) {
            return false;
        }
        let is_placeholder = batch.layout(stored) == Layout::HashOnly;
        if is_placeholder || !stored.names_keys() {
            // Other connectors that write to the host name keys, and leave the last token out of what they
            // report.
            ledger.serve_whole_prompts(true);
        }
        let blocks = if is_placeholder { 1 } else { batch.stored_hashes(stored).len() as u32 };
        // Stores that name keys are announced block by block.
        let shown = blocks.saturating_mul(stored.block_size);
        if shown > 0 && !stored.names_keys() {
            // What stood for one block so far may have stood for more.
            self.epoch.chunks.alone |= self.epoch.chunks.tokens.is_none() && self.epoch.chunks.ends > 1;
            if !self.epoch.chunks.show(shown) {
                self.contradict_chunks(reading);
            }
        }
        is_placeholder
    }

    /// A block is the last one of a chunk that a place has got.
    pub(super) fn end_chunk(
        &mut self,
        ledger: &mut Ledger,
        slot: SlotId,
        place: PlaceId,
        reading: &mut Reading,
    ) {
        if ledger.state().copies(slot, place) == 1 {
            ledger.set_covers(slot, place, 1);
        } else if ledger.state().covers(slot, place) == 0 {
            // It was taken for a block in the middle of one.
            self.contradict_chunks(reading);
        }
    }

    /// Chunks are not what they were taken for: what was counted of them may be too much.
    fn contradict_chunks(&mut self, reading: &mut Reading) {
        self.epoch.chunks.contradicted = true;
        reading.forget_others = true;
    }

    /// A place has got this many chunks that end with a block.
    pub(super) fn count_chunks(
        &mut self,
        ledger: &mut Ledger,
        slot: SlotId,
        place: PlaceId,
        chunks: usize,
        reading: &mut Reading,
    ) {
        match ledger.state().covers(slot, place) {
            0 => {}
            1 => self.count_uncounted(ledger, slot, place, reading),
            covers => (0..chunks).for_each(|_| self.count_covered(ledger, slot, place, covers, reading)),
        }
    }

    /// It is known now what comes before a block: so it is of the chunks that end with it.
    pub(super) fn count_joined(&mut self, ledger: &mut Ledger, slot: SlotId, reading: &mut Reading) {
        let places = ledger.state().held_in(slot).filter(|&place| ledger.state().covers(slot, place) == 1);
        let places: Vec<PlaceId> = places.collect();
        for place in places {
            self.count_uncounted(ledger, slot, place, reading);
        }
    }

    /// So far, chunks that end with a block counted for that one alone.
    fn count_uncounted(&mut self, ledger: &mut Ledger, slot: SlotId, place: PlaceId, reading: &mut Reading) {
        let Some(block_size) = ledger.block_size() else { return };
        if ledger.state().chain(slot, block_size).is_none_or(|chain| !chain.attached) {
            return;
        }
        match self.epoch.chunks.blocks(block_size) {
            Some(1) => {}
            Some(blocks) => {
                let covers = u16::try_from(blocks).unwrap_or(u16::MAX);
                for _ in 0..ledger.state().copies(slot, place) {
                    self.count_covered(ledger, slot, place, covers, reading);
                    if self.epoch.chunks.contradicted {
                        break;
                    }
                }
            }
            None => {
                let before = ledger.state().ancestors(slot, block_size, reading.ancestor_steps as usize);
                reading.ancestor_steps -= before.len() as u32;
                let first = before.last().copied().unwrap_or(slot);
                let begins = ledger
                    .state()
                    .chain(first, block_size)
                    .is_some_and(|chain| chain.parent() == Parent::Root);
                if begins {
                    self.epoch.chunks.ends = common_divisor(self.epoch.chunks.ends, before.len() as u32 + 1);
                } else {
                    self.epoch.chunks.endless = true;
                }
            }
        }
    }

    /// One more chunk: the blocks before its last one are held with it.
    fn count_covered(
        &mut self,
        ledger: &mut Ledger,
        slot: SlotId,
        place: PlaceId,
        covers: u16,
        reading: &mut Reading,
    ) {
        let Some(block_size) = ledger.block_size() else { return };
        let wanted = usize::from(covers) - 1;
        let within = reading.chunk_steps.checked_sub(wanted as u32);
        reading.chunk_steps = within.unwrap_or(0);
        let before =
            if within.is_some() { ledger.state().ancestors(slot, block_size, wanted) } else { Vec::new() };
        if before.len() < wanted {
            // A chunk that ends so early is smaller; and no engine stores this many at once.
            self.contradict_chunks(reading);
            return;
        }
        ledger.set_covers(slot, place, covers);
        let place_ref = ledger.state().places.get(place).clone();
        let mut blocks = Vec::with_capacity(before.len());
        let mut attributes = None;
        for ancestor in before.into_iter().rev() {
            let copies = ledger.state().copies(ancestor, place).saturating_add(1);
            ledger.hold_known(ancestor, place, copies, &mut reading.draft);
            let Some(chain) = ledger.state().chain(ancestor, block_size) else { continue };
            attributes.get_or_insert_with(|| chain.attributes.clone());
            blocks.push(ledger.known_block(ancestor, chain, copies));
        }
        reading.draft.tell_proven(&place_ref, blocks, block_size, attributes);
    }

    /// Says in which units tiers behind the device give blocks back.
    pub(super) fn note_units(&mut self, ledger: &mut Ledger) {
        if ledger.state().nothing_but(|place| !self.is_in_chunks(place)) {
            self.epoch.chunks.alone = false;
        }
        let unit = ledger.block_size().map_or(1, |block_size| self.epoch.chunks.unit(block_size));
        ledger.set_units([1, unit, unit, unit]);
    }

    /// Whether more may be held in chunks than counts.
    pub(super) fn chunks_are_unclear(&self, ledger: &Ledger) -> bool {
        !ledger.state().nothing_but(|place| !self.is_in_chunks(place))
            && ledger.block_size().is_some_and(|block_size| self.epoch.chunks.are_unclear(block_size))
    }
}

/// The blocks that go with a chunk when its last one leaves a place.
pub(super) fn covered_with(ledger: &Ledger, slot: SlotId, place: PlaceId) -> Vec<SlotId> {
    let covers = ledger.state().covers(slot, place);
    match ledger.block_size() {
        Some(block_size) if covers > 1 => ledger.state().ancestors(slot, block_size, usize::from(covers) - 1),
        _ => Vec::new(),
    }
}
