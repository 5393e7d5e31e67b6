//! Applying a store: what its blocks are, and where they lie from now on.

use std::sync::Arc;

use kvplane_core::{Locality, Names, Reason, Tier};
use kvplane_wire::{Batch, Event, Hash, Layout, Stored, Tokens};

use super::identity::Said;
use super::page_hash::hidden_namespace;
use super::reannounced::StoreMeaning;
use super::{Interpreter, Reading};
use crate::change::{Change, StoreCause, StoredBlock, StoredChange, StoredParts};
use crate::clock::Now;
use crate::ledger::{GroupSpec, Ledger, is_full};
use crate::options::Duplicates;
use crate::state::{
    Attributes, Chain, ExtraKeys, Parent, Place, PlaceId, PlaceName, Refusal, SlotId, own_keys,
};

/// One block of a store.
#[derive(Debug, Clone, Copy)]
struct BlockAt {
    /// Which one.
    at: usize,
    hash: Hash,
    /// What comes before it; `None` when the store does not say.
    parent: Option<Parent>,
    place: PlaceId,
    /// The engine's hash shows a namespace that the store does not name.
    hidden: bool,
}

/// Where a store's blocks lie.
pub(super) fn place_name<'f>(stored: &Stored<'f>) -> PlaceName<'f> {
    PlaceName {
        medium: stored.medium,
        locality: stored.locality,
        ownership: stored.ownership,
        group: stored.group,
    }
}

