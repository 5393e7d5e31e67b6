//! What the engine says of itself, held against what is configured.

use kvplane_core::Reason;

use super::Journal;
use crate::clock::Now;

impl Journal {
    /// The engine says that its blocks have so many tokens. True if that contradicts the configured number, and did not before.
    pub fn describe_block_size(&mut self, block_size: u32, now: Now) -> bool {
        let contradicts = self.options.block_size.is_some_and(|configured| configured != block_size);
        match (contradicts, self.misdescribed_since_ms) {
            (true, None) => {
                self.misdescribed_since_ms = Some(now.unix_ms);
                self.counters.block_size_contradictions += 1;
                self.degrade_source(Reason::BlockSize, now);
                true
            }
            (false, Some(_)) => {
                self.misdescribed_since_ms = None;
                self.resolve_source(Reason::BlockSize);
                false
            }
            (true, Some(_)) | (false, None) => false,
        }
    }

    /// The state is known whole again. What the engine says of itself is as wrong as before.
    pub(super) fn restore_trust(&mut self) {
        self.trust.restore();
        if let Some(since_ms) = self.misdescribed_since_ms {
            self.trust.degrade(Reason::BlockSize, since_ms);
        }
    }
}
