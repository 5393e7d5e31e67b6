//! Where holders of prefixes are kept: rows of cells, a cell for each replica that holds the prefix.
//!
//! ```text
//! chunk of rows with room for 4   seen   | a a a . | b b . . | …     what a chain is matched by
//!                                 who    | 1 4 9 . | 2 4 . . | …     sorted within a row
//!                                 tokens | …                         what one hash is matched by
//!                                 hits, filed | …                    what is dropped first
//! ```
//!
//! All rows of a chunk have the same room, a power of two, so that a chunk is given back as soon as its last
//! row is gone. The columns lie apart, because a lookup of a chain reads only the first two.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::prefix::CacheTier;

/// Cells of a chunk, but for rows that need more: 24 KiB, so that a small book stays small.
const CHUNK: u32 = 1024;
const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
/// Rooms are powers of two up to this.
const CLASSES: usize = 32;
/// Ends the list of free rows.
const NONE: u32 = u32::MAX;
/// Of all columns.
const CELL_BYTES: usize = 8 + 4 * 4;

/// The bit of `filed` that says whether the cell's key is listed.
const MARK: u32 = 1 << 31;
/// Hits are counted up to this.
const HITS_MAX: u32 = MARK - 1;

fn filed(hits: u32, mark: bool) -> u32 {
    if mark { hits | MARK } else { hits }
}

/// When something was last reported, and the tier: ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen(u64);

impl Seen {
    const TIER_BITS: u32 = 8;
    /// Of engines that are heard: later than everything.
    const HEARD_US: u64 = (1 << 56) - 1;
    /// Later times are cut to this; it is in the year 2540.
    const MAX_US: i64 = (1 << 54) - 1;

    /// Of a replica that reports. Times before 1970 are as good as 1970.
    pub(super) fn reported(at_us: i64, tier: CacheTier) -> Self {
        Self((at_us.clamp(0, Self::MAX_US) as u64) << Self::TIER_BITS | u64::from(tier.warmth()))
    }

    /// Of an engine that is heard: it says so itself when that changes.
    pub(super) fn heard(tier: CacheTier) -> Self {
        Self(Self::HEARD_US << Self::TIER_BITS | u64::from(tier.warmth()))
    }

    /// The first moment that is later than `at_us`, whatever the tier.
    pub(super) fn after(at_us: i64) -> Self {
        Self((at_us.clamp(-1, Self::MAX_US) + 1) as u64 * (1 << Self::TIER_BITS))
    }

    pub(super) fn is_heard(self) -> bool {
        self.0 >> Self::TIER_BITS == Self::HEARD_US
    }

    /// `None` for an engine that is heard.
    pub(super) fn at_us(self) -> Option<i64> {
        (!self.is_heard()).then_some((self.0 >> Self::TIER_BITS) as i64)
    }

    pub(super) fn tier(self) -> CacheTier {
        CacheTier::of_warmth(self.0 as u8)
    }
}

/// Who holds one prefix. A row without cells is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    first: u32,
    len: u32,
}

impl Row {
    pub(super) const NOWHERE: Row = Row { first: 0, len: 0 };

    pub(super) fn is_nowhere(self) -> bool {
        self.len == 0
    }

    fn at(self) -> (usize, usize) {
        ((self.first >> CHUNK_BITS) as usize, (self.first & (CHUNK - 1)) as usize)
    }
}

/// What a chain is matched by, of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run<'a> {
    /// As plain numbers, which are compared many at a time.
    seen: &'a [u64],
    pub(super) who: &'a [u32],
}

impl<'a> Run<'a> {
    pub(super) fn seen(self) -> impl Iterator<Item = Seen> + 'a {
        self.seen.iter().copied().map(Seen)
    }

    /// A load from each line of the processor's cache, and nothing that has to wait for it.
    pub(super) fn touch(self) -> u64 {
        const LINE: usize = 64;
        let seen = self.seen.iter().step_by(LINE / size_of::<u64>()).fold(0, |all, seen| all ^ seen);
        self.who.iter().step_by(LINE / size_of::<u32>()).fold(seen, |all, who| all ^ u64::from(*who))
    }
}

/// A cell to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) seen: Seen,
    pub(super) tokens: u32,
}

/// The cells of a row, sorted by who.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holders<'a> {
    seen: &'a [u64],
    pub(super) who: &'a [u32],
    pub(super) tokens: &'a [u32],
    hits: &'a [AtomicU32],
    filed: &'a [u32],
}