impl Interpreter {
    pub(super) fn apply_stored(
        &mut self,
        ledger: &mut Ledger,
        batch: &Batch<'_, '_>,
        (at, stored): (usize, &Stored<'_>),
        reading: &mut Reading,
        now: Now,
    ) {
        let hashes = batch.stored_hashes(stored);
        let layout = batch.layout(stored);
        ledger.counters.blocks_stored += hashes.len() as u64;
        match layout {
            Layout::Dense => {}
            Layout::Sparse => ledger.counters.sparse_stores += 1,
            Layout::HashOnly => ledger.counters.placeholder_stores += 1,
        }
        let layout =
            if layout == Layout::Dense && self.withholds_keys(stored) { Layout::HashOnly } else { layout };
        let name = place_name(stored);
        // Both may begin the state anew: before anything of it is looked up.
        self.learn_window(ledger, stored.sliding_window, stored.group, reading, now);
        let hidden =
            layout == Layout::Dense && self.has_hidden_namespace(ledger, batch, stored, reading, now);
        let spec_kind = stored.spec_kind.or_else(|| self.kind_of_group(stored.group));
        let group = GroupSpec {
            group: stored.group,
            spec_kind,
            sliding_window: stored.sliding_window,
            block_size: (layout != Layout::HashOnly).then_some(stored.block_size),
            is_full: is_full(layout, hashes.len()),
            on_device: Tier::of(stored.medium, stored.locality) == Tier::Device,
        };
        ledger.learn_group(group, &mut reading.draft);
        ledger.note_layout(stored.group, layout, hashes.len());
        let (spec_kind, window) =
            ledger.sides.groups.settled(stored.group, (spec_kind, stored.sliding_window));
        let Some(place) = ledger.place(name, spec_kind, window) else {
            refuse(ledger, Refusal::Budget, hashes.len(), now);
            return;
        };
        let place_ref = ledger.state().places.get(place).clone();
        self.note_place(ledger, &place_ref, now);
        if self.is_reported_again(ledger, batch, at, place, reading) {
            return;
        }
        let attributes = attributes(ledger, batch, stored);
        let mut change = StoredChange {
            cause: StoreCause::Announced,
            place: place_ref.clone(),
            blocks: Vec::with_capacity(if self.options.transitions_only { 0 } else { hashes.len() }),
            layout,
            block_size: stored.block_size,
            parent: stored.parent.map(|parent| parent.bits),
            span: (layout == Layout::Sparse).then(|| Arc::from(batch.tokens(stored).ids())),
            attributes,
            session_id: stored.session_id.map(Box::from),
        };
        if layout == Layout::Dense
            && place_ref.proves_ancestors()
            && let Some(parent) = stored.parent
        {
            let size = size_of_parent(ledger, parent.bits, stored.block_size);
            self.prove_ancestors(ledger, parent.bits, place, &place_ref, size, reading);
        }
        if layout == Layout::Dense && place_ref.is_main() {
            self.check_size(ledger, stored, hashes.len(), reading, now);
        }
        let ends_chunks = self.note_chunks(ledger, batch, stored, &place_ref, reading);
        let chained = layout == Layout::Dense;
        let mut ended: Vec<SlotId> = Vec::new();
        for (at, &hash) in hashes.iter().enumerate() {
            let parent = match (layout, at) {
                (Layout::Dense, 0) => {
                    Some(stored.parent.map_or(Parent::Root, |parent| Parent::Block(parent.bits)))
                }
                (Layout::Dense, _) => Some(Parent::Block(hashes[at - 1].bits)),
                _ => None,
            };
            let hidden = hidden && at == 0;
            let block = BlockAt { at, hash, parent, place, hidden };
            match self.store_block(ledger, (batch, stored), block, &change.attributes, reading) {
                Ok((slot, block)) => {
                    change.blocks.extend(block);
                    if ends_chunks {
                        self.end_chunk(ledger, slot, place, reading);
                        ended.push(slot);
                    }
                }
                Err(refusal) if !chained => refuse(ledger, refusal, 1, now),
                Err(refusal) => {
                    // What follows builds on this block; recording it would only make it wait.
                    refuse(ledger, refusal, hashes.len() - at, now);
                    break;
                }
            }
        }
        change.attributes = reading.inherited.take().unwrap_or(change.attributes);
        reading.draft.changes.push(Change::Stored(change));
        reading.uncounted = false;
        ended.sort_unstable();
        for same in ended.chunk_by(|a, b| a == b) {
            self.count_chunks(ledger, same[0], place, same.len(), reading);
        }
        for slot in std::mem::take(&mut reading.draft.joined) {
            self.count_joined(ledger, slot, reading);
        }
    }

    /// Whether blocks may be made of more than their store says. vLLM's stores of colder tiers have tokens
    /// and no keys, whatever the request had: then only the hash tells what a block is, by the device's store
    /// of it. A tier that never announces a removal is never believed wholly, and is taken at its word.
    fn withholds_keys(&self, stored: &Stored<'_>) -> bool {
        let cold = Tier::of(stored.medium, stored.locality) != Tier::Device;
        let names_keys = self.options.semantics.cold_stores_name_keys || stored.names_keys();
        cold && !names_keys && Tier::tells_removals(stored.medium)
    }

    /// Whether a store announces what is held already, so that nothing changes.
    fn is_reported_again(
        &mut self,
        ledger: &mut Ledger,
        batch: &Batch<'_, '_>,
        at: usize,
        place: PlaceId,
        reading: &mut Reading,
    ) -> bool {
        let meaning = self.meaning_of(ledger, batch, at, &mut reading.neighbours);
        let Event::Stored(stored) = &batch.events[at] else { return false };
        let hashes = batch.stored_hashes(stored);
        match meaning {
            StoreMeaning::NewCopy => return false,
            StoreMeaning::ProbableCopy => self.doubt_copies(place, hashes),
            StoreMeaning::Partial => {
                reading.uncounted = true;
                self.suppose_held_copies(ledger, place, hashes, reading);
            }
            StoreMeaning::Reannouncement => {
                reading.over_counted |= !self.see_report(ledger, reading);
                if self.epoch.tiers.seen {
                    // What was fetched from behind the device beside another request that did looks the same.
                    self.suppose_copies(ledger, place, hashes, reading);
                }
            }
            StoreMeaning::Ambiguous if ledger.state().places.get(place).proves_ancestors() => {
                self.suppose_copies(ledger, place, hashes, reading);
            }
            StoreMeaning::Ambiguous => reading.doubt(Reason::Reannounced),
        }
        if matches!(meaning, StoreMeaning::ProbableCopy | StoreMeaning::Partial) {
            return false;
        }
        ledger.counters.reannounced_blocks += hashes.len() as u64;
        true
    }

    fn store_block(
        &mut self,
        ledger: &mut Ledger,
        (batch, stored): (&Batch<'_, '_>, &Stored<'_>),
        block: BlockAt,
        attributes: &Arc<Attributes>,
        reading: &mut Reading,
    ) -> Result<(SlotId, Option<StoredBlock>), Refusal> {
        let BlockAt { at, hash, parent, place, .. } = block;
        let slot = ledger.slot(hash.bits)?;
        let before = ledger.before(slot);
        let wide = batch.wide(hash);
        if let Some(wide) = wide {
            ledger.set_wide(hash.bits, wide);
        }
        if let Some(parent) = parent {
            self.define_block(ledger, (batch, stored), (slot, block, parent), attributes, reading)?;
        }
        let copies = self.count_copies(ledger, slot, place, reading)?;
        let was_held = ledger.hold(slot, place, copies, before, &mut reading.draft);
        self.epoch.reports.come(place, hash.bits);
        if !before.known && was_held {
            // It was held before anybody knew what it is.
            ledger.tell_attached((slot, stored.block_size), &mut reading.draft);
        } else if parent.is_none() && !was_held {
            // A hash that is known from before: followers need not know it any more.
            for size in ledger.state().attached_sizes(slot) {
                ledger.tell_attached((slot, size), &mut reading.draft);
            }
        }
        // Blocks that waited for this one can be sent now.
        ledger.tell_waiting(&mut reading.draft);
        if parent.is_none() && ledger.state().places.get(place).proves_ancestors() {
            reading.draft.unresolved.push(hash.bits);
        }
        let chain = ledger.state().chain(slot, stored.block_size);
        if let Some(chain) = chain
            && !Arc::ptr_eq(&chain.attributes, attributes)
            && chain.attributes != *attributes
        {
            reading.inherited = Some(chain.attributes.clone());
        }
        if self.options.transitions_only {
            return Ok((slot, None));
        }
        let block = StoredBlock::from(StoredParts {
            hash: hash.bits,
            wide: wide.and_then(|_| ledger.state().wide(hash.bits).cloned()),
            copies,
            parent: chain.map(Chain::parent),
            tokens: chain.and_then(Chain::known_tokens),
            first_position: parent.is_some().then(|| at as u32 * stored.block_size),
            content: chain.filter(|chain| chain.attached).map(|chain| chain.content),
            extra_keys: match chain {
                Some(chain) => chain.extra_keys.clone(),
                None => own_keys(batch.extra_keys(stored, at)),
            },
        });
        Ok((slot, Some(block)))
    }

    /// Says what a block is, unless that is known; then it has to be the same.
    fn define_block(
        &self,
        ledger: &mut Ledger,
        (batch, stored): (&Batch<'_, '_>, &Stored<'_>),
        (slot, block, parent): (SlotId, BlockAt, Parent),
        attributes: &Arc<Attributes>,
        reading: &mut Reading,
    ) -> Result<(), Refusal> {
        let size = stored.block_size as usize;
        let tokens = batch.tokens(stored).slice(block.at * size, size).unwrap_or_default();
        let keys = batch.extra_keys(stored, block.at);
        let hidden = block.hidden;
        if let Some(known) = ledger.state().chain(slot, stored.block_size) {
            if known.lacks_tokens() && !tokens.is_empty() {
                let keys = if hidden { Some(hidden_namespace(block.hash)) } else { own_keys(keys) };
                let said = Said { parent, tokens, attributes, keys: &[], hidden };
                if !fill_block(ledger, (slot, stored.block_size), &said, keys) {
                    reading.doubt(Reason::AmbiguousHash);
                }
                return Ok(());
            }
            let said = Said { parent, tokens, attributes, keys, hidden };
            if !self.is_same(ledger, known, &said, stored) {
                reading.doubt(Reason::AmbiguousHash);
            }
            return Ok(());
        }
        let keys = if hidden { Some(hidden_namespace(block.hash)) } else { own_keys(keys) };
        let chain = Chain::new((stored.block_size, parent), tokens, attributes.clone(), keys);
        ledger.define(slot, chain, &mut reading.draft)
    }

    /// How many copies of a block a place has with one more store of it.
    fn count_copies(
        &self,
        ledger: &mut Ledger,
        slot: SlotId,
        place: PlaceId,
        reading: &mut Reading,
    ) -> Result<u32, Refusal> {
        let before = ledger.state().copies(slot, place);
        if before == 0 && !ledger.state().has_room_unjoined(slot) {
            ledger.give_back(slot);
            return Err(Refusal::Waiting);
        }
        if before > 0 && self.options.semantics.held_once {
            reading.doubt(Reason::SharedHash);
        } else if before > 0 && self.duplicates() == Duplicates::Presence {
            reading.doubt(Reason::Presence);
        }
        Ok(match self.duplicates() {
            _ if reading.uncounted => before.max(1),
            Duplicates::Count => before.saturating_add(1),
            Duplicates::Presence => 1,
        })
    }

    pub(super) fn note_place(&mut self, ledger: &mut Ledger, place: &Place, now: Now) {
        let is_elsewhere_unknown =
            place.locality.as_deref().map(Locality::from_wire) == Some(Locality::Unknown);
        if place.tier == Tier::Unknown || is_elsewhere_unknown {
            ledger.degrade(Reason::UnknownMedium, now);
        }
        self.epoch.tiers.seen |= place.tier != Tier::Device;
        if place.tier != Tier::Device && std::mem::take(&mut self.epoch.tiers.unknown) {
            ledger.degrade(Reason::TierHistory, now);
        }
    }
}

/// A store gives the tokens of a block that a peer named by its content. False if they do not fit it. Within
/// a prompt that says nothing: its salt may not be known.
fn fill_block(
    ledger: &mut Ledger,
    (slot, block_size): (SlotId, u32),
    said: &Said<'_, '_>,
    extra_keys: Option<ExtraKeys>,
) -> bool {
    let chain = Chain::new((block_size, said.parent), said.tokens, said.attributes.clone(), extra_keys);
    ledger.fill(slot, chain) || said.parent != Parent::Root
}

/// The size of the blocks that one of such a size builds on: the same, unless it is not full.
fn size_of_parent(ledger: &Ledger, parent: u64, block_size: u32) -> u32 {
    let Some(parent) = ledger.state().find(parent) else { return block_size };
    let attached = |size: &u32| ledger.state().chain(parent, *size).is_some_and(|chain| chain.attached);
    let first = || ledger.state().attached_chain(parent).map(|chain| chain.block_size);
    Some(block_size).filter(attached).or_else(first).unwrap_or(block_size)
}

/// What the blocks of a store have in common: the last store's, if it is the same.
fn attributes(ledger: &mut Ledger, batch: &Batch<'_, '_>, stored: &Stored<'_>) -> Arc<Attributes> {
    let names = Names { lora_name: stored.lora_name, lora_id: stored.lora_id, cache_salt: stored.cache_salt };
    // The salt is among the keys of a prompt's first block, and inherited from there.
    let first_of_prompt = stored.parent.is_none();
    let keys = if first_of_prompt { batch.extra_keys(stored, 0) } else { &[] };
    let salt = names.with_salt_among(keys.iter().map(|key| key.as_block_key())).cache_salt;
    let bigrams = matches!(batch.tokens(stored), Tokens::Bigrams(_));
    let last = &ledger.last_attributes;
    let same = last.lora_id == stored.lora_id
        && last.lora_name.as_deref() == stored.lora_name
        && last.cache_salt.as_deref() == salt
        && last.bigrams == bigrams;
    if !same {
        ledger.last_attributes = Arc::new(Attributes {
            lora_id: stored.lora_id,
            lora_name: stored.lora_name.map(Box::from),
            cache_salt: salt.map(Box::from),
            bigrams,
        });
    }
    ledger.last_attributes.clone()
}

pub(super) fn refuse(ledger: &mut Ledger, refusal: Refusal, blocks: usize, now: Now) {
    ledger.counters.unrecorded_blocks += blocks as u64;
    ledger.degrade(
        match refusal {
            Refusal::Budget => Reason::Budget,
            Refusal::Waiting => Reason::WaitingOverflow,
        },
        now,
    );
}
