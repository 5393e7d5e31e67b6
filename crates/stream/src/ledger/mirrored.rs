//! Keeping what another plane sends: its epoch, its numbers, its changes. Transitions are worked out here, by
//! the same rules.

use std::collections::VecDeque;
use std::sync::Arc;

use kvplane_core::{Epoch, Reason, Tier, TrustState};
use rustc_hash::FxHashSet;

use super::groups::{GroupSpec, is_full};
use super::sides::Sides;
use super::window::Notes;
use super::{Draft, KnownFrom, Ledger};
use crate::change::{Change, Layout, RemovedBlock, StoreCause, StoredBlock, StoredChange, Transition};
use crate::clock::Now;
use crate::mirror::{MirrorEntry, MirroredState, Misfit, check, mirrored_chain};
use crate::state::{Attributes, Place, PlaceId, SlotId};

/// A block that changed its level was not stored anew: it has no position in a store.
fn has_moved(stored: &StoredChange) -> bool {
    stored.layout == Layout::Dense
        && stored.blocks.first().is_some_and(|block| block.first_position().is_none())
}

/// For each change, the next announced store with nothing but stores between.
fn next_announced(changes: &[Change]) -> Vec<Option<u32>> {
    let mut next = None;
    let mut found: Vec<_> = changes
        .iter()
        .enumerate()
        .rev()
        .map(|(at, change)| {
            let after = next;
            next = match change {
                Change::Stored(stored) if stored.cause == StoreCause::Announced => Some(at as u32),
                Change::Stored(_) => next,
                _ => None,
            };
            after
        })
        .collect();
    found.reverse();
    found
}

/// Where a change is of blocks that a store proves: that store, which is sent after them. What it says of its
/// group was known before.
fn proving_store(changes: &[Change], at: usize, next: Option<u32>) -> Option<&StoredChange> {
    let (Change::Stored(proven), Change::Stored(store)) = (&changes[at], &changes[next? as usize]) else {
        return None;
    };
    (proven.cause == StoreCause::Proven && store.place.name().names(&proven.place)).then_some(store)
}

/// A block that is said to be attached now. It was sent before the block that it waited for.
struct Attached {
    place: Arc<Place>,
    block: StoredBlock,
    block_size: u32,
    attributes: Arc<Attributes>,
}

impl Attached {
    fn is(&self, hash: u64, size: u32) -> bool {
        self.block.hash == hash && self.block_size == size
    }
}

/// What an entry has done so far.
#[derive(Default)]
struct Applying {
    draft: Draft,
    attached: VecDeque<Attached>,
}

impl Ledger {
    /// Nothing is known any more, not even the life.
    pub(crate) fn void(&mut self, now: Now) {
        if self.epoch != Epoch::UNKNOWN || self.state.entries() > 0 {
            self.replace_state();
        }
        self.sides = Sides::new(self.options.eagle);
        self.fit_state();
        self.epoch = Epoch::UNKNOWN;
        self.window.restart(self.epoch);
        self.trust = TrustState::default();
        self.trust.degrade(Reason::Unheard, now.unix_ms);
        self.known_from = KnownFrom::Never;
        self.engine_sequence = None;
        self.engine_digest = None;
        self.learned_block_size = None;
        self.untranslatable = false;
    }

    /// A whole state takes the place of what was known. Subscribers find that their cursor is not in the
    /// window.
    pub(crate) fn load(&mut self, mirrored: MirroredState) {
        let MirroredState { cursor, state, untranslatable, end, .. } = mirrored;
        let old = std::mem::replace(&mut self.state, state);
        self.retired.push(old);
        self.epoch = cursor.epoch;
        self.window.restart_at(cursor, end.last_event_id);
        self.trust = end.trust;
        self.known_from = end.known_from.into();
        self.engine_sequence = end.engine_sequence;
        self.engine_digest = end.engine_digest;
        self.window.begin_behind(end.digest);
        self.learned_block_size = end.block_size;
        self.untranslatable = untranslatable;
        self.load_groups(end.groups, &end.resumption, end.partial_blocks);
        self.note_doubt_of_device();
    }

