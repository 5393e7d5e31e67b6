//! Applying a batch: events in, changes of the state out.

use std::sync::Arc;

use kvplane_core::{Reason, Tier};
use kvplane_wire::{Batch, Event, Hash, Layout, RejectedKind, Removed, Stored, Tokens};

use smallvec::SmallVec;

use super::page_hash::hidden_namespace;
use super::{ClearScope, Duplicates, Journal};
use crate::change::{Change, RemovedBlock, StoreCause, StoredBlock, StoredChange, Transition};
use crate::clock::Now;
use crate::state::{
    Attributes, Chain, Parent, Place, PlaceId, PlaceName, Refusal, SlotId, own_keys, salt_among,
};
use crate::transitions::push_removed;

/// How many ancestors one batch may look at to see whether they are held. Chains that are known to be whole cost one
/// step, so only the first stores after a loss come near it.
const ANCESTOR_STEPS: u32 = 4096;

/// What one batch has done so far.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) changes: Vec<Change>,
    pub(super) transitions: Vec<Transition>,
    ancestor_steps: u32,
    /// Scratch: blocks that waited and were attached.
    pub(super) attached: Vec<SlotId>,
    /// The last store's blocks have more in common than it says: they inherited a salt.
    inherited: Option<Arc<Attributes>>,
    /// One hash came for two different blocks.
    ambiguous: bool,
    /// A second block with a hash that is held.
    shared_hash: bool,
    /// Hashes of device blocks of the main group that came without their tokens.
    pub(super) unresolved: Vec<u64>,
}

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

impl Journal {
    /// Applies one batch. Batches come in order, once: that is continuity's business.
    pub fn apply(&mut self, engine_sequence: u64, batch: &Batch<'_, '_>, now: Now) {
        let mut effects = Effects { ancestor_steps: ANCESTOR_STEPS, ..Effects::default() };
        self.counters.batches += 1;
        self.counters.unknown_fields += u64::from(batch.unknown_fields);
        if batch.rank.is_some_and(|rank| rank != i64::from(self.rank)) {
            self.counters.foreign_rank += 1;
        }
        if std::mem::take(&mut self.known_from_next) {
            self.known_from = Some(engine_sequence);
            self.trust_changed = true;
        }
        for event in &batch.events {
            self.counters.events += 1;
            match event {
                Event::Stored(stored) => self.apply_stored(batch, stored, &mut effects, now),
                Event::Removed(removed) => self.apply_removed(batch, removed, &mut effects),
                Event::Cleared { ownership } => self.apply_cleared(*ownership, engine_sequence, &mut effects),
                Event::Moved(moved) => self.apply_moved(moved, &mut effects, now),
                Event::Created(created) => self.apply_created(*created, &mut effects, now),
                Event::Unknown { .. } => {
                    self.counters.unknown_events += 1;
                    self.pass_over("event", "unknown_event", self.counters.unknown_events);
                    self.degrade(Reason::UnknownEvent, now);
                }
                Event::Rejected(rejected) => {
                    let reason = rejected.reason.as_str();
                    let count = self.counters.reject(rejected.kind, reason);
                    self.pass_over(rejected.kind.as_str(), reason, count);
                    self.degrade(
                        match rejected.kind {
                            RejectedKind::Store => Reason::MalformedStore,
                            RejectedKind::Removal => Reason::MalformedRemoval,
                            RejectedKind::Unknown => Reason::UnknownEvent,
                        },
                        now,
                    );
                }
            }
        }
        self.engine_sequence = Some(engine_sequence);
        if effects.ambiguous {
            self.degrade(Reason::AmbiguousHash, now);
        }
        if effects.shared_hash {
            self.degrade(Reason::SharedHash, now);
        }
        self.note_unresolved(&effects);
        self.check_capacity();
        self.push(Some(engine_sequence), batch.timestamp, effects.changes, effects.transitions);
    }

    /// Where a block is held once, a second store is another block, and a removal may mean either: neither counts after it.
    fn duplicates(&self) -> Duplicates {
        if self.options.semantics.held_once { Duplicates::Presence } else { self.options.duplicates }
    }

    /// Notes whether blocks without tokens are left at the end of a batch.
    pub(super) fn note_unresolved(&mut self, effects: &Effects) {
        self.untranslatable |= effects.unresolved.iter().any(|&hash| self.is_untold(hash));
    }

    /// Whether a block without tokens is still one at the end of its batch, which may have told what it is, or removed it.
    fn is_untold(&self, hash: u64) -> bool {
        let slot = self.state.find(hash).filter(|&slot| self.state.attached_chain(slot).is_none());
        slot.is_some_and(|slot| self.state.held_where(slot, Place::proves_ancestors))
    }

