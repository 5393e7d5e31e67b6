//! From how far into a prompt an engine can go on: the rule for caches with several groups, tiers with units
//! of their own, and engines that give up the last block.
//!
//! A cache is described in blocks of its *main* group, whose blocks are whole prefixes. Every other group is
//! a *side*: it marks main blocks, and needs certain marks before a boundary to go on from there. All sides
//! must be able to go on from the same boundary.

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
        /// Its blocks are smaller than the main ones, and the end of the main block before those is needed
        /// too.
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

/// Which sides hold a main block, and where: a bit for every tier and channel. A side has two channels: it
/// holds the *whole* block (or its own, larger block that ends with it), and it holds the *tail* of it that
/// its need speaks of.
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

    /// The channel of main blocks that a tier behind the device holds, whether the device does or not. Only
    /// streams without sides have it, and only where [`Resumption::whole_prompt`] asks for it.
    pub const BEHIND: usize = MARK_CHANNELS - 1;

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
    /// The device may hold more than is known, so that less than a unit may be missing where a whole one is
    /// thought to be.
    pub device_in_doubt: bool,
    /// The tiers behind the device are asked for the whole prompt, its last token included, as vLLM's
    /// `OffloadingConnector` does.
    pub whole_prompt: bool,
}

/// A prompt, as far as a prediction needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptLength {
    /// Its tokens.
    pub tokens: u64,
    /// Positions per block of the stream.
    pub block_size: u32,
    /// A position is a token and the one that follows it, as `SGLang` with EAGLE keys its cache: the last
    /// token has none.
    pub bigrams: bool,
}

impl PromptLength {
    /// Whole blocks that an engine may take from its device: it computes the last position in any case.
    pub fn usable_blocks(self) -> u32 {
        self.blocks(self.tokens.saturating_sub(1 + u64::from(self.bigrams)))
    }

    /// Whole blocks of the prompt.
    fn whole_blocks(self) -> u32 {
        self.blocks(self.tokens.saturating_sub(u64::from(self.bigrams)))
    }

    fn blocks(self, positions: u64) -> u32 {
        u32::try_from(positions / u64::from(self.block_size.max(1))).unwrap_or(u32::MAX)
    }
}

/// What a stream holds of a prompt, in main blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlocks {
    /// Blocks from which it can go on, in all tiers that the engine reaches by itself.
    pub resumable: u32,
    /// Blocks on the device, without a gap.
    pub device: u32,
}

impl Default for Resumption {
    fn default() -> Self {
        Self {
            sides: Vec::new(),
            units: [1; LEVELS],
            drops_last: false,
            device_in_doubt: false,
            whole_prompt: false,
        }
    }
}

impl Resumption {
    /// What the engine is expected to report as `cached_tokens` for a prompt. `behind` counts the blocks in a
    /// row, from a position on, that tiers behind the device hold; it is asked at most once, and only where
    /// that matters.
    ///
    /// An engine computes the last token of a prompt, so its device serves whole blocks of all tokens but
    /// that one. vLLM's `OffloadingConnector` then goes on behind them, in whole chunks, and counts the last
    /// token too: a prompt that ends with a block is reported as cached whole where the connector holds that
    /// block. With sliding windows or states it leaves the last token out, and with EAGLE it gives up the
    /// last chunk.
    pub fn cached_tokens(
        &self,
        prompt: PromptLength,
        held: HeldBlocks,
        behind: impl FnOnce(u32) -> u32,
    ) -> u64 {
        let blocks = if self.looks_behind() {
            self.with_blocks_behind(prompt, held, behind)
        } else {
            held.resumable.min(prompt.usable_blocks())
        };
        u64::from(blocks) * u64::from(prompt.block_size)
    }

    /// Whether what lies behind the device counts from the device's end on, up to the last token.
    fn looks_behind(&self) -> bool {
        self.whole_prompt && self.sides.is_empty() && !self.drops_last
    }

    fn with_blocks_behind(
        &self,
        prompt: PromptLength,
        held: HeldBlocks,
        behind: impl FnOnce(u32) -> u32,
    ) -> u32 {
        let local = held.device.min(prompt.usable_blocks());
        let chunk = self.units[Tier::Host.index()].max(1);
        let last = prompt.whole_blocks() / chunk * chunk;
        // Less than a chunk is not worth a load.
        if last < local.saturating_add(chunk) {
            return local;
        }
        let first = local / chunk * chunk;
        let end = (first.saturating_add(behind(first)) / chunk * chunk).min(last);
        if end < local.saturating_add(chunk) {
            return local;
        }
        // With more blocks on the device than are known, the last chunk might not be loaded.
        if self.device_in_doubt { local.max(end - (chunk - 1)) } else { end }
    }

    /// Whether nothing but the main blocks counts.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a shorter prompt may be resumed from elsewhere than from where a longer one is cut off: then
    /// it must be known where it ends.
    pub fn depends_on_the_end(&self) -> bool {
        self.drops_last || !self.sides.is_empty()
    }

    /// Boundaries that every group has are multiples of this many main blocks.
    pub fn alignment(&self) -> u32 {
        self.sides.iter().map(|side| side.need.stride().max(1)).fold(1, common_multiple)
    }

    /// What counts of `blocks` main blocks by level: a tier gives back whole units, and is not asked for less
    /// than one.
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

    /// The most main blocks, of those given, from which every group can go on. `has` says whether a block (by
    /// its position) has a mark. Slow and plain: what is asked often has a faster way, which is held against
    /// this one.
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

    /// How many of a side's blocks are needed before the end of a prefix, and whether a tail is needed before
    /// those.
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
mod tests;
