//! What is held: blocks by hash, and for each where its copies lie.
//!
//! ```text
//!   hash ──> entry ┌ parent, content, tokens    what is known of the block
//!                  ├ copies                     (place, number): held while there are any
//!                  └ children                   entries that name it as their parent
//! ```
//!
//! An entry without copies is a hole. It stays while others build on it, so that a chain can be walked to its
//! root.

use std::sync::Arc;

use kvplane_core::{PlaceSeed, StateDigest, Tier};
use kvplane_proto::kvplane::v1 as proto;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::view::{Block, BlockCounts, Parent, Place};
use crate::error::ReplicaError;

/// More places than a plane records for a stream; what is beyond is a defect.
const MAX_PLACES: usize = 4096;

/// A place's number in this state.
type PlaceId = u16;

/// The residency of one stream.
#[derive(Debug, Default)]
pub(super) struct State {
    places: Vec<Known>,
    blocks: FxHashMap<u64, Entry>,
}

#[derive(Debug)]
struct Known {
    place: Arc<Place>,
    seed: PlaceSeed,
    blocks: u64,
    digest: StateDigest,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// It was described, and is not just named by others.
    known: bool,
    pub(super) parent: Parent,
    pub(super) content: Option<u64>,
    pub(super) tokens: Option<Box<[u32]>>,
    copies: SmallVec<[(PlaceId, u32); 2]>,
    children: u32,
}

impl State {
    pub(super) fn digest(&self) -> StateDigest {
        self.places.iter().fold(StateDigest::default(), |sum, known| sum.combine(known.digest))
    }

