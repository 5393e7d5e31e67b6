//! Whether the size of a store's blocks contradicts what is configured or was learnt.

use kvplane_core::Reason;
use kvplane_wire::Stored;

use super::{Interpreter, Reading};
use crate::clock::Now;
use crate::ledger::{Ledger, SizeVerdict};

impl Interpreter {
    /// Holds the size of a store's main blocks against what is known of it.
    pub(super) fn check_size(
        &mut self,
        ledger: &mut Ledger,
        stored: &Stored<'_>,
        blocks: usize,
        reading: &mut Reading,
        now: Now,
    ) {
        if self.options.semantics.partial_blocks {
            self.check_partial_size(ledger, stored, blocks, reading, now);
            return;
        }
        match ledger.learn_main_size(stored.block_size, blocks, &mut reading.draft) {
            SizeVerdict::Other => {
                let is_first = !ledger.trust().has(Reason::BlockSize);
                self.contradict_size(ledger, now);
                ledger.sides.suspects_size = is_first && ledger.is_fraction(stored.block_size, blocks);
            }
            SizeVerdict::Same | SizeVerdict::NotFull if ledger.sides.suspects_size => {
                // What contradicted was not full.
                ledger.sides.suspects_size = false;
                if self.misdescribed_since_ms.is_none() {
                    ledger.resolve(Reason::BlockSize);
                }
                ledger.expect_partial_blocks(&mut reading.draft);
            }
            SizeVerdict::Same | SizeVerdict::NotFull => {}
        }
    }

    /// Blocks that others build on are full, and tell the size of all; the last one of a prompt may be
    /// smaller.
    fn check_partial_size(
        &mut self,
        ledger: &mut Ledger,
        stored: &Stored<'_>,
        blocks: usize,
        reading: &mut Reading,
        now: Now,
    ) {
        let parent = stored.parent.map(|parent| parent.bits);
        if let Some(full) = ledger.full_size(stored.block_size, blocks, parent) {
            ledger.learn_full_size(full, &mut reading.draft);
            if ledger.block_size() != Some(full) {
                self.contradict_size(ledger, now);
            }
        }
        if ledger.block_size().is_some_and(|size| stored.block_size > size) {
            self.contradict_size(ledger, now);
        }
    }

    fn contradict_size(&mut self, ledger: &mut Ledger, now: Now) {
        ledger.counters.block_size_contradictions += 1;
        if self.options.block_size.is_some() {
            ledger.degrade(Reason::BlockSize, now);
        }
    }
}