    /// Applies an entry as it was received. After an error the state is nobody's: [`Self::void`] it.
    pub(crate) fn apply_mirrored(&mut self, entry: MirrorEntry) -> Result<(), Misfit> {
        let MirrorEntry { cursor, mut changes, .. } = entry;
        if cursor.epoch != self.epoch {
            return Err(Misfit::Epoch);
        }
        if cursor.sequence.checked_sub(1) != Some(self.cursor().sequence) {
            return Err(Misfit::Order);
        }
        let mut applying = Applying::default();
        let next = next_announced(&changes);
        for at in 0..changes.len() {
            if let Some(store) = proving_store(&changes, at, next[at]) {
                self.learn_group_spec(store, &mut applying.draft);
            }
            self.apply_change(&mut changes[at], &mut applying)?;
        }
        self.attach_the_rest(&mut applying)?;
        let mut draft = applying.draft;
        if let Some(units) = entry.units {
            self.sides.set_units(units);
            self.serve_whole_prompts(entry.whole_prompt);
        }
        self.settle_groups(&mut draft);
        self.release_left(&mut draft);
        self.note_unresolved(&draft);
        let digest = self.state.digest();
        if digest != entry.digest {
            return Err(Misfit::Digest);
        }
        if self.last_event_id() + draft.transitions.len() as u64 != entry.last_event_id {
            return Err(Misfit::EventIds);
        }
        if let Some(trust) = &entry.trust {
            self.trust = trust.clone();
            self.known_from = entry.known_from.into();
        }
        if entry.engine_sequence.is_some() {
            self.counters.batches += 1;
            self.engine_sequence = entry.engine_sequence;
            self.engine_digest = entry.engine_digest;
        }
        self.counters.events += changes.len() as u64;
        self.note_doubt_of_device();
        let notes =
            Notes { trust: entry.trust, continuity: entry.continuity, age: entry.age, ..self.notes(digest) };
        self.push_noted(entry.engine_sequence, entry.timestamp, changes, notes, draft.transitions);
        Ok(())
    }

    fn apply_change(&mut self, change: &mut Change, applying: &mut Applying) -> Result<(), Misfit> {
        match change {
            Change::Stored(stored) if stored.cause == StoreCause::Attached => {
                let StoredChange { place, blocks, block_size, attributes, .. } = stored;
                applying.attached.extend(blocks.iter().map(|block| Attached {
                    place: place.clone(),
                    block: block.clone(),
                    block_size: *block_size,
                    attributes: attributes.clone(),
                }));
                Ok(())
            }
            Change::Stored(stored) => {
                self.apply_mirrored_store(stored, applying)?;
                // All that this store attached was sent before it.
                self.attach_the_rest(applying)
            }
            Change::Removed { place, blocks } => {
                self.apply_mirrored_removal(place, blocks, &mut applying.draft)
            }
            Change::Cleared { places, elsewhere } => {
                *elsewhere = self.state.held_elsewhere();
                elsewhere.retain(|(place, _)| places.iter().any(|reported| reported.name().names(place)));
                self.apply_mirrored_clear(places, &mut applying.draft);
                Ok(())
            }
            Change::Dropped { reason, elsewhere } => {
                *elsewhere = self.state.held_elsewhere();
                self.untranslatable = false;
                if reason.is_loss() {
                    self.state.drop_places(|_| true);
                    self.known_from = KnownFrom::Never;
                } else {
                    // What blocks are was misunderstood.
                    self.replace_state();
                }
                applying.draft.transitions.push(Transition::Cleared);
                Ok(())
            }
        }
    }

    fn apply_mirrored_store(
        &mut self,
        stored: &mut StoredChange,
        applying: &mut Applying,
    ) -> Result<(), Misfit> {
        let announced = stored.cause == StoreCause::Announced;
        if announced {
            self.learn_group_spec(stored, &mut applying.draft);
        }
        let place = self.state.places.mirrored_place(&stored.place).ok_or(Misfit::Budget)?;
        stored.place = self.state.places.get(place).clone();
        // Most stores have the same: shared.
        if *self.last_attributes == *stored.attributes {
            stored.attributes = self.last_attributes.clone();
        } else {
            self.last_attributes = stored.attributes.clone();
        }
        if announced {
            self.counters.blocks_stored += stored.blocks.len() as u64;
            self.learn_size(stored, &mut applying.draft);
        } else {
            self.counters.proven_blocks += stored.blocks.len() as u64;
        }
        let proves = stored.place.proves_ancestors();
        for block in &stored.blocks {
            let slot = self.slot(block.hash)?;
            let before = self.before(slot);
            self.define_announced(slot, block, stored.block_size, &stored.attributes, &mut applying.draft)?;
            self.attach_first(slot, place, block, applying)?;
            self.hold(slot, place, block.copies, before, &mut applying.draft);
            self.report_attached(applying)?;
            applying.draft.attached.clear();
            if announced && proves && stored.layout != Layout::Dense {
                applying.draft.unresolved.push(block.hash);
            }
        }
        Ok(())
    }

    fn define_announced(
        &mut self,
        slot: SlotId,
        block: &StoredBlock,
        block_size: u32,
        attributes: &Arc<Attributes>,
        draft: &mut Draft,
    ) -> Result<(), Misfit> {
        if let Some(wide) = block.wide() {
            self.state.set_wide(block.hash, wide);
        }
        let Some(chain) = mirrored_chain(block, block_size, attributes) else { return Ok(()) };
        check(block)?;
        self.untranslatable |= chain.tokens.is_empty();
        Ok(self.state.define_mirrored(slot, chain, &mut draft.attached)?)
    }

