//! Which sides hold a stream's blocks: what [`kvplane_core::Resumption`] asks for, beside the trie.
//!
//! A block has a spot for as long as anybody holds it, and spots of an extent follow each other. So marks are
//! kept by page, 64 spots each: for every stream, tier and channel one word with a bit per block. An answer
//! that needs them copies a page once, for all streams, and works on whole words.
//!
//! ```text
//! page (spot >> 6) ──> columns, ascending:  marker of the stream | tier, channel | 64 bits
//! ```
//!
//! Streams without sides have no columns, and nobody looks for any. Pages are behind locks: a reader holds
//! one for as long as it goes through a page, the writer for as long as it changes one word.

mod resume;
mod walk;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvplane_core::{MARK_CHANNELS, Marks};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::LEVELS;

pub(crate) use resume::{Resuming, Steps};

/// Spots of a page, as a power of two.
const BITS: u32 = 6;
/// Columns that a stream may have in a page, as a power of two.
const KINDS: u32 = (LEVELS * MARK_CHANNELS).ilog2();
/// Locks. With this many, a reader rarely meets the writer.
const SHARDS: usize = 64;

const _: () = assert!(1 << KINDS == u64::BITS, "marks have a bit for every kind of column");

/// Marks of one kind that one stream has in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    /// The stream's marker, and the tier and channel as in [`Marks`].
    key: u32,
    /// One bit per spot.
    bits: u64,
}

impl Column {
    fn marker(self) -> u32 {
        self.key >> KINDS
    }

    /// The tier and the channel, as a bit of [`Marks`].
    fn kind(self) -> u32 {
        self.key & ((1 << KINDS) - 1)
    }
}

/// The marks of 64 spots: columns, ascending.
#[derive(Debug, Default)]
struct Page(Vec<Column>);

impl Page {
    /// Where the columns of a stream begin.
    fn start(&self, marker: u32) -> usize {
        self.0.partition_point(|column| column.marker() < marker)
    }

    /// A stream's block has these marks and no others.
    fn set(&mut self, marker: u32, bit: u64, marks: Marks) {
        let mut missing = marks.0;
        let mut at = self.start(marker);
        while let Some(column) = self.0.get_mut(at).filter(|column| column.marker() == marker) {
            let kind = 1 << column.kind();
            missing &= !kind;
            if marks.0 & kind == 0 {
                column.bits &= !bit;
            } else {
                column.bits |= bit;
            }
            if column.bits == 0 {
                self.0.remove(at);
            } else {
                at += 1;
            }
        }
        while missing != 0 {
            let key = marker << KINDS | missing.trailing_zeros();
            missing &= missing - 1;
            if self.0.len() == self.0.capacity() {
                // Most pages have the columns of one stream, and those that many share grow by and by.
                self.0.reserve_exact(self.0.len() / 4 + 2);
            }
            let at = self.0.partition_point(|column| column.key < key);
            self.0.insert(at, Column { key, bits: bit });
        }
    }

    /// A stream has none of these marks any more.
    fn forget(&mut self, marker: u32, bits: u64) {
        let columns = self.0.iter_mut().filter(|column| column.marker() == marker);
        columns.for_each(|column| column.bits &= !bits);
        self.0.retain(|column| column.bits != 0);
    }

    /// What it takes, with its entry in the table.
    fn bytes(&self) -> usize {
        const ENTRY: usize = 56;
        ENTRY + self.0.capacity() * size_of::<Column>()
    }
}

type Pages = FxHashMap<u64, Page>;

/// The marks of all streams.
#[derive(Debug)]
pub(crate) struct Sides {
    shards: Box<[RwLock<Pages>]>,
    bytes: AtomicUsize,
}

impl Sides {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, bytes: AtomicUsize::new(0) }
    }

    fn shard(&self, page: u64) -> &RwLock<Pages> {
        // Pages of one extent follow each other, and the first pages of extents are a power of two apart.
        &self.shards[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2())) as usize]
    }

    /// A stream's block has these marks and no others.
    pub(crate) fn set(&self, marker: u32, spot: u64, marks: Marks) {
        let bit = 1 << (spot & ((1 << BITS) - 1));
        self.change(spot >> BITS, marks != Marks::default(), |page| page.set(marker, bit, marks));
    }

    /// A stream has no marks any more on these spots.
    pub(crate) fn forget(&self, marker: u32, spots: Range<u64>) {
        for page in spots.start >> BITS..spots.end.div_ceil(1 << BITS) {
            let first = page << BITS;
            let from = spots.start.max(first) - first;
            let to = (spots.end - first).min(1 << BITS);
            self.change(page, false, |page| page.forget(marker, low(to as u32) & !low(from as u32)));
        }
    }

    /// Changes a page, if it is there or is to be.
    fn change(&self, number: u64, create: bool, change: impl FnOnce(&mut Page)) {
        let mut pages = self.shard(number).write();
        let (page, before) = match pages.get_mut(&number) {
            Some(page) => {
                let before = page.bytes();
                (page, before)
            }
            None if create => (pages.entry(number).or_default(), 0),
            None => return,
        };
        change(page);
        let mut after = page.bytes();
        if page.0.is_empty() {
            after = 0;
            pages.remove(&number);
        }
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Reads a page's columns, if there are any.
    fn read(&self, number: u64, read: impl FnOnce(&[Column])) {
        if let Some(page) = self.shard(number).read().get(&number) {
            read(&page.0);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Which spots of a page have any of these marks of a stream.
fn marked(columns: &[Column], marker: u32, marks: Marks) -> u64 {
    let first = columns.partition_point(|column| column.marker() < marker);
    let ours = columns[first..].iter().take_while(|column| column.marker() == marker);
    ours.filter(|column| marks.0 >> column.kind() & 1 == 1).fold(0, |bits, column| bits | column.bits)
}

/// The lowest this many bits, at most all 64.
fn low(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests;
