//! One dictionary entry.

use std::ops::{Index, IndexMut};

use super::chain::Chain;
use super::few::Few;
use super::place::PlaceId;
use crate::persist::{Damaged, Persist, Source, persist};

/// Copies of a block in one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    pub(super) place: PlaceId,
    pub(super) copies: u32,
    /// A copy stands for a chunk that ends with this block: this many of the chunk's blocks are counted with
    /// it. 0 where it is just a block.
    pub(super) covers: u16,
    /// The place's generation when it was recorded; void once the place has moved on.
    pub(super) generation: u32,
}

persist!(Holding { place, copies, covers, generation });

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) hash: u64,
    /// Attached chains elsewhere that name this block as their parent; [`VACANT`] where there is no block.
    pub(super) children: u32,
    /// The state's hole version at which the whole chain above was known to be held.
    pub(super) intact: u32,
    pub(super) chains: Few<Chain>,
    pub(super) holdings: Few<Holding>,
}

/// More children than there can be slots.
const VACANT: u32 = u32::MAX;

/// What every block of every engine takes: it grows by decision alone.
const _: () = assert!(size_of::<Slot>() == 80);

impl Slot {
    pub(super) fn new(hash: u64) -> Self {
        Self { hash, children: 0, intact: 0, chains: Few::None, holdings: Few::None }
    }

    pub(super) fn vacant() -> Self {
        Self { children: VACANT, ..Self::new(0) }
    }

    pub(super) fn in_use(&self) -> bool {
        self.children != VACANT
    }
}

impl Persist for Slot {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { hash, children, intact, chains, holdings } = self;
        hash.save(out);
        self.in_use().save(out);
        if self.in_use() {
            children.save(out);
        } else {
            0_u32.save(out);
        }
        intact.save(out);
        chains.save(out);
        holdings.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let (hash, in_use, children) = (u64::load(from)?, bool::load(from)?, u32::load(from)?);
        if children == VACANT {
            return Err(Damaged("too many blocks build on one"));
        }
        Ok(Self {
            hash,
            children: if in_use { children } else { VACANT },
            intact: Persist::load(from)?,
            chains: Persist::load(from)?,
            holdings: Persist::load(from)?,
        })
    }
}

/// All slots. They lie in pieces of one size: growing copies nothing, and never takes twice the memory. Only
/// the first piece begins small, for streams that hold next to nothing.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pieces: Vec<Vec<Slot>>,
    len: usize,
}

impl Slots {
    const PIECE: usize = 256;

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, at: usize) -> Option<&Slot> {
        self.pieces.get(at / Self::PIECE)?.get(at % Self::PIECE)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.pieces.iter().flatten()
    }

    pub(super) fn push(&mut self, slot: Slot) {
        if self.len.is_multiple_of(Self::PIECE) {
            let room = if self.pieces.is_empty() { 0 } else { Self::PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(slot);
            self.len += 1;
        }
    }

    pub(super) fn swap(&mut self, a: usize, b: usize) {
        if a != b {
            let slot = std::mem::replace(&mut self[a], Slot::vacant());
            let slot = std::mem::replace(&mut self[b], slot);
            self[a] = slot;
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.pieces.truncate(len.div_ceil(Self::PIECE));
        let rest = len % Self::PIECE;
        if let Some(piece) = self.pieces.last_mut().filter(|_| rest > 0) {
            piece.truncate(rest);
        }
        self.len = self.len.min(len);
    }
}

/// In their order: they are found by their numbers.
impl Persist for Slots {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { pieces, len } = self;
        (*len as u64).save(out);
        pieces.iter().flatten().for_each(|slot| slot.save(out));
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut slots = Self::default();
        for _ in 0..u64::load(from)? {
            slots.push(Slot::load(from)?);
        }
        Ok(slots)
    }
}

impl Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, at: usize) -> &Slot {
        &self.pieces[at / Self::PIECE][at % Self::PIECE]
    }
}

impl IndexMut<usize> for Slots {
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.pieces[at / Self::PIECE][at % Self::PIECE]
    }
}
