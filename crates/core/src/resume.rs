//! From how far into a prompt an engine can go on: the rule for caches with several groups, tiers with units of their own, and
//! engines that give up the last block.
//!
//! A cache is told in blocks of its *main* group, whose blocks are whole prefixes. Every other group is a *side*: it marks main
//! blocks, and needs certain marks before a boundary to go on from there. All sides must be able to go on from the same boundary.

use crate::{SpecKind, Tier};

/// Tiers that count, warmest first; see [`Tier::ALL`].
pub const LEVELS: usize = Tier::Unknown as usize;
/// Kinds of marks that a block has room for, in each tier: two per side.
pub const MARK_CHANNELS: usize = 16;

/// What a side needs before a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// All of its blocks from the start of the prompt on.
    Prefix {
        /// Main blocks per block of the side.
        stride: u32,
    },
    /// The last of its blocks, or all where there are fewer.
    Run {
        /// How many.
        blocks: u32,
        /// Main blocks per block of the side.
        stride: u32,
        /// Its blocks are smaller than the main ones, and the end of the main block before those is needed too.
        tail: bool,
    },
}

impl Need {
    /// Main blocks per block of the side: it goes on from multiples of it alone.
    pub fn stride(self) -> u32 {
        match self {
            Self::Prefix { stride } | Self::Run { stride, .. } => stride,
        }
    }
}

/// A group beside the main one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// The engine's number of it.
    pub group: Option<u32>,
    /// What it is.
    pub kind: SpecKind,
    /// What it needs.
    pub need: Need,
}

/// Which sides hold a main block, and where: a bit for every tier and channel. A side has two channels: it holds the *whole*
/// block (or its own, larger block that ends with it), and it holds the *tail* of it that its need speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Marks(pub u64);

impl Marks {
    /// The channel of whole blocks of a side.
    pub fn whole(side: usize) -> usize {
        2 * side
    }

    /// The channel of tails of a side.
    pub fn tail(side: usize) -> usize {
        2 * side + 1
    }

    /// Adds a mark.
    pub fn set(&mut self, tier: Tier, channel: usize) {
        debug_assert!(channel < MARK_CHANNELS && tier != Tier::Unknown);
        self.0 |= 1 << (tier.index() * MARK_CHANNELS + channel);
    }

    /// Whether there is a mark in a tier or a warmer one.
    pub fn has(self, level: usize, channel: usize) -> bool {
        (0..=level).any(|tier| self.0 >> (tier * MARK_CHANNELS + channel) & 1 == 1)
    }
}

/// What a stream needs besides its main blocks. The default needs nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// The other groups.
    pub sides: Vec<Side>,
    /// Main blocks that a tier gives back at once.
    pub units: [u32; LEVELS],
    /// The engine gives up the last block that it finds, as with EAGLE.
    pub drops_last: bool,
    /// The device may hold more than is known, so that less than a unit may be missing where a whole one is thought to be.
    pub device_in_doubt: bool,
}

impl Default for Resumption {
    fn default() -> Self {
        Self { sides: Vec::new(), units: [1; LEVELS], drops_last: false, device_in_doubt: false }
    }
}

impl Resumption {
    /// Whether nothing but the main blocks counts.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a shorter prompt may be resumed from elsewhere than from where a longer one is cut off: then it must be known where it ends.
    pub fn depends_on_the_end(&self) -> bool {
        self.drops_last || !self.sides.is_empty()
    }

    /// Boundaries that every group has are multiples of this many main blocks.
    pub fn alignment(&self) -> u32 {
        self.sides.iter().map(|side| side.need.stride().max(1)).fold(1, common_multiple)
    }

    /// What counts of so many main blocks by level: a tier gives back whole units, and is not asked for less than one.
    pub fn whole_units(&self, found: [u32; LEVELS]) -> [u32; LEVELS] {
        let mut counted = 0u32;
        let mut depths = [0; LEVELS];
        for (level, depth) in depths.iter_mut().enumerate() {
            let unit = self.units[level].max(1);
            let whole = found[level] / unit * unit;
            if whole >= counted.saturating_add(unit) {
                counted = if self.device_in_doubt { whole - (unit - 1) } else { whole };
            }
            *depth = counted;
        }
        depths
    }

    /// The most main blocks, of so many, from which every group can go on. `has` says whether a block (by its position) has a mark. Slow
    /// and plain: what is asked often has a faster way, which is held against this one.
    pub fn resumable(&self, depth: u32, has: impl Fn(u32, usize) -> bool) -> u32 {
        let unit = self.alignment();
        let mut boundary = depth / unit * unit;
        while boundary > 0 && !(0..self.sides.len()).all(|side| self.goes_on(side, boundary, &has)) {
            boundary -= unit;
        }
        if self.drops_last { boundary.saturating_sub(unit) } else { boundary }
    }

    /// The same in one pass, whatever is held.
    pub fn resumable_at_once(&self, depth: u32, has: impl Fn(u32, usize) -> bool) -> u32 {
        let unit = self.alignment();
        // By side and block: how many blocks in a row the side has that end there, in its own steps.
        let mut runs = vec![vec![0_u32; depth as usize]; self.sides.len()];
        let mut found = 0;
        for end in 1..=depth {
            let mut all = true;
            for (side, runs) in runs.iter_mut().enumerate() {
                let need = self.sides[side].need;
                let stride = need.stride().max(1);
                let before = (end - 1).checked_sub(stride).map_or(0, |at| runs[at as usize]);
                let run = if has(end - 1, Marks::whole(side)) { before.saturating_add(1) } else { 0 };
                runs[end as usize - 1] = run;
                let ends = end / stride;
                let (needed, tail) = self.needed(need, ends);
                let has_tail =
                    || !tail || ends <= needed || has(end - 1 - needed * stride, Marks::tail(side));
                all &= end.is_multiple_of(stride) && run >= needed.min(ends) && has_tail();
            }
            if all && end.is_multiple_of(unit) {
                found = end;
            }
        }
        if self.drops_last { found.saturating_sub(unit) } else { found }
    }

