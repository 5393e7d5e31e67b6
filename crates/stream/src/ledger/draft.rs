//! An entry that is being written.

use crate::change::{Change, Transition};
use crate::state::{Attached, SlotId};

/// What the operations of one entry have done so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) changes: Vec<Change>,
    pub(crate) transitions: Vec<Transition>,
    /// Scratch: blocks that waited and were attached.
    pub(crate) attached: Vec<Attached>,
    /// Hashes of device blocks of the main group that came without their tokens.
    pub(crate) unresolved: Vec<u64>,
    /// Hashes of blocks that left a place for good.
    pub(crate) left: Vec<u64>,
    /// Blocks that were held before it was known what they are.
    pub(crate) joined: Vec<SlotId>,
}