impl Holders<'_> {
    pub(super) fn seen(&self, at: usize) -> Seen {
        Seen(self.seen[at])
    }

    pub(super) fn position(&self, who: u32) -> Option<usize> {
        self.who.binary_search(&who).ok()
    }

    /// Lookups that this cell answered.
    pub(super) fn hits(&self, at: usize) -> u32 {
        self.hits[at].load(Ordering::Relaxed).min(HITS_MAX)
    }

    /// One more.
    pub(super) fn hit(&self, at: usize) {
        if self.hits(at) < HITS_MAX {
            self.hits[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The hits under which the cell is filed.
    pub(super) fn filed(&self, at: usize) -> u32 {
        self.filed[at] & !MARK
    }

    /// Whether the cell's key is listed, see [`super::filing::Bucket`].
    pub(super) fn mark(&self, at: usize) -> bool {
        self.filed[at] & MARK != 0
    }

    /// Somebody reported it.
    pub(super) fn any_reported(&self) -> bool {
        self.seen.iter().any(|seen| !Seen(*seen).is_heard())
    }
}

#[derive(Debug)]
struct Chunk {
    class: usize,
    rows: u32,
    /// Rows that were never used start here.
    fresh: u32,
    /// Rows that were used, linked through their first `who`.
    free: u32,
    seen: Box<[u64]>,
    who: Box<[u32]>,
    tokens: Box<[u32]>,
    hits: Box<[AtomicU32]>,
    filed: Box<[u32]>,
}

impl Chunk {
    fn new(class: usize) -> Self {
        let cells = (1_usize << class).max(CHUNK as usize);
        Self {
            class,
            rows: 0,
            fresh: 0,
            free: NONE,
            seen: vec![0; cells].into(),
            who: vec![0; cells].into(),
            tokens: vec![0; cells].into(),
            hits: (0..cells).map(|_| AtomicU32::new(0)).collect(),
            filed: vec![0; cells].into(),
        }
    }

    fn is_full(&self) -> bool {
        self.free == NONE && self.fresh as usize == self.seen.len()
    }

    fn take(&mut self) -> u32 {
        self.rows += 1;
        if self.free == NONE {
            let at = self.fresh;
            self.fresh += 1 << self.class;
            return at;
        }
        let at = self.free;
        self.free = self.who[at as usize];
        at
    }

    fn give(&mut self, at: usize) {
        self.rows -= 1;
        self.who[at] = self.free;
        self.free = at as u32;
    }

    fn bytes(&self) -> usize {
        self.seen.len() * CELL_BYTES + size_of::<Self>()
    }

    /// Moves `count` cells to the next cell, or to the one before.
    fn shift(&mut self, from: usize, count: usize, to: usize) {
        self.seen.copy_within(from..from + count, to);
        self.who.copy_within(from..from + count, to);
        self.tokens.copy_within(from..from + count, to);
        self.filed.copy_within(from..from + count, to);
        let hits = &mut self.hits[from.min(to)..from.max(to) + count];
        if to > from {
            hits.rotate_right(1);
        } else {
            hits.rotate_left(1);
        }
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(super) struct Cells {
    chunks: Vec<Option<Chunk>>,
    /// Numbers of chunks that are gone.
    vacant: Vec<u32>,
    /// By class: chunks that had room when they were put here.
    open: Vec<Vec<u32>>,
    bytes: usize,
}

impl Cells {
    pub(super) fn bytes(&self) -> usize {
        self.bytes + (self.chunks.capacity() * size_of::<Option<Chunk>>())
    }

    pub(super) fn holders(&self, row: Row) -> Holders<'_> {
        let (chunk, at) = row.at();
        let Some(Some(chunk)) = self.chunks.get(chunk).filter(|_| !row.is_nowhere()) else {
            return Holders { seen: &[], who: &[], tokens: &[], hits: &[], filed: &[] };
        };
        let cells = at..at + row.len as usize;
        Holders {
            seen: &chunk.seen[cells.clone()],
            who: &chunk.who[cells.clone()],
            tokens: &chunk.tokens[cells.clone()],
            hits: &chunk.hits[cells.clone()],
            filed: &chunk.filed[cells],
        }
    }

    /// Less of the same.
    pub(super) fn run(&self, row: Row) -> Run<'_> {
        let (chunk, at) = row.at();
        let Some(Some(chunk)) = self.chunks.get(chunk).filter(|_| !row.is_nowhere()) else {
            return Run { seen: &[], who: &[] };
        };
        let cells = at..at + row.len as usize;
        Run { seen: &chunk.seen[cells.clone()], who: &chunk.who[cells] }
    }

    /// Writes a cell that is there.
    pub(super) fn rewrite(&mut self, row: Row, at: usize, cell: Cell) {
        let (chunk, first) = row.at();
        if let Some(chunk) = &mut self.chunks[chunk] {
            chunk.seen[first + at] = cell.seen.0;
            chunk.tokens[first + at] = cell.tokens;
        }
    }

    /// Remembers the hits under which a cell is filed, and whether its key is listed.
    pub(super) fn set_filed(&mut self, row: Row, at: usize, hits: u32, mark: bool) {
        let (chunk, first) = row.at();
        if let Some(chunk) = &mut self.chunks[chunk] {
            chunk.filed[first + at] = filed(hits, mark);
        }
    }

    /// Adds a cell for somebody who has none in this row. The row may move.
    pub(super) fn insert(&mut self, row: Row, who: u32, cell: Cell, mark: bool) -> Row {
        let holders = self.holders(row);
        let at = holders.who.partition_point(|other| *other < who);
        let mut row = row;
        if row.is_nowhere() || row.len as usize == self.room(row) {
            row = self.moved(row, row.len + 1);
        }
        let (chunk, first) = row.at();
        if let Some(chunk) = &mut self.chunks[chunk] {
            let place = first + at;
            chunk.shift(place, row.len as usize - at, place + 1);
            chunk.seen[place] = cell.seen.0;
            chunk.who[place] = who;
            chunk.tokens[place] = cell.tokens;
            chunk.hits[place] = AtomicU32::new(0);
            chunk.filed[place] = filed(0, mark);
        }
        Row { first: row.first, len: row.len + 1 }
    }

    /// Takes a cell out. The row may move; without its last cell it is nowhere.
    pub(super) fn remove(&mut self, row: Row, at: usize) -> Row {
        if row.len == 1 {
            self.give(row);
            return Row::NOWHERE;
        }
        let (chunk, first) = row.at();
        if let Some(chunk) = &mut self.chunks[chunk] {
            let behind = row.len as usize - at - 1;
            chunk.shift(first + at + 1, behind, first + at);
        }
        let row = Row { first: row.first, len: row.len - 1 };
        // A quarter, not a half: a row that loses and gets the same holder again stays where it is.
        if row.len as usize <= self.room(row) / 4 { self.moved(row, row.len) } else { row }
    }

    fn room(&self, row: Row) -> usize {
        self.chunks[row.at().0].as_ref().map_or(0, |chunk| 1 << chunk.class)
    }

    /// The same cells where there is room for `room`.
    fn moved(&mut self, row: Row, room: u32) -> Row {
        let to = Row { first: self.take(room), len: row.len };
        if row.is_nowhere() {
            return to;
        }
        let (old, old_first) = row.at();
        let (new, new_first) = to.at();
        let from = old_first..old_first + row.len as usize;
        let into = new_first..new_first + row.len as usize;
        if let Ok([Some(old), Some(new)]) = self.chunks.get_disjoint_mut([old, new]) {
            new.seen[into.clone()].copy_from_slice(&old.seen[from.clone()]);
            new.who[into.clone()].copy_from_slice(&old.who[from.clone()]);
            new.tokens[into.clone()].copy_from_slice(&old.tokens[from.clone()]);
            new.filed[into.clone()].copy_from_slice(&old.filed[from.clone()]);
            for (new, old) in new.hits[into].iter_mut().zip(&mut old.hits[from]) {
                *new.get_mut() = *old.get_mut();
            }
        }
        self.give(row);
        to
    }

    fn take(&mut self, room: u32) -> u32 {
        let class = room.next_power_of_two().trailing_zeros() as usize;
        if self.open.is_empty() {
            self.open.resize_with(CLASSES, Vec::new);
        }
        while let Some(&number) = self.open[class].last() {
            if let Some(chunk) = &mut self.chunks[number as usize]
                && chunk.class == class
                && !chunk.is_full()
            {
                return number << CHUNK_BITS | chunk.take();
            }
            self.open[class].pop();
        }
        let mut chunk = Chunk::new(class);
        self.bytes += chunk.bytes();
        let at = chunk.take();
        let number = if let Some(number) = self.vacant.pop() {
            self.chunks[number as usize] = Some(chunk);
            number
        } else {
            self.chunks.push(Some(chunk));
            self.chunks.len() as u32 - 1
        };
        self.open[class].push(number);
        number << CHUNK_BITS | at
    }

    fn give(&mut self, row: Row) {
        let (number, at) = row.at();
        let slot = &mut self.chunks[number];
        let Some(chunk) = slot else { return };
        let was_full = chunk.is_full();
        chunk.give(at);
        if chunk.rows == 0 {
            self.bytes -= chunk.bytes();
            *slot = None;
            self.vacant.push(number as u32);
        } else if was_full {
            self.open[chunk.class].push(number as u32);
        }
    }
}
