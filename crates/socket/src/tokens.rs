//! Tokens of descriptors, by which an event finds its owner.

use std::collections::HashMap;

/// The tokens of one thread. None is ever used again, so that a late event finds nobody rather than somebody
/// else.
#[derive(Default)]
pub(crate) struct Tokens {
    last: usize,
    owners: HashMap<usize, u64>,
}

impl Tokens {
    /// A token for a descriptor.
    pub(crate) fn take(&mut self, owner: u64) -> usize {
        self.last += 1;
        self.owners.insert(self.last, owner);
        self.last
    }

    /// A token's descriptor is closed.
    pub(crate) fn release(&mut self, token: usize) {
        self.owners.remove(&token);
    }

    /// All descriptors of an owner are closed.
    pub(crate) fn release_all(&mut self, owner: u64) {
        self.owners.retain(|_, other| *other != owner);
    }

    /// Whose descriptor has a token.
    pub(crate) fn owner(&self, token: usize) -> Option<u64> {
        self.owners.get(&token).copied()
    }
}
