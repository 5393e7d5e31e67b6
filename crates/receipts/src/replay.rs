//! What an engine announced between a decision and its delivery.

use rustc_hash::{FxHashMap, FxHashSet};

/// One thing that a stream showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Blocks in a row became resident: the engine's hash of each, and the hash of its content.
    Stored(Vec<(u64, u64)>),
    /// Blocks went, by the engine's hashes.
    Removed(Vec<u64>),
    /// Everything went.
    Cleared,
}

/// A stream's entries after the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// All of them, in order.
    Whole(Vec<Happening>),
    /// The engine began a new life.
    NewLife,
    /// Some are not kept any more.
    Expired,
}

/// What became of the prompt's blocks, by what the engine announced.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    cleared: bool,
    /// Contents that were stored.
    stored: FxHashSet<u64>,
    /// Contents that went; the engine's hash of each is known from when it was stored again, or before.
    removed: FxHashSet<u64>,
}

impl Traced {
    /// Follows the blocks with these contents.
    pub(crate) fn of(happenings: &[Happening], contents: &[u64]) -> Self {
        let wanted: FxHashSet<u64> = contents.iter().copied().collect();
        let mut traced = Self::default();
        let mut names: FxHashMap<u64, u64> = FxHashMap::default();
        for happening in happenings {
            if let Happening::Stored(blocks) = happening {
                let ours = blocks.iter().filter(|(_, content)| wanted.contains(content));
                for &(hash, content) in ours {
                    names.insert(hash, content);
                    traced.stored.insert(content);
                }
            }
        }
        for happening in happenings {
            match happening {
                Happening::Stored(_) => {}
                Happening::Removed(hashes) => {
                    traced.removed.extend(hashes.iter().filter_map(|hash| names.get(hash)));
                }
                Happening::Cleared => traced.cleared = true,
            }
        }
        traced
    }

    /// Whether a block was let go of.
    pub(crate) fn went(&self, content: u64) -> bool {
        self.cleared || self.removed.contains(&content)
    }

    /// Whether a block was announced.
    pub(crate) fn came(&self, content: u64) -> bool {
        self.stored.contains(&content)
    }
}