    /// How many of a side's blocks are needed before the end of so many, and whether a tail is needed before those.
    fn needed(&self, need: Need, ends: u32) -> (u32, bool) {
        match need {
            Need::Prefix { .. } => (ends, false),
            // What is given up is computed again, and needs as much before it.
            Need::Run { blocks, tail, .. } => (blocks + u32::from(self.drops_last), tail),
        }
    }

    /// Whether one side can go on from a boundary.
    pub fn goes_on(&self, side: usize, boundary: u32, has: impl Fn(u32, usize) -> bool) -> bool {
        let need = self.sides[side].need;
        let stride = need.stride().max(1);
        if !boundary.is_multiple_of(stride) {
            return false;
        }
        let ends = boundary / stride;
        let (needed, tail) = self.needed(need, ends);
        let whole = (0..needed.min(ends)).all(|back| has(boundary - 1 - back * stride, Marks::whole(side)));
        whole && (!tail || ends <= needed || has(boundary - 1 - needed * stride, Marks::tail(side)))
    }
}

/// The greatest common divisor; of 0 and a number, that number.
pub fn common_divisor(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    x
}

/// The least common multiple of two numbers that are not 0; the largest number where it is beyond.
pub fn common_multiple(a: u32, b: u32) -> u32 {
    (a / common_divisor(a, b)).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sliding(blocks: u32) -> Side {
        Side { group: Some(0), kind: SpecKind::Sliding, need: Need::Run { blocks, stride: 1, tail: false } }
    }

    #[test]
    fn a_window_needs_its_last_blocks_and_all_where_there_are_fewer() {
        let resumption = Resumption { sides: vec![sliding(2)], ..Resumption::default() };
        let held = [true, true, false, true, true, false];
        let resumable = |depth| resumption.resumable(depth, |at, _| held[at as usize]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(resumable), [0, 1, 2, 2, 2, 5, 5]);
    }

    #[test]
    fn a_state_counts_exactly_where_it_is_and_strides_align() {
        let state = Side {
            group: Some(1),
            kind: SpecKind::State,
            need: Need::Run { blocks: 1, stride: 2, tail: false },
        };
        let resumption = Resumption { sides: vec![state], ..Resumption::default() };
        let resumable = |depth| resumption.resumable(depth, |at, _| at == 3);
        assert_eq!([3, 4, 5, 7].map(resumable), [0, 4, 4, 4]);
    }

    #[test]
    fn a_prefix_has_no_hole_and_the_last_block_may_be_given_up() {
        let all = Side { group: Some(1), kind: SpecKind::Full, need: Need::Prefix { stride: 1 } };
        let mut resumption = Resumption { sides: vec![all], ..Resumption::default() };
        assert_eq!(resumption.resumable(5, |at, _| at != 3), 3);
        resumption.drops_last = true;
        assert_eq!(resumption.resumable(5, |at, _| at != 3), 2);
        assert_eq!(resumption.resumable(5, |_, _| false), 0);
    }

    #[test]
    fn one_pass_finds_what_the_plain_way_finds() {
        let side = |need| Side { group: Some(1), kind: SpecKind::Sliding, need };
        let needs = [
            Need::Prefix { stride: 1 },
            Need::Prefix { stride: 2 },
            Need::Run { blocks: 2, stride: 1, tail: false },
            Need::Run { blocks: 1, stride: 2, tail: true },
            Need::Run { blocks: 0, stride: 1, tail: true },
        ];
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for turn in 0..4000_usize {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(turn as u64 | 1);
            let sides = vec![side(needs[turn % 5]), side(needs[turn / 5 % 5])];
            let resumption = Resumption { sides, drops_last: turn % 3 == 0, ..Resumption::default() };
            // Most are held, so that runs are long.
            let has = |at: u32, channel: usize| (bits >> (at * 3 + channel as u32 * 7) % 61) & 7 != 0;
            for depth in 0..12 {
                assert_eq!(
                    resumption.resumable_at_once(depth, has),
                    resumption.resumable(depth, has),
                    "{resumption:?} {bits:x} {depth}"
                );
            }
        }
    }

    #[test]
    fn a_colder_tier_counts_in_whole_units() {
        let resumption = Resumption { units: [1, 4, 4, 4], ..Resumption::default() };
        assert_eq!(resumption.whole_units([6, 7, 7, 7]), [6, 6, 6, 6]);
        assert_eq!(resumption.whole_units([6, 9, 13, 13]), [6, 6, 12, 12], "two blocks are no unit");
        assert_eq!(resumption.whole_units([4, 9, 13, 13]), [4, 8, 12, 12]);
        // With five blocks on the device, the second unit would not be asked for.
        let resumption = Resumption { device_in_doubt: true, ..resumption };
        assert_eq!(resumption.whole_units([4, 9, 9, 9]), [4, 5, 5, 5]);
    }
}