    pub(super) fn degrade(&mut self, reason: Reason, now: Now) {
        self.trust_changed |= self.trust.degrade(reason, now.unix_ms);
    }

    // --- stores ------------------------------------------------------------------------------------------

    fn apply_stored(&mut self, batch: &Batch<'_, '_>, stored: &Stored<'_>, effects: &mut Effects, now: Now) {
        let hashes = batch.stored_hashes(stored);
        let layout = batch.layout(stored);
        self.counters.blocks_stored += hashes.len() as u64;
        match layout {
            Layout::Dense => {}
            Layout::Sparse => self.counters.sparse_stores += 1,
            Layout::HashOnly => self.counters.placeholder_stores += 1,
        }
        let name = PlaceName {
            medium: stored.medium,
            locality: stored.locality,
            ownership: stored.ownership,
            group: stored.group,
        };
        // Both may begin the state anew: before anything of it is looked up.
        self.learn_window(stored.sliding_window, stored.group, effects, now);
        let hidden = layout == Layout::Dense && self.has_hidden_namespace(batch, stored, effects, now);
        let spec_kind = stored.spec_kind.or_else(|| self.kind_of_group(stored.group));
        let Some(place) = self.state.places.place_for(name, spec_kind, stored.sliding_window) else {
            self.refuse(Refusal::Budget, hashes.len(), now);
            return;
        };
        let place_ref = self.state.places.get(place).clone();
        self.note_place(&place_ref, now);
        let attributes = self.attributes(batch, stored);
        let mut change = StoredChange {
            cause: StoreCause::Announced,
            place: place_ref.clone(),
            blocks: Vec::with_capacity(hashes.len()),
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
            // What a partial block builds on is full.
            let slot = self.state.find(parent.bits);
            let size = slot.and_then(|slot| self.state.attached_chain(slot)).map(|chain| chain.block_size);
            self.prove_ancestors(parent.bits, place, &place_ref, size.unwrap_or(stored.block_size), effects);
        }
        if layout == Layout::Dense && place_ref.is_main() {
            if self.options.semantics.partial_blocks {
                self.check_partial_size(stored, hashes.len(), effects, now);
            } else {
                self.check_block_size(stored.block_size, now);
            }
        }
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
                Ok(block) => change.blocks.push(block),
                Err(refusal) => {
                    // What follows builds on this block; recording it would only make it wait.
                    self.refuse(refusal, hashes.len() - at, now);
                    break;
                }
            }
        }
        change.attributes = effects.inherited.take().unwrap_or(change.attributes);
        effects.changes.push(Change::Stored(change));
    }

    fn store_block(
        &mut self,
        batch: &Batch<'_, '_>,
        stored: &Stored<'_>,
        BlockAt { at, hash, parent, place, hidden }: BlockAt,
        attributes: &Arc<Attributes>,
        effects: &mut Effects,
    ) -> Result<StoredBlock, Refusal> {
        let slot = self.state.slot_for(hash.bits)?;
        let was_known = self.state.attached_chain(slot).is_some();
        let extra_keys = batch.extra_keys(stored, at);
        let wide = batch.wide(hash);
        if let Some(wide) = wide {
            self.state.set_wide(hash.bits, wide);
        }
        if let Some(parent) = parent {
            let size = stored.block_size as usize;
            let tokens = batch.tokens(stored).slice(at * size, size).unwrap_or_default();
            let known = self.state.chain(slot, stored.block_size);
            effects.ambiguous |=
                known.is_some_and(|known| known.parent != parent || *known.tokens != *tokens);
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
        effects.shared_hash |= before > 0 && self.options.semantics.held_once;
        let copies = match self.duplicates() {
            Duplicates::Count => before.saturating_add(1),
            Duplicates::Presence => 1,
        };
        let tier = self.state.places.get(place).tier;
        let was_visible = was_known && self.is_visible(slot, tier);
        let was_held = self.state.held_where(slot, |_| true);
        self.state.set_copies(slot, place, copies);
        if !was_visible {
            self.became_visible(slot, tier, &mut effects.transitions);
        }
        if !was_known && was_held {
            // It was held before anybody knew what it is.
            self.tell_attached(slot, &mut effects.changes);
            for other in Tier::ALL.into_iter().filter(|&other| other != tier) {
                self.became_visible(slot, other, &mut effects.transitions);
            }
        } else if parent.is_none() && !was_held {
            // A hash that is known from before: whoever follows need not know it any more.
            self.tell_attached(slot, &mut effects.changes);
        }
        // Blocks that waited for this one can be told of now.
        for waited in std::mem::take(&mut effects.attached) {
            self.tell_attached(waited, &mut effects.changes);
            for tier in Tier::ALL {
                self.became_visible(waited, tier, &mut effects.transitions);
            }
        }
        if parent.is_none() && self.state.places.get(place).proves_ancestors() {
            effects.unresolved.push(hash.bits);
        }
        let chain = self.state.chain(slot, stored.block_size);
        if let Some(chain) = chain
            && attributes.cache_salt.is_none()
            && chain.attributes.cache_salt.is_some()
        {
            effects.inherited = Some(chain.attributes.clone());
        }
        Ok(StoredBlock {
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
        })
    }

    /// A block that waited is known now: whoever follows is told what it is, in every place that holds it.
    fn tell_attached(&self, slot: SlotId, changes: &mut Vec<Change>) {
        let Some(chain) = self.state.attached_chain(slot) else { return };
        let hash = self.state.hash_of(slot);
        for (place, copies) in self.state.holdings(slot) {
            let block = StoredBlock {
                hash,
                wide: self.state.wide(hash).cloned(),
                copies,
                parent: Some(chain.parent),
                tokens: Some(chain.tokens.clone()),
                first_position: None,
                content: Some(chain.content),
                extra_keys: chain.extra_keys.clone(),
            };
            changes.push(Change::Stored(StoredChange {
                cause: StoreCause::Attached,
                place: place.clone(),
                blocks: vec![block],
                layout: Layout::Dense,
                block_size: chain.block_size,
                parent: None,
                span: None,
                attributes: chain.attributes.clone(),
                session_id: None,
            }));
        }
    }

    /// The request that computed a block holds every block before it: say so where we did not know.
    fn prove_ancestors(
        &mut self,
        parent: u64,
        place: PlaceId,
        place_ref: &Arc<Place>,
        block_size: u32,
        effects: &mut Effects,
    ) {
        let mut missing = Vec::new();
        self.state.missing_ancestors(parent, place, block_size, &mut effects.ancestor_steps, &mut missing);
        if missing.is_empty() {
            return;
        }
        self.counters.proven_blocks += missing.len() as u64;
        let mut blocks = Vec::with_capacity(missing.len());
        let mut attributes = None;
        for slot in missing.into_iter().rev() {
            let elsewhere = |other: &Place| other.group == place_ref.group;
            if self.options.semantics.windows && self.state.held_where(slot, elsewhere) {
                // Where blocks move between levels, one that is elsewhere is held all the same.
                continue;
            }
            let was_visible = self.is_visible(slot, place_ref.tier);
            self.state.set_copies(slot, place, 1);
            if !was_visible {
                self.became_visible(slot, place_ref.tier, &mut effects.transitions);
            }
            let Some(chain) = self.state.chain(slot, block_size) else { continue };
            attributes.get_or_insert_with(|| chain.attributes.clone());
            let hash = self.state.hash_of(slot);
            blocks.push(StoredBlock {
                hash,
                wide: self.state.wide(hash).cloned(),
                copies: 1,
                parent: Some(chain.parent),
                tokens: Some(chain.tokens.clone()),
                first_position: None,
                content: Some(chain.content),
                extra_keys: chain.extra_keys.clone(),
            });
        }
        effects.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Proven,
            place: place_ref.clone(),
            blocks,
            layout: Layout::Dense,
            block_size,
            parent: None,
            span: None,
            attributes: attributes.unwrap_or_default(),
            session_id: None,
        }));
    }

    /// What the blocks of a store have in common: the last store's, if it is the same.
    fn attributes(&mut self, batch: &Batch<'_, '_>, stored: &Stored<'_>) -> Arc<Attributes> {
        // The salt is among the keys of a prompt's first block, and inherited from there.
        let salt = stored.cache_salt.or_else(|| {
            let first_of_prompt = stored.parent.is_none();
            if first_of_prompt { salt_among(batch.extra_keys(stored, 0), stored.lora_name) } else { None }
        });
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
        if place.tier == Tier::Unknown {
            self.degrade(Reason::UnknownMedium, now);
        }
        if place.tier != Tier::Device && std::mem::take(&mut self.other_tiers_unknown) {
            self.degrade(Reason::TierHistory, now);
        }
    }

    /// Blocks that others build on are full, and tell the size of all; the last one of a prompt may be smaller.
    fn check_partial_size(&mut self, stored: &Stored<'_>, blocks: usize, effects: &mut Effects, now: Now) {
        let parent = stored.parent.and_then(|parent| self.state.find(parent.bits));
        let parent_size =
            parent.and_then(|parent| self.state.attached_chain(parent)).map(|chain| chain.block_size);
        let full = if blocks > 1 { Some(stored.block_size) } else { parent_size };
        if let Some(full) = full {
            self.learn_full_size(full, effects);
            self.check_block_size(full, now);
        }
        if self.block_size().is_some_and(|size| stored.block_size > size) {
            self.check_block_size(stored.block_size, now);
        }
    }

    fn check_block_size(&mut self, block_size: u32, now: Now) {
        let known = *self.learned_block_size.get_or_insert(block_size);
        if self.options.block_size.unwrap_or(known) != block_size {
            self.counters.block_size_contradictions += 1;
            if self.options.block_size.is_some() {
                self.degrade(Reason::BlockSize, now);
            }
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

    // --- removals and clears ---------------------------------------------------------------------------------

    fn apply_removed(&mut self, batch: &Batch<'_, '_>, removed: &Removed<'_>, effects: &mut Effects) {
        let hashes = batch.removed_hashes(removed);
        self.counters.blocks_removed += hashes.len() as u64;
        let name = PlaceName {
            medium: removed.medium,
            locality: removed.locality,
            ownership: removed.ownership,
            group: removed.group,
        };
        if removed.anywhere {
            self.remove_anywhere(hashes, removed.group, effects);
            return;
        }
        let Some(place) = self.state.places.find(name) else {
            self.counters.unknown_removals += hashes.len() as u64;
            return;
        };
        let mut blocks = Vec::with_capacity(hashes.len());
        // Looked up together: the memory they lie in is cold, and the waits overlap.
        let slots: SmallVec<[Option<SlotId>; 16]> =
            hashes.iter().map(|hash| self.state.find(hash.bits)).collect();
        let copies = match self.duplicates() {
            Duplicates::Count => 1,
            Duplicates::Presence => u32::MAX,
        };
        for (hash, slot) in hashes.iter().zip(slots) {
            // A hash that is named twice may have gone with its first removal.
            let known = slot.filter(|&slot| self.state.is_hash(slot, hash.bits));
            match known.filter(|&slot| self.state.copies(slot, place) > 0) {
                Some(slot) => blocks.push(self.take_copies(slot, hash.bits, place, copies, effects)),
                None => self.counters.unknown_removals += 1,
            }
        }
        if !blocks.is_empty() {
            let place = self.state.places.get(place).clone();
            effects.changes.push(Change::Removed { place, blocks });
        }
    }

    /// Blocks leave a group, wherever it has them.
    fn remove_anywhere(&mut self, hashes: &[Hash], group: Option<u32>, effects: &mut Effects) {
        for hash in hashes {
            let slot = self.state.find(hash.bits);
            let places = slot.map(|slot| self.places_holding(slot, group)).unwrap_or_default();
            if places.is_empty() {
                self.counters.unknown_removals += 1;
            }
            for place in places {
                // The slot may go with its last copy, and with that the list ends.
                let Some(slot) = self.state.find(hash.bits) else { break };
                let block = self.take_copies(slot, hash.bits, place, u32::MAX, effects);
                let place = self.state.places.get(place);
                match effects.changes.last_mut() {
                    Some(Change::Removed { place: last, blocks }) if last == place => blocks.push(block),
                    _ => {
                        let (place, blocks) = (place.clone(), vec![block]);
                        effects.changes.push(Change::Removed { place, blocks });
                    }
                }
            }
        }
    }

    /// Takes up to `copies` copies of a block from a place; says what is left.
    pub(super) fn take_copies(
        &mut self,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        copies: u32,
        effects: &mut Effects,
    ) -> RemovedBlock {
        let left = self.state.copies(slot, place).saturating_sub(copies);
        self.leave_copies(slot, hash, place, left, effects)
    }

    /// A place has only so many copies of a block left.
    pub(super) fn leave_copies(
        &mut self,
        slot: SlotId,
        hash: u64,
        place: PlaceId,
        left: u32,
        effects: &mut Effects,
    ) -> RemovedBlock {
        let tier = self.state.places.get(place).tier;
        let was_visible = self.is_visible(slot, tier);
        self.state.set_copies(slot, place, left);
        if was_visible && !self.is_visible(slot, tier) {
            push_removed(&mut effects.transitions, tier, hash);
        }
        if left == 0 {
            self.state.release(slot);
        }
        RemovedBlock { hash, copies: left }
    }

    /// A clear empties the device for sure. What other tiers keep vLLM does not say, so they stay as they are there.
    fn apply_cleared(&mut self, ownership: Option<&str>, engine_sequence: u64, effects: &mut Effects) {
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
