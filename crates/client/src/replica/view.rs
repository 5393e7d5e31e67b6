//! What a reader of a replica sees.

use std::fmt;
use std::sync::Arc;

use kvplane_core::{PlaceSeed, Tier};

use super::state::{Entry, State};

/// Where copies lie, in kvplane's word (the tier) and in the engine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// kvplane's word.
    pub tier: Tier,
    /// The engine's name of the medium.
    pub medium: Option<Box<str>>,
    /// `LOCAL` or `REMOTE`, where the engine says so.
    pub locality: Option<Box<str>>,
    /// The secondary tier that owns the copies.
    pub ownership: Option<Box<str>>,
    /// The cache group of a hybrid model.
    pub group: Option<u32>,
    /// What the group's blocks are.
    pub spec_kind: Option<Box<str>>,
    /// The group's sliding window, tokens.
    pub sliding_window: Option<u32>,
}

impl Place {
    /// The place, as it enters a [`kvplane_core::StateDigest`].
    pub fn seed(&self) -> PlaceSeed {
        PlaceSeed::new(
            self.medium.as_deref(),
            self.locality.as_deref(),
            self.ownership.as_deref(),
            self.group,
        )
    }
}

/// The block before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parent {
    /// The plane has not said.
    #[default]
    Unknown,
    /// None: the block begins a prompt.
    Root,
    /// The block of this hash.
    Block(u64),
}

/// One block of a replica.
#[derive(Clone, Copy)]
pub struct Block<'r> {
    state: &'r State,
    entry: &'r Entry,
    hash: u64,
}

impl<'r> Block<'r> {
    pub(super) fn new(state: &'r State, hash: u64, entry: &'r Entry) -> Self {
        Self { state, entry, hash }
    }

    /// The 64 bits that identify it within its stream.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The block before it.
    pub fn parent(&self) -> Parent {
        self.entry.parent
    }

    /// kvplane's hash of its content, comparable between engines; `None` while the plane has not said.
    pub fn content_hash(&self) -> Option<u64> {
        self.entry.content
    }

    /// Its tokens, where they are kept and the engine says which are its own.
    pub fn tokens(&self) -> Option<&'r [u32]> {
        self.entry.tokens.as_deref()
    }

    /// Where copies lie, and how many. None: a hole that held blocks build on.
    pub fn copies(&self) -> impl Iterator<Item = (&'r Arc<Place>, u32)> + use<'r> {
        self.state.copies(self.entry)
    }

    /// Whether a tier holds it.
    pub fn is_in(&self, tier: Tier) -> bool {
        self.copies().any(|(place, _)| place.tier == tier)
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("hash", &format_args!("{:016x}", self.hash))
            .field("parent", &self.parent())
            .field("content_hash", &self.content_hash())
            .field("copies", &self.copies().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// How many blocks each tier holds. A block that lies in two places of a tier counts twice, as in the plane's
/// status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCounts([u64; Tier::ALL.len()]);

impl BlockCounts {
    /// Blocks in a tier.
    pub fn of(self, tier: Tier) -> u64 {
        self.0[tier.index()]
    }

    /// Blocks in all tiers.
    pub fn total(self) -> u64 {
        self.0.iter().sum()
    }

    /// Every tier, warmest first, with its blocks.
    pub fn iter(self) -> impl Iterator<Item = (Tier, u64)> {
        Tier::ALL.into_iter().map(move |tier| (tier, self.of(tier)))
    }

    pub(super) fn add(&mut self, tier: Tier, blocks: u64) {
        self.0[tier.index()] += blocks;
    }
}
