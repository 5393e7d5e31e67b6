//! Applying a store: what its blocks are, and where they lie from now on.

use std::sync::Arc;

use kvplane_core::{Locality, Names, Reason, Tier};
use kvplane_wire::{Batch, Event, Hash, Layout, Stored, Tokens};

use super::apply::Effects;
use super::groups::{ToldGroup, is_full};
use super::identity::Said;
use super::page_hash::hidden_namespace;
use super::reannounced::Telling;
use super::{Duplicates, Journal};
use crate::change::{Change, StoreCause, StoredBlock, StoredChange};
use crate::clock::Now;
use crate::state::{Attributes, Chain, Parent, Place, PlaceId, PlaceName, Refusal, SlotId, own_keys};

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

impl Journal {
    pub(super) fn apply_stored(
        &mut self,
        batch: &Batch<'_, '_>,
        (at, stored): (usize, &Stored<'_>),
        effects: &mut Effects,
        now: Now,
    ) {
        let hashes = batch.stored_hashes(stored);
        let layout = batch.layout(stored);
        self.counters.blocks_stored += hashes.len() as u64;
        match layout {
            Layout::Dense => {}
            Layout::Sparse => self.counters.sparse_stores += 1,
            Layout::HashOnly => self.counters.placeholder_stores += 1,
        }
        let layout =
            if layout == Layout::Dense && self.withholds_keys(stored) { Layout::HashOnly } else { layout };
        let name = place_name(stored);
        // Both may begin the state anew: before anything of it is looked up.
        self.learn_window(stored.sliding_window, stored.group, effects, now);
        let hidden = layout == Layout::Dense && self.has_hidden_namespace(batch, stored, effects, now);
        let spec_kind = stored.spec_kind.or_else(|| self.kind_of_group(stored.group));
        let told = ToldGroup {
            group: stored.group,
            spec_kind,
            sliding_window: stored.sliding_window,
            block_size: (layout != Layout::HashOnly).then_some(stored.block_size),
            is_full: is_full(layout, hashes.len()),
            on_device: Tier::of(stored.medium, stored.locality) == Tier::Device,
        };
        self.learn_group(told, effects);
        self.note_layout(stored.group, layout, hashes.len());
        let (spec_kind, window) = self.sides.groups.settled(stored.group, (spec_kind, stored.sliding_window));
        let Some(place) = self.state.places.place_for(name, spec_kind, window) else {
            self.refuse(Refusal::Budget, hashes.len(), now);
            return;
        };
        let place_ref = self.state.places.get(place).clone();
        self.note_place(&place_ref, now);
        if self.is_told_again(batch, at, place, effects) {
            return;
        }
        let attributes = self.attributes(batch, stored);
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
            let size = self.size_of_parent(parent.bits, stored.block_size);
            self.prove_ancestors(parent.bits, place, &place_ref, size, effects);
        }
        if layout == Layout::Dense && place_ref.is_main() {
            self.check_size(stored, hashes.len(), effects, now);
        }
        let ends_chunks = self.note_chunks(batch, stored, &place_ref, effects);
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
            match self.store_block(batch, stored, block, &change.attributes, effects) {
                Ok((slot, block)) => {
                    change.blocks.extend(block);
                    if ends_chunks {
                        self.end_chunk(slot, place, effects);
                        ended.push(slot);
                    }
                }
                Err(refusal) if !chained => self.refuse(refusal, 1, now),
                Err(refusal) => {
                    // What follows builds on this block; recording it would only make it wait.
                    self.refuse(refusal, hashes.len() - at, now);
                    break;
                }
            }
        }
        change.attributes = effects.inherited.take().unwrap_or(change.attributes);
        effects.changes.push(Change::Stored(change));
        effects.uncounted = false;
        ended.sort_unstable();
        for same in ended.chunk_by(|a, b| a == b) {
            self.count_chunks(same[0], place, same.len(), effects);
        }
        for slot in std::mem::take(&mut effects.joined) {
            self.count_joined(slot, effects);
        }
    }

    /// Whether blocks may be made of more than their store says. vLLM's stores of colder tiers have tokens and no keys, whatever the
    /// request had: then only the hash tells what a block is, by the device's store of it. A tier that never tells a removal is never believed
    /// wholly, and is taken at its word.
    fn withholds_keys(&self, stored: &Stored<'_>) -> bool {
        let cold = Tier::of(stored.medium, stored.locality) != Tier::Device;
        let names_keys = self.options.semantics.cold_stores_name_keys || stored.names_keys();
        cold && !names_keys && Tier::tells_removals(stored.medium)
    }

    /// Whether a store announces what is held already, so that nothing changes.
    fn is_told_again(
        &mut self,
        batch: &Batch<'_, '_>,
        at: usize,
        place: PlaceId,
        effects: &mut Effects,
    ) -> bool {
        let telling = self.telling(batch, at, &mut effects.neighbours);
        let Event::Stored(stored) = &batch.events[at] else { return false };
        let hashes = batch.stored_hashes(stored);
        match telling {
            Telling::Another => return false,
            Telling::Copy => self.doubt_copies(place, hashes),
            Telling::Partly => effects.uncounted = true,
            Telling::Again => {
                effects.over_counted |= !self.see_report(effects);
                if self.has_seen_others {
                    // What was fetched from behind the device beside another request that did looks the same.
                    self.suppose_copies(place, hashes, effects);
                }
            }
            Telling::Either if self.state.places.get(place).proves_ancestors() => {
                self.suppose_copies(place, hashes, effects);
            }
            Telling::Either => effects.doubt(Reason::Reannounced),
        }
        if matches!(telling, Telling::Copy | Telling::Partly) {
            return false;
        }
        self.counters.reannounced_blocks += hashes.len() as u64;
        true
    }

    fn store_block(
        &mut self,
        batch: &Batch<'_, '_>,
        stored: &Stored<'_>,
        BlockAt { at, hash, parent, place, hidden }: BlockAt,
        attributes: &Arc<Attributes>,
        effects: &mut Effects,
    ) -> Result<(SlotId, Option<StoredBlock>), Refusal> {
        let slot = self.state.slot_for(hash.bits)?;
        let was_known = self.state.attached_chain(slot).is_some();
        let was_tellable = self.state.told_chain(slot, self.told_size()).is_some();
        let extra_keys = batch.extra_keys(stored, at);
        let wide = batch.wide(hash);
        if let Some(wide) = wide {
            self.state.set_wide(hash.bits, wide);
        }
        if let Some(parent) = parent {
            let size = stored.block_size as usize;
            let tokens = batch.tokens(stored).slice(at * size, size).unwrap_or_default();
            let known = self.state.chain(slot, stored.block_size);
            let said = Said { parent, tokens, attributes, keys: extra_keys, hidden };
            if known.is_some_and(|known| !self.is_same(known, &said, stored)) {
                effects.doubt(Reason::AmbiguousHash);
            }
            let undefined = known.is_none();
            let chain = || Chain {
                block_size: stored.block_size,
                parent,
                tokens: Arc::from(tokens),
                attributes: attributes.clone(),
                extra_keys: if hidden { Some(hidden_namespace(hash)) } else { own_keys(extra_keys) },
                attached: false,
                content: 0,
            };
            if undefined && let Err(refusal) = self.state.define(slot, chain(), &mut effects.attached) {
                self.state.release(slot);
                return Err(refusal);
            }
        }
        let before = self.state.copies(slot, place);
        if before == 0 && !self.state.has_room_unjoined(slot) {
            self.state.release(slot);
            return Err(Refusal::Waiting);
        }
        if before > 0 && self.options.semantics.held_once {
            effects.doubt(Reason::SharedHash);
        } else if before > 0 && self.duplicates() == Duplicates::Presence {
            effects.doubt(Reason::Presence);
        }
        let copies = match self.duplicates() {
            _ if effects.uncounted => before.max(1),
            Duplicates::Count => before.saturating_add(1),
            Duplicates::Presence => 1,
        };
        let tier = self.state.places.get(place).tier;
        let was_visible = was_tellable && self.is_visible(slot, tier);
        let was_held = self.state.held_where(slot, |_| true);
        self.state.set_copies(slot, place, copies);
        self.reports.come(place, hash.bits);
        if !was_visible {
            self.became_visible(slot, tier, &mut effects.transitions);
        }
        if !was_tellable && was_held {
            // It was held before anybody could be told of it.
            effects.joined.push(slot);
            for other in Tier::ALL.into_iter().filter(|&other| other != tier) {
                self.became_visible(slot, other, &mut effects.transitions);
            }
        }
        if !was_known && was_held {
            // It was held before anybody knew what it is.
            self.tell_attached((slot, stored.block_size), &mut effects.changes);
        } else if parent.is_none() && !was_held {
            // A hash that is known from before: whoever follows need not know it any more.
            for size in self.state.attached_sizes(slot) {
                self.tell_attached((slot, size), &mut effects.changes);
            }
        }
        // Blocks that waited for this one can be told of now.
        for waited in std::mem::take(&mut effects.attached) {
            effects.joined.push(waited.0);
            self.tell_attached(waited, &mut effects.changes);
            self.attached_visibly(waited, &mut effects.transitions);
        }
        if parent.is_none() && self.state.places.get(place).proves_ancestors() {
            effects.unresolved.push(hash.bits);
        }
        let chain = self.state.chain(slot, stored.block_size);
        if let Some(chain) = chain
            && !Arc::ptr_eq(&chain.attributes, attributes)
            && chain.attributes != *attributes
        {
            effects.inherited = Some(chain.attributes.clone());
        }
        if self.options.transitions_only {
            return Ok((slot, None));
        }
        let block = StoredBlock {
            hash: hash.bits,
            wide: wide.and_then(|_| self.state.wide(hash.bits).cloned()),
            copies,
            parent: chain.map(|chain| chain.parent),
            tokens: chain.map(|chain| chain.tokens.clone()),
            first_position: parent.is_some().then(|| at as u32 * stored.block_size),
            content: chain.filter(|chain| chain.attached).map(|chain| chain.content),
            extra_keys: match chain {
                Some(chain) => chain.extra_keys.clone(),
                None => own_keys(extra_keys),
            },
        };
        Ok((slot, Some(block)))
    }

    /// The size of the blocks that one of such a size builds on: the same, unless it is not full.
    fn size_of_parent(&self, parent: u64, block_size: u32) -> u32 {
        let Some(parent) = self.state.find(parent) else { return block_size };
        let attached = |size: &u32| self.state.chain(parent, *size).is_some_and(|chain| chain.attached);
        let first = || self.state.attached_chain(parent).map(|chain| chain.block_size);
        Some(block_size).filter(attached).or_else(first).unwrap_or(block_size)
    }

    /// What the blocks of a store have in common: the last store's, if it is the same.
    fn attributes(&mut self, batch: &Batch<'_, '_>, stored: &Stored<'_>) -> Arc<Attributes> {
        let names =
            Names { lora_name: stored.lora_name, lora_id: stored.lora_id, cache_salt: stored.cache_salt };
        // The salt is among the keys of a prompt's first block, and inherited from there.
        let first_of_prompt = stored.parent.is_none();
        let keys = if first_of_prompt { batch.extra_keys(stored, 0) } else { &[] };
        let salt = names.with_salt_among(keys.iter().map(|key| key.as_block_key())).cache_salt;
        let bigrams = matches!(batch.tokens(stored), Tokens::Bigrams(_));
        let last = &self.last_attributes;
        let same = last.lora_id == stored.lora_id
            && last.lora_name.as_deref() == stored.lora_name
            && last.cache_salt.as_deref() == salt
            && last.bigrams == bigrams;
        if !same {
            self.last_attributes = Arc::new(Attributes {
                lora_id: stored.lora_id,
                lora_name: stored.lora_name.map(Box::from),
                cache_salt: salt.map(Box::from),
                bigrams,
            });
        }
        self.last_attributes.clone()
    }

    pub(super) fn note_place(&mut self, place: &Place, now: Now) {
        let is_elsewhere_unknown =
            place.locality.as_deref().map(Locality::from_wire) == Some(Locality::Unknown);
        if place.tier == Tier::Unknown || is_elsewhere_unknown {
            self.degrade(Reason::UnknownMedium, now);
        }
        self.has_seen_others |= place.tier != Tier::Device;
        if place.tier != Tier::Device && std::mem::take(&mut self.other_tiers_unknown) {
            self.degrade(Reason::TierHistory, now);
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal, blocks: usize, now: Now) {
        self.counters.unrecorded_blocks += blocks as u64;
        self.degrade(
            match refusal {
                Refusal::Budget => Reason::Budget,
                Refusal::Waiting => Reason::WaitingOverflow,
            },
            now,
        );
    }
}
