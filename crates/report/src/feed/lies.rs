//! Where a block is reported to lie.

use kvplane_hints::CacheTier;

/// Where a block is reported to lie, the best place first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lies {
    /// On the device.
    Device,
    /// Behind it.
    Behind,
    /// Behind it as well, because the operator says that what leaves the device is kept there.
    Left,
    /// On another machine.
    Elsewhere,
}

impl Lies {
    /// All of them, the best first.
    pub(super) const ALL: [Lies; 4] = [Self::Device, Self::Behind, Self::Left, Self::Elsewhere];

    /// The tier that is reported.
    pub(super) fn tier(self) -> CacheTier {
        match self {
            Self::Device => CacheTier::T1,
            Self::Behind | Self::Left => CacheTier::T2,
            Self::Elsewhere => CacheTier::T3,
        }
    }

    /// Whether the engine itself says so, and says when it ends.
    pub(super) fn is_sure(self) -> bool {
        self != Self::Left
    }
}
