//! One block of a rank.

use super::super::lies::Lies;
use crate::sink::Withheld;
use kvplane_core::Tier;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// Where a block lies: a bit for every tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Places(u8);

impl Places {
    /// It left the device, and the operator says that what does so is kept behind it.
    const LEFT: u8 = 1 << Tier::ALL.len();
    const DEVICE: u8 = 1 << Tier::Device as u8;
    const BEHIND: u8 = 1 << Tier::Host as u8 | 1 << Tier::Disk as u8;

    pub(super) fn add(&mut self, tier: Tier) {
        self.0 |= 1 << tier as u8;
        if tier == Tier::Device {
            self.0 &= !Self::LEFT;
        }
    }

    /// True if it was there.
    pub(super) fn remove(&mut self, tier: Tier) -> bool {
        let was = self.0;
        self.0 &= !(1 << tier as u8);
        self.0 != was
    }

    /// It is not taken to lie behind the device any more.
    pub(super) fn give_up(&mut self) {
        self.0 &= !Self::LEFT;
    }

    /// It is taken to lie behind the device from now on.
    pub(super) fn leave(&mut self) {
        self.0 |= Self::LEFT;
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn warmest(self) -> Option<Lies> {
        match self.0 {
            0 => None,
            bits if bits & Self::DEVICE != 0 => Some(Lies::Device),
            bits if bits & Self::BEHIND != 0 => Some(Lies::Behind),
            bits if bits & Self::LEFT != 0 => Some(Lies::Left),
            _ => Some(Lies::Elsewhere),
        }
    }
}

/// What is known of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Its hash: something builds on it.
    Hash,
    /// What it is, and not all that comes before it.
    Itself,
    /// Everything: `fingerprint`, `tokens` and `withheld` are right.
    Whole,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) hash: u64,
    pub(super) content: u64,
    pub(super) fingerprint: u64,
    /// From the start of the prompt.
    pub(super) tokens: u32,
    pub(super) size: u32,
    /// [`NONE`] at the start of a prompt.
    pub(super) parent: u32,
    pub(super) first_child: u32,
    pub(super) next_sibling: u32,
    pub(super) previous_sibling: u32,
    pub(super) adapter: u32,
    pub(super) known: Known,
    /// Why the block itself is withheld.
    pub(super) own_reason: Option<Withheld>,
    /// Why it is withheld, because of itself or of what comes before it.
    pub(super) reason: Option<Withheld>,
    pub(super) places: Places,
    pub(super) reported: Option<Lies>,
}

impl Slot {
    pub(super) fn named(hash: u64) -> Self {
        Self {
            hash,
            content: 0,
            fingerprint: 0,
            tokens: 0,
            size: 0,
            parent: NONE,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            adapter: 0,
            known: Known::Hash,
            own_reason: None,
            reason: None,
            places: Places::default(),
            reported: None,
        }
    }

    /// What its descendants depend on.
    pub(super) fn footing(&self) -> (Known, u64, u32, Option<Withheld>) {
        (self.known, self.fingerprint, self.tokens, self.reason)
    }
}
