//! From how far into a prompt a stream can go on: [`Resumption::resumable`], a word at a time.

use std::ops::Range;

use kvplane_core::{MARK_CHANNELS, Marks, Need, Resumption};

use super::{BITS, Column, KINDS, Sides, low};
use crate::Depths;

/// The way of a question through the trie: each extent's first spot and how many of its blocks the prompt shares.
#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<(u64, u32)>);

impl Steps {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, origin: u64, matched: u32) {
        self.0.push((origin, matched));
    }
}

/// Blocks of the prompt that lie in one page.
#[derive(Debug)]
struct Piece {
    /// The position of the first.
    first: u32,
    count: u32,
    page: u64,
    /// Where in the page it begins.
    shift: u32,
    /// Where its columns are, once somebody asked for them.
    columns: Option<(usize, usize)>,
}

/// The prompt in pieces, with the columns of those that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    columns: Vec<Column>,
}

impl Pieces {
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.columns.clear();
    }

    /// Cuts the way into pieces, once for all streams.
    pub(crate) fn lay(&mut self, steps: &Steps) {
        if !self.pieces.is_empty() {
            return;
        }
        let mut position = 0;
        for &(origin, matched) in &steps.0 {
            let (mut spot, mut left) = (origin, matched);
            while left > 0 {
                let shift = (spot & ((1 << BITS) - 1)) as u32;
                let count = left.min((1 << BITS) - shift);
                self.pieces.push(Piece { first: position, count, page: spot >> BITS, shift, columns: None });
                position += count;
                spot += u64::from(count);
                left -= count;
            }
        }
    }

    /// The piece that has a position, or the last one before it.
    fn at(&self, position: u32) -> Option<usize> {
        self.pieces.partition_point(|piece| piece.first <= position).checked_sub(1)
    }
}

/// One stream's marks along the prompt, in a tier or a warmer one.
pub(crate) struct Trail<'a> {
    sides: &'a Sides,
    pieces: &'a mut Pieces,
    marker: u32,
    level: usize,
}

impl<'a> Trail<'a> {
    pub(crate) fn new(sides: &'a Sides, pieces: &'a mut Pieces, marker: u32) -> Self {
        Self { sides, pieces, marker, level: 0 }
    }

    /// The blocks of a piece that have a mark, one bit each.
    fn marked(&mut self, piece: usize, channel: usize) -> u64 {
        let Pieces { pieces, columns } = &mut *self.pieces;
        let piece = &mut pieces[piece];
        let (from, to) = *piece.columns.get_or_insert_with(|| {
            let from = columns.len();
            self.sides.copy_into(piece.page, columns);
            (from, columns.len())
        });
        let columns = &columns[from..to];
        let own = &columns[columns.partition_point(|column| column.marker() < self.marker)..];
        let end = self.marker << KINDS | ((self.level + 1) * MARK_CHANNELS - 1) as u32;
        let mut bits = 0;
        for column in own.iter().take_while(|column| column.key <= end) {
            if column.kind() as usize % MARK_CHANNELS == channel {
                bits |= column.bits;
            }
        }
        bits >> piece.shift & low(piece.count)
    }

    /// The last position in a range that ends a block of the side and has a mark, or has none.
    fn last(&mut self, channel: usize, stride: u32, from: u32, to: u32, held: bool) -> Option<u32> {
        if from >= to {
            return None;
        }
        let mut at = self.pieces.at(to - 1);
        while let Some(piece) = at {
            let marked = self.marked(piece, channel);
            let &Piece { first, count, .. } = &self.pieces.pieces[piece];
            let wanted = if held { marked } else { !marked };
            let range = low((to - first).min(count)) & !low(from.saturating_sub(first));
            let found = wanted & range & ends(first, stride);
            if found != 0 {
                return Some(first + found.ilog2());
            }
            if first <= from {
                return None;
            }
            at = piece.checked_sub(1);
        }
        None
    }

