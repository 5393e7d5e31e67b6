//! One dictionary entry.

use smallvec::SmallVec;

use super::chain::Chain;
use super::place::PlaceId;

/// Copies of a block in one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    pub(super) place: PlaceId,
    pub(super) copies: u32,
    /// A copy stands for a chunk that ends with this block: so many of the chunk's blocks are counted with it. 0 where it is just a block.
    pub(super) covers: u16,
    /// The place's generation when it was recorded; void once the place has moved on.
    pub(super) generation: u32,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) hash: u64,
    pub(super) in_use: bool,
    /// Attached chains elsewhere that name this block as their parent.
    pub(super) children: u32,
    /// The cut in which this slot has been taken care of.
    pub(super) stamp: u32,
    /// The state's hole version at which the whole chain above was known to be held.
    pub(super) intact: u32,
    pub(super) chains: SmallVec<[Chain; 1]>,
    pub(super) holdings: SmallVec<[Holding; 1]>,
}

impl Slot {
    /// What a slot costs without its chains' own allocations, its index entry included.
    pub(super) const COST: usize = std::mem::size_of::<Slot>() + 24;

    pub(super) fn new(hash: u64, stamp: u32) -> Self {
        Self {
            hash,
            in_use: true,
            children: 0,
            stamp,
            intact: 0,
            chains: SmallVec::new(),
            holdings: SmallVec::new(),
        }
    }

    pub(super) fn vacant(stamp: u32) -> Self {
        Self { in_use: false, ..Self::new(0, stamp) }
    }
}
