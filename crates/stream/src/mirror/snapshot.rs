//! A whole state, gathered from what another plane sends of it, apart from the stream until it is complete.

use std::sync::Arc;

use kvplane_core::{Cursor, Epoch};

use super::{MirrorBlocks, MirrorChunk, MirrorEnd, Misfit, mirrored_chain};
use crate::change::{StoredBlock, Transition};
use crate::ledger::{Groups, Snapshot};
use crate::options::Semantics;
use crate::state::{Image, Limits, Parent, State};
use crate::tokens::Tokens;

/// A cut of its own: no journal counts as far.
const CUT: u32 = u32::MAX;

/// No plane counts as far: its numbers begin at unix milliseconds, shifted by 20 bits. Above it there is no
/// room for the next ones.
const HIGHEST: u64 = 1 << 62;

/// A snapshot on its way.
#[derive(Debug)]
pub struct MirrorSnapshot {
    cursor: Cursor,
    next_chunk: u32,
    state: State,
    semantics: Semantics,
    untranslatable: bool,
    end: Option<MirrorEnd>,
}

/// A whole state, found right.
#[derive(Debug)]
pub struct MirroredState {
    pub(crate) cursor: Cursor,
    transitions: Vec<Transition>,
    pub(crate) state: State,
    pub(crate) untranslatable: bool,
    pub(crate) end: MirrorEnd,
}

impl MirroredState {
    /// Takes out the state as transitions from nothing, for a reader that has to start over with it.
    pub fn split(mut self) -> (Self, Vec<Transition>) {
        let transitions = std::mem::take(&mut self.transitions);
        (self, transitions)
    }
}

impl MirrorSnapshot {
    /// A snapshot of what is at `cursor`.
    pub fn new(cursor: Cursor, limits: Limits, semantics: Semantics) -> Self {
        let state = State::new(limits);
        Self { cursor, next_chunk: 0, state, semantics, untranslatable: false, end: None }
    }

    /// Takes the next chunk. True when it was the last, and the state is right.
    pub fn chunk(&mut self, cursor: Cursor, chunk: MirrorChunk) -> Result<bool, Misfit> {
        if cursor.epoch != self.cursor.epoch {
            return Err(Misfit::Epoch);
        }
        if cursor != self.cursor || chunk.index != self.next_chunk || self.end.is_some() {
            return Err(Misfit::Order);
        }
        self.next_chunk = self.next_chunk.saturating_add(1);
        for blocks in &chunk.blocks {
            self.add(blocks)?;
        }
        self.end = chunk.end;
        let highest_epoch = Epoch::from_raw(HIGHEST >> 20);
        if let Some(end) = &self.end
            && (cursor.epoch > highest_epoch || cursor.sequence > HIGHEST || end.last_event_id > HIGHEST)
        {
            return Err(Misfit::Malformed("numbers that leave no room for the next ones"));
        }
        match &self.end {
            None => Ok(false),
            Some(end) if end.digest == self.state.digest() => Ok(true),
            Some(_) => Err(Misfit::Digest),
        }
    }

    fn add(&mut self, part: &MirrorBlocks) -> Result<(), Misfit> {
        let place = match &part.place {
            None => None,
            Some(place) => Some(self.state.places.mirrored_place(place).ok_or(Misfit::Budget)?),
        };
        for block in &part.blocks {
            let slot = self.state.slot_for(block.hash)?;
            if let Some(wide) = block.wide() {
                self.state.set_wide(block.hash, wide);
            }
            if let Some(chain) = mirrored_chain(block, part.block_size, &part.attributes) {
                check(block)?;
                self.state.define_mirrored(slot, chain, &mut Vec::new())?;
            }
            match place {
                Some(place) => self.state.set_copies(slot, place, block.copies),
                None if block.copies > 0 => return Err(Misfit::Malformed("copies without a place")),
                None => {}
            }
            let proves = part.place.as_ref().is_some_and(|place| place.proves_ancestors());
            let lacks_tokens = block.tokens().is_none_or(Tokens::is_empty);
            self.untranslatable |= proves && (block.parent().is_none() || lacks_tokens);
        }
        Ok(())
    }

    /// The state, once the last chunk came; `None` before. Takes its time.
    pub fn finish(mut self) -> Option<MirroredState> {
        let end = self.end?;
        let groups = Groups::reported(end.groups.clone());
        self.state.places.set_main(groups.main_group());
        let mut image = Image::default();
        self.state.begin_cut(CUT);
        if let Ok(Some(places)) = self.state.step_cut(CUT, usize::MAX, &mut image.blocks) {
            image.places = places;
        }
        let snapshot = Snapshot {
            cursor: self.cursor,
            engine_sequence: end.engine_sequence,
            engine_digest: end.engine_digest,
            position: None,
            known_from: end.known_from,
            age: end.age,
            trust: end.trust.clone(),
            continuity: end.continuity,
            last_event_id: end.last_event_id,
            digest: end.digest,
            untranslatable: self.untranslatable,
            block_size: end.block_size,
            partial_blocks: self.semantics.partial_blocks || end.partial_blocks,
            groups: end.groups.clone(),
            resumption: Arc::new(end.resumption.clone()),
            image,
        };
        let transitions = snapshot.as_transitions();
        Some(MirroredState {
            cursor: self.cursor,
            transitions,
            state: self.state,
            untranslatable: self.untranslatable,
            end,
        })
    }
}

/// Whether what is said of a block can be.
pub(crate) fn check(block: &StoredBlock) -> Result<(), Misfit> {
    if block.parent() == Some(Parent::Root) && block.content().is_none() {
        return Err(Misfit::Malformed("the first block of a prompt without its content"));
    }
    Ok(())
}
