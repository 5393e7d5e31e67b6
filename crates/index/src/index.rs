//! The index: one writer at a time behind a lock, readers beside it.

use std::sync::Arc;

use kvplane_core::{Marks, Tier};

use crate::reader::Reader;
use crate::shared::Shared;
use crate::sync::{Mutex, hand_over};
use crate::writer::Writer;
use crate::{Block, Operation, Options, Refused, Slot, Stats};

/// Blocks that [`Index::apply`] changes before it hands the lock over: a fraction of a millisecond. An
/// operation with more blocks is not divided. Few under loom and miri, so that tests reach it.
const HOLD: usize = if cfg!(any(loom, miri)) { 4 } else { 1024 };

/// All streams of one keyspace.
#[derive(Debug)]
pub struct Index {
    // Dropped first: it frees what readers could see, and readers keep the index.
    pub(crate) writer: Mutex<Writer>,
    pub(crate) shared: Arc<Shared>,
}

impl Index {
    /// An empty index.
    pub fn new(options: &Options) -> Arc<Self> {
        let shared = Arc::new(Shared::new());
        let writer = Mutex::new(Writer::new(shared.clone(), options));
        Arc::new(Self { writer, shared })
    }

    /// A stream comes. `owner` is given back with answers; it must be unique among the streams of the index.
    pub fn add_stream(&self, owner: u64) -> Slot {
        self.writer.lock().add_stream(owner)
    }

    /// A stream goes: it is in no answer that is begun after this. [`Self::reclaim`] frees its memory.
    pub fn remove_stream(&self, slot: Slot) {
        self.writer.lock().remove_stream(slot);
    }

    /// Applies the changes of a batch in order, under one lock. A long batch hands the lock over from time to
    /// time to the next that waits for it. Stops after an operation that was refused: pass the iterator by
    /// reference to go on with the rest.
    pub fn apply<'a>(
        &self,
        slot: Slot,
        operations: impl IntoIterator<Item = Operation<'a>>,
    ) -> Result<(), Refused> {
        let mut operations = operations.into_iter();
        let mut next = operations.next();
        while next.is_some() {
            let mut writer = self.writer.lock();
            let mut work = 0;
            while work < HOLD
                && let Some(operation) = next
            {
                work += 1 + operation.len();
                writer.apply(slot, &operation)?;
                next = operations.next();
            }
            hand_over(writer);
        }
        Ok(())
    }

    /// Consecutive blocks got a copy in a tier. `parent` is the block before the first, `None` at the start
    /// of a prompt. Each call adds a copy; [`Self::remove`] takes one away.
    pub fn store(
        &self,
        slot: Slot,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[Block],
    ) -> Result<(), Refused> {
        if tier == Tier::Unknown {
            return Ok(());
        }
        self.writer.lock().store(slot, tier as usize, parent, blocks)
    }

    /// Blocks lost a copy in a tier. Says how many were not there.
    pub fn remove(&self, slot: Slot, tier: Tier, hashes: &[u64]) -> usize {
        if tier == Tier::Unknown {
            return 0;
        }
        self.writer.lock().remove(slot, tier as usize, hashes)
    }

    /// Which sides hold blocks of the stream, as they do now: each block's marks and no others. They go when
    /// the stream loses the block from its last tier, and count again when they are set again. Of a block
    /// that the stream does not hold, nothing is kept. Where two hashes name one block, what was set last
    /// counts, until either goes.
    pub fn set_sides(&self, slot: Slot, marks: &[(u64, Marks)]) -> Result<(), Refused> {
        if marks.is_empty() {
            return Ok(());
        }
        self.writer.lock().set_sides(slot, marks)
    }

    /// Nothing of the stream is held any more, in no answer that is begun after this. [`Self::reclaim`] frees
    /// the memory.
    pub fn clear(&self, slot: Slot) {
        self.writer.lock().clear(slot);
    }

    /// Frees about this many blocks of streams that went or were cleared. Says whether there are more: some
    /// may have to wait until a question is answered that was asked before. Stores do a little of this by
    /// themselves.
    pub fn reclaim(&self, blocks: usize) -> bool {
        self.writer.lock().reclaim(blocks)
    }

    /// What the index holds.
    pub fn stats(&self) -> Stats {
        self.writer.lock().stats()
    }

    /// Blocks that a stream holds in any tier.
    pub fn blocks(&self, slot: Slot) -> usize {
        self.writer.lock().blocks(slot)
    }

    /// A reader. Making one takes a lock; asking does not.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::new(self.clone())
    }
}
