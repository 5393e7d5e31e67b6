//! The cache groups of a hybrid model: what each keeps, and what each needs to go on from a boundary.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// What the layers of a group keep of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// Everything.
    Full,
    /// The last tokens, as many as the window has.
    Sliding {
        /// Tokens of the window.
        window: usize,
    },
    /// A state, which stands for everything before it.
    Mamba,
}

/// One group, as it is asked for: `full`, `sliding:128` or `mamba`, each with a block size of its own behind a slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSpec {
    /// What it keeps.
    pub kind: GroupKind,
    /// Tokens per block; the engine's block size without.
    pub block_size: Option<usize>,
}

/// A text that names no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown cache group {0:?}: write full, sliding:WINDOW or mamba, with /BLOCK_SIZE where it differs")]
pub struct UnknownGroup(pub String);

impl GroupSpec {
    /// A group that keeps everything, in blocks of the engine's size.
    pub const FULL: Self = Self { kind: GroupKind::Full, block_size: None };

    /// A sliding window, in blocks of the engine's size.
    pub const fn sliding(window: usize) -> Self {
        Self { kind: GroupKind::Sliding { window }, block_size: None }
    }
}

impl FromStr for GroupSpec {
    type Err = UnknownGroup;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownGroup(text.to_owned());
        let positive = |text: &str| text.parse().ok().filter(|number| *number > 0).ok_or_else(unknown);
        let (name, block_size) = match text.split_once('/') {
            Some((name, size)) => (name, Some(positive(size)?)),
            None => (text, None),
        };
        let kind = match name.split_once(':') {
            None if name == "full" => GroupKind::Full,
            None if name == "mamba" => GroupKind::Mamba,
            Some(("sliding", window)) => GroupKind::Sliding { window: positive(window)? },
            _ => return Err(unknown()),
        };
        Ok(Self { kind, block_size })
    }
}

impl fmt::Display for GroupSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            GroupKind::Full => f.write_str("full")?,
            GroupKind::Sliding { window } => write!(f, "sliding:{window}")?,
            GroupKind::Mamba => f.write_str("mamba")?,
        }
        self.block_size.map_or(Ok(()), |size| write!(f, "/{size}"))
    }
}

/// A group of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    /// Tokens per block.
    pub(super) size: usize,
    /// Hashes per block: prompts are hashed in the finest steps that any group has.
    pub(super) hashes: usize,
}

impl Group {
    /// Which of the blocks before a boundary, that has this many of them, are needed to go on from there. EAGLE
    /// gives up the last block, so that a window has to reach one further back.
    pub(super) fn needed(&self, end: usize, eagle: bool) -> Range<usize> {
        match self.kind {
            GroupKind::Full => 0..end,
            GroupKind::Sliding { window } => {
                let blocks = (window - 1).div_ceil(self.size) + usize::from(eagle);
                end.saturating_sub(blocks)..end
            }
            GroupKind::Mamba => end.saturating_sub(1)..end,
        }
    }

    /// How many blocks a request has no use for any more, once this many of its tokens are computed.
    pub(super) fn passed(&self, computed: usize) -> usize {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::Sliding { window } => (computed + 1).saturating_sub(window) / self.size,
            // The state of the last token is gone on from.
            GroupKind::Mamba => computed.saturating_sub(1) / self.size,
        }
    }

    /// The position of a block's hash among a prompt's.
    pub(super) fn hash_of(&self, block: usize) -> usize {
        (block + 1) * self.hashes - 1
    }

    /// The engine's word for the kind.
    pub(super) fn spec_kind(&self) -> &'static str {
        match self.kind {
            GroupKind::Full => "full_attention",
            GroupKind::Sliding { .. } => "sliding_window",
            GroupKind::Mamba => "mamba",
        }
    }

    pub(super) fn window(&self) -> Option<u32> {
        match self.kind {
            GroupKind::Sliding { window } => u32::try_from(window).ok(),
            GroupKind::Full | GroupKind::Mamba => None,
        }
    }
}

/// The groups of a pool, and the steps that all of them have.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    pub(super) all: Vec<Group>,
    /// Tokens per hash: the largest size that divides every block.
    pub(super) fine: usize,
    /// Tokens between two boundaries that every group has.
    pub(crate) unit: usize,
}

impl Groups {
    /// The groups that were asked for; a single one that keeps everything without.
    pub(crate) fn new(specs: &[GroupSpec], block_size: usize) -> Self {
        let specs = if specs.is_empty() { &[GroupSpec::FULL] } else { specs };
        let sizes = || specs.iter().map(|spec| spec.block_size.unwrap_or(block_size).max(1));
        let fine = sizes().fold(0, greatest_common_divisor);
        let unit = sizes().fold(1, |unit, size| unit / greatest_common_divisor(unit, size) * size);
        let group = |(spec, size): (&GroupSpec, usize)| Group { kind: spec.kind, size, hashes: size / fine };
        Self { all: specs.iter().zip(sizes()).map(group).collect(), fine, unit }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_they_are_written() {
        for text in ["full", "sliding:128", "mamba", "full/32", "sliding:1/16", "mamba/64"] {
            assert_eq!(text.parse::<GroupSpec>().unwrap().to_string(), text);
        }
        for text in ["", "sliding", "sliding:0", "sliding:x", "full:3", "mamba/0", "full/", "ring"] {
            assert_eq!(text.parse::<GroupSpec>(), Err(UnknownGroup(text.to_owned())));
        }
    }

    #[test]
    fn hashes_are_as_fine_as_the_smallest_step_and_boundaries_as_coarse_as_all() {
        let specs = ["full/32", "sliding:64/16", "mamba/48"].map(|text| text.parse().unwrap());
        let groups = Groups::new(&specs, 4);
        assert_eq!((groups.fine, groups.unit), (16, 96));
        assert_eq!(groups.all.iter().map(|group| group.hashes).collect::<Vec<_>>(), [2, 1, 3]);
        assert_eq!(groups.all[0].hash_of(1), 3);
    }

    #[test]
    fn a_window_needs_what_its_next_token_sees() {
        let group = Group { kind: GroupKind::Sliding { window: 128 }, size: 32, hashes: 1 };
        assert_eq!(group.needed(17, false), 13..17);
        assert_eq!(group.needed(17, true), 12..17);
        assert_eq!(group.needed(2, false), 0..2);
        // The next token sees 127 before it: the blocks that are needed are those that have not been passed.
        assert_eq!((group.passed(17 * 32), group.passed(127), group.passed(159)), (13, 0, 1));
        let one = Group { kind: GroupKind::Sliding { window: 1 }, size: 32, hashes: 1 };
        assert_eq!((one.needed(3, false), one.passed(96)), (3..3, 3));
    }
}