    pub(super) fn counts(&self) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for known in &self.places {
            counts.add(known.place.tier, known.blocks);
        }
        counts
    }

    pub(super) fn holds(&self, hash: u64) -> bool {
        self.blocks.get(&hash).is_some_and(|entry| !entry.copies.is_empty())
    }

    /// A block that is held, or that held ones build on.
    pub(super) fn get(&self, hash: u64) -> Option<Block<'_>> {
        self.blocks.get(&hash).filter(|entry| entry.known).map(|entry| Block::new(self, hash, entry))
    }

    pub(super) fn held(&self) -> impl Iterator<Item = Block<'_>> {
        let held = self.blocks.iter().filter(|(_, entry)| !entry.copies.is_empty());
        held.map(|(&hash, entry)| Block::new(self, hash, entry))
    }

    pub(super) fn copies<'s>(&'s self, entry: &'s Entry) -> impl Iterator<Item = (&'s Arc<Place>, u32)> {
        entry.copies.iter().map(|&(place, copies)| (&self.places[usize::from(place)].place, copies))
    }

    /// Does what an event says. Returns what must be dropped where nobody waits for it.
    pub(super) fn apply(
        &mut self,
        kind: &proto::event::Kind,
        keep_tokens: bool,
    ) -> Result<Option<State>, ReplicaError> {
        use proto::event::Kind;
        match kind {
            Kind::Stored(stored) => self.store(stored, keep_tokens).map(|()| None),
            Kind::Removed(removed) => self.remove(removed).map(|()| None),
            Kind::Cleared(cleared) => Ok(self.clear(&cleared.places)),
            Kind::Dropped(_) => Ok(Some(std::mem::take(self))),
        }
    }

    /// Blocks are held, or described: `copies` is what there is after it.
    pub(super) fn store(&mut self, stored: &proto::Stored, keep_tokens: bool) -> Result<(), ReplicaError> {
        let place = stored.place.as_ref().map(|place| self.place_for(place)).transpose()?;
        for block in &stored.blocks {
            if place.is_none() && block.copies > 0 {
                return Err(ReplicaError::Malformed("copies without a place"));
            }
            let entry = self.blocks.entry(block.hash).or_default();
            entry.known = true;
            entry.content = block.content_hash.or(entry.content);
            if keep_tokens && !block.token_ids.is_empty() {
                entry.tokens = Some(Box::from(&block.token_ids[..]));
            }
            if let Some(place) = place {
                set_copies(&mut self.places[usize::from(place)], place, block.hash, entry, block.copies);
            }
            let parent = match (block.root, block.parent) {
                (true, _) => Parent::Root,
                (false, Some(parent)) => Parent::Block(parent),
                // Not said: what was known before still holds.
                (false, None) => entry.parent,
            };
            let before = std::mem::replace(&mut entry.parent, parent);
            if before != parent {
                if let Parent::Block(parent) = parent {
                    self.blocks.entry(parent).or_default().children += 1;
                }
                self.let_go(before);
            }
        }
        Ok(())
    }

    fn remove(&mut self, removed: &proto::Removed) -> Result<(), ReplicaError> {
        let place = removed.place.as_ref().ok_or(ReplicaError::Malformed("a removal without a place"))?;
        let place = self.place_for(place)?;
        for block in &removed.blocks {
            let Some(entry) = self.blocks.get_mut(&block.hash) else {
                return Err(ReplicaError::Malformed("a removal of an unknown block"));
            };
            set_copies(&mut self.places[usize::from(place)], place, block.hash, entry, block.copies);
            self.release(block.hash);
        }
        Ok(())
    }

    /// Empties exactly the places named.
    fn clear(&mut self, places: &[proto::Place]) -> Option<State> {
        let gone: SmallVec<[PlaceId; 8]> = places.iter().filter_map(|place| self.find(place)).collect();
        let others_hold = self
            .places
            .iter()
            .enumerate()
            .any(|(at, known)| known.blocks > 0 && !gone.contains(&(at as u16)));
        if gone.is_empty() {
            return None;
        }
        if !others_hold {
            return Some(std::mem::take(self));
        }
        let mut emptied = Vec::new();
        for (&hash, entry) in &mut self.blocks {
            let before = entry.copies.len();
            entry.copies.retain(|(place, _)| !gone.contains(place));
            if before > 0 && entry.copies.is_empty() {
                emptied.push(hash);
            }
        }
        for place in gone {
            let known = &mut self.places[usize::from(place)];
            known.blocks = 0;
            known.digest = StateDigest::default();
        }
        for hash in emptied {
            self.release(hash);
        }
        None
    }

    /// Forgets an entry that is not held and that nobody builds on, and the holes that were kept only for it.
    fn release(&mut self, hash: u64) {
        let mut next = Some(hash);
        while let Some(hash) = next.take() {
            let free = |entry: &Entry| entry.copies.is_empty() && entry.children == 0;
            if !self.blocks.get(&hash).is_some_and(free) {
                return;
            }
            let Some(entry) = self.blocks.remove(&hash) else { return };
            if let Parent::Block(parent) = entry.parent
                && let Some(above) = self.blocks.get_mut(&parent)
            {
                above.children = above.children.saturating_sub(1);
                next = Some(parent);
            }
        }
    }

    /// A block has another parent than it was said to have.
    fn let_go(&mut self, parent: Parent) {
        let Parent::Block(parent) = parent else { return };
        if let Some(above) = self.blocks.get_mut(&parent) {
            above.children = above.children.saturating_sub(1);
            self.release(parent);
        }
    }

    fn find(&self, message: &proto::Place) -> Option<PlaceId> {
        self.places.iter().position(|known| known.place.is(message)).map(|at| at as PlaceId)
    }

    fn place_for(&mut self, message: &proto::Place) -> Result<PlaceId, ReplicaError> {
        if let Some(id) = self.find(message) {
            // What the group's blocks are may be learnt later.
            let place = &mut self.places[usize::from(id)].place;
            if place.spec_kind.is_none() && message.spec_kind.is_some() {
                *place = Arc::new(Place::from(message));
            }
            return Ok(id);
        }
        if self.places.len() >= MAX_PLACES {
            return Err(ReplicaError::Malformed("more places than any engine has"));
        }
        let place = Arc::new(Place::from(message));
        self.places.push(Known { seed: place.seed(), place, blocks: 0, digest: StateDigest::default() });
        Ok((self.places.len() - 1) as PlaceId)
    }
}

fn set_copies(known: &mut Known, place: PlaceId, hash: u64, entry: &mut Entry, copies: u32) {
    let at = entry.copies.iter().position(|&(other, _)| other == place);
    let old = at.map_or(0, |at| entry.copies[at].1);
    match (at, copies) {
        (Some(at), 0) => drop(entry.copies.swap_remove(at)),
        (Some(at), _) => entry.copies[at].1 = copies,
        (None, 0) => {}
        (None, _) => entry.copies.push((place, copies)),
    }
    known.digest.change(known.seed, hash, old, copies);
    known.blocks = known.blocks + u64::from(copies > 0) - u64::from(old > 0);
}

impl From<&proto::Place> for Place {
    fn from(message: &proto::Place) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        Self {
            tier: match message.tier() {
                proto::Tier::Device => Tier::Device,
                proto::Tier::Host => Tier::Host,
                proto::Tier::Disk => Tier::Disk,
                proto::Tier::Remote => Tier::Remote,
                proto::Tier::Unknown => Tier::Unknown,
            },
            medium: text(&message.medium),
            locality: text(&message.locality),
            ownership: text(&message.ownership),
            group: message.group,
            spec_kind: text(&message.spec_kind),
            sliding_window: message.sliding_window,
        }
    }
}

impl Place {
    fn is(&self, message: &proto::Place) -> bool {
        self.group == message.group
            && self.medium.as_deref() == message.medium.as_deref()
            && self.locality.as_deref() == message.locality.as_deref()
            && self.ownership.as_deref() == message.ownership.as_deref()
    }
}