    /// The last store attached blocks that waited. Which of them are sent, and in which order, decides the
    /// other plane.
    fn report_attached(&mut self, applying: &mut Applying) -> Result<(), Misfit> {
        if applying.attached.is_empty() || applying.draft.attached.is_empty() {
            return Ok(());
        }
        let waited: FxHashSet<_> = applying.draft.attached.iter().copied().collect();
        while let Some(next) = applying.attached.front() {
            let (hash, size) = (next.block.hash, next.block_size);
            let slot = self.state.find(hash);
            let Some(slot) = slot.filter(|&slot| waited.contains(&(slot, size))) else {
                return Ok(());
            };
            // One change for every place that holds it.
            while let Some(next) = applying.attached.pop_front_if(|next| next.is(hash, size)) {
                self.check_held(slot, &next)?;
            }
            self.attached_visibly((slot, size), &mut applying.draft.transitions);
        }
        Ok(())
    }

    /// What a block is that is about to be stored was sent before: the store itself does not say so, or not
    /// of every place.
    fn attach_first(
        &mut self,
        slot: SlotId,
        place: PlaceId,
        block: &StoredBlock,
        applying: &mut Applying,
    ) -> Result<(), Misfit> {
        while let Some(next) = applying.attached.pop_front_if(|next| next.block.hash == block.hash) {
            // In the place of the store, the copies after it are sent.
            let here = self.state.places.find(next.place.name()) == Some(place);
            if !here || next.block.copies != block.copies {
                self.check_held(slot, &next)?;
            }
            self.define_announced(slot, &next.block, next.block_size, &next.attributes, &mut applying.draft)?;
        }
        Ok(())
    }

    /// Blocks that the other plane has attached, and that did not wait for anything that is known here.
    fn attach_the_rest(&mut self, applying: &mut Applying) -> Result<(), Misfit> {
        while let Some(first) = applying.attached.pop_front() {
            let (hash, size) = (first.block.hash, first.block_size);
            let slot = self.state.find(hash).ok_or(Misfit::Malformed("an unknown block is attached"))?;
            self.check_held(slot, &first)?;
            self.define_announced(
                slot,
                &first.block,
                first.block_size,
                &first.attributes,
                &mut applying.draft,
            )?;
            applying.draft.attached.clear();
            while let Some(next) = applying.attached.pop_front_if(|next| next.is(hash, size)) {
                self.check_held(slot, &next)?;
            }
            self.attached_visibly((slot, size), &mut applying.draft.transitions);
        }
        Ok(())
    }

    /// That a block is attached changes nothing about what is held.
    fn check_held(&self, slot: SlotId, attached: &Attached) -> Result<(), Misfit> {
        let place = self.state.places.find(attached.place.name());
        let copies = place.map_or(0, |place| self.state.copies(slot, place));
        if copies == attached.block.copies { Ok(()) } else { Err(Misfit::Digest) }
    }

    /// What a store says of its group.
    fn learn_group_spec(&mut self, stored: &StoredChange, draft: &mut Draft) {
        let whole = stored.layout != Layout::HashOnly && !has_moved(stored);
        let spec = GroupSpec {
            group: stored.place.group,
            spec_kind: stored.place.spec_kind.as_deref(),
            sliding_window: stored.place.sliding_window,
            block_size: whole.then_some(stored.block_size),
            is_full: is_full(stored.layout, stored.blocks.len()),
            on_device: stored.place.tier == Tier::Device,
        };
        self.learn_group(spec, draft);
    }

    /// The size of all blocks, by the rules that the other plane has it by.
    fn learn_size(&mut self, stored: &StoredChange, draft: &mut Draft) {
        if stored.layout != Layout::Dense || !stored.place.is_main() || has_moved(stored) {
            return;
        }
        if !self.options.semantics.partial_blocks {
            self.learn_main_size(stored.block_size, stored.blocks.len(), draft);
            return;
        }
        if let Some(full) = self.full_size(stored.block_size, stored.blocks.len(), stored.parent) {
            self.learn_full_size(full, draft);
        }
    }

    fn apply_mirrored_removal(
        &mut self,
        place: &mut Arc<Place>,
        blocks: &[RemovedBlock],
        draft: &mut Draft,
    ) -> Result<(), Misfit> {
        let unknown = Misfit::Malformed("something that is not held is removed");
        let id = self.state.places.find(place.name()).ok_or(unknown)?;
        *place = self.state.places.get(id).clone();
        self.counters.blocks_removed += blocks.len() as u64;
        for &RemovedBlock { hash, copies } in blocks {
            let slot = self.state.find(hash).ok_or(unknown)?;
            self.release(slot, hash, id, copies, draft);
        }
        Ok(())
    }

    fn apply_mirrored_clear(&mut self, places: &mut [Arc<Place>], draft: &mut Draft) {
        self.counters.clears += 1;
        for place in places.iter_mut() {
            if let Some(id) = self.state.places.find(place.name()) {
                *place = self.state.places.get(id).clone();
            }
        }
        self.empty(places, false, draft);
    }
}
