//! What `SGLang`'s hashes tell beyond its events.
//!
//! Since 0.5.6 a page's hash is a chain over its tokens, and can be computed again. The event of a page names
//! its salt and, since 0.5.22, its adapter; but a request may have been kept apart by a key of its own
//! (`extra_key`), which is in the hash and in no field. Two prompts with equal tokens then have different
//! pages, and only the hash says so.

use kvplane_core::{
    Reason, sglang_event_hash, sglang_namespaced_hash, sglang_page_digest, sglang_salt_digest,
};
use kvplane_wire::{Batch, Hash, OwnedExtraKey, Stored};

use super::{Interpreter, Reading};
use crate::clock::Now;
use crate::ledger::Ledger;
use crate::persist::persist_enum;
use crate::state::ExtraKeys;

/// How the engine's hashes came out when they were computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PageHashes {
    /// None has been.
    #[default]
    Unknown,
    /// At least one was the same: the engine hashes like this, and one that differs has a namespace that is
    /// not named.
    Proven,
    /// All were different: perhaps a release that hashes a page's tokens alone, mostly without a parent.
    Foreign,
}

persist_enum!(PageHashes { Unknown = 0, Proven = 1, Foreign = 2 });

impl Interpreter {
    /// Whether the first block of a prompt belongs to a namespace that its store does not name.
    pub(super) fn has_hidden_namespace(
        &mut self,
        ledger: &mut Ledger,
        batch: &Batch<'_, '_>,
        stored: &Stored<'_>,
        reading: &mut Reading,
        now: Now,
    ) -> bool {
        let begins = stored.parent.is_none() && stored.lora_name.is_none();
        if !self.options.semantics.sglang_hashes || !begins {
            return false;
        }
        let page = batch.tokens(stored).slice(0, stored.block_size as usize);
        let (Some(page), Some(hash)) = (page, batch.stored_hashes(stored).first()) else { return false };
        let salt = stored.cache_salt.map(sglang_salt_digest);
        let computed = sglang_event_hash(&sglang_page_digest(salt.as_ref(), page));
        let announced = hash.bits.cast_signed();
        // In the dynamo format a salt is mixed in once more.
        let namespaced = || sglang_namespaced_hash(computed, None, stored.cache_salt);
        let same = computed == announced || (salt.is_some() && namespaced() == announced);
        match (self.epoch.page_hashes, same) {
            (PageHashes::Proven, same) => !same,
            (PageHashes::Unknown, true) => {
                self.epoch.page_hashes = PageHashes::Proven;
                false
            }
            (PageHashes::Unknown | PageHashes::Foreign, false) => {
                self.epoch.page_hashes = PageHashes::Foreign;
                ledger.degrade(Reason::UnprovenHash, now);
                false
            }
            (PageHashes::Foreign, true) => {
                // So those before had a namespace of their own, and were taken for plain ones.
                self.epoch.page_hashes = PageHashes::Proven;
                self.forget_state();
                ledger.resolve(Reason::UnprovenHash);
                ledger.degrade(Reason::History, now);
                ledger.drop_state(Reason::UnprovenHash, &mut reading.draft);
                false
            }
        }
    }
}

/// What stands for a namespace that is not named: nothing else has it, so the block matches no question.
pub(super) fn hidden_namespace(hash: Hash) -> ExtraKeys {
    std::iter::once(OwnedExtraKey::Text(format!("unnamed namespace of {:016x}", hash.bits))).collect()
}