    /// The first position below a boundary that ends a block of the side and has no mark.
    fn first_hole(&mut self, channel: usize, stride: u32, to: u32) -> Option<u32> {
        for piece in 0..self.pieces.pieces.len() {
            let &Piece { first, count, .. } = &self.pieces.pieces[piece];
            if first >= to {
                return None;
            }
            let range = low((to - first).min(count));
            let found = !self.marked(piece, channel) & range & ends(first, stride);
            if found != 0 {
                return Some(first + found.trailing_zeros());
            }
        }
        None
    }

    fn has(&mut self, channel: usize, position: u32) -> bool {
        self.last(channel, 1, position, position + 1, true).is_some()
    }

    /// The highest boundary, a multiple of `unit`, from which these sides can go on. `boundary` is such a multiple.
    fn highest(&mut self, needs: &Resumption, sides: &Range<usize>, unit: u32, mut boundary: u32) -> u32 {
        for side in sides.clone() {
            if let Need::Prefix { stride } = needs.sides[side].need
                && let Some(hole) = self.first_hole(Marks::whole(side), stride.max(1), boundary)
            {
                boundary = hole / unit * unit;
            }
        }
        // Where one side cannot go on, the others need not: until all agree.
        let mut agreed = false;
        while !agreed {
            agreed = true;
            for side in sides.clone() {
                let Need::Run { blocks, stride, tail } = needs.sides[side].need else { continue };
                // What is given up is computed again, and needs as much before it.
                let blocks = blocks.saturating_add(u32::from(needs.drops_last));
                let run = Run { side, blocks, stride: stride.max(1), tail };
                let lower = self.highest_of(&run, unit, boundary);
                agreed &= lower == boundary;
                boundary = lower;
            }
        }
        boundary
    }

    /// The highest boundary, a multiple of `unit`, from which one side can go on.
    fn highest_of(&mut self, run: &Run, unit: u32, mut boundary: u32) -> u32 {
        let &Run { side, blocks, stride, tail } = run;
        let whole = Marks::whole(side);
        while boundary > 0 {
            let ends = boundary / stride;
            let needed = blocks.min(ends);
            let from = boundary - needed * stride;
            if let Some(hole) = self.last(whole, stride, from, boundary, false) {
                // Every boundary between the hole and here needs what is missing. The next one that may do has a mark before it.
                let Some(held) = self.last(whole, stride, 0, hole, true) else { return 0 };
                boundary = (held + 1) / unit * unit;
            } else if tail && ends > blocks && !self.has(Marks::tail(side), from - 1) {
                boundary -= unit;
            } else {
                break;
            }
        }
        boundary
    }
}

/// What a side needs that needs its last blocks.
struct Run {
    side: usize,
    blocks: u32,
    stride: u32,
    tail: bool,
}

/// From how many blocks a stream can go on, by level, if all sides count or only one. `held` is what counts of its main group.
pub(crate) fn resume(mut trail: Trail<'_>, needs: &Resumption, side: Option<usize>, held: Depths) -> Depths {
    let sides = side.map_or(0..needs.sides.len(), |side| side..side + 1);
    let unit = side.map_or_else(|| needs.alignment(), |side| needs.sides[side].need.stride().max(1));
    let given_up = if needs.drops_last { unit } else { 0 };
    let mut boundary = 0;
    let mut depths = Depths::default();
    for (level, depth) in depths.iter_mut().enumerate() {
        trail.level = level;
        let most = held[level] / unit * unit;
        // Colder marks cannot make it more than all.
        if level == 0 || boundary < most {
            boundary = trail.highest(needs, &sides, unit, most);
        }
        *depth = boundary.saturating_sub(given_up);
    }
    depths
}

/// The positions of a piece that end a block of so many, one bit each.
fn ends(first: u32, stride: u32) -> u64 {
    if stride == 1 {
        return u64::MAX;
    }
    let mut at = stride - 1 - first % stride;
    let mut bits = 0;
    while at < u64::BITS {
        bits |= 1 << at;
        at = at.saturating_add(stride);
    }
    bits
}
