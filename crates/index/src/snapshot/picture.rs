//! A stream at one moment: what a snapshot is written from.

use crate::writer::WaitingBlock;

/// Consecutive blocks: a copy of what an extent had.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The extent's. Those of parents are lower.
    pub(crate) origin: u64,
    /// The block before the first: an earlier piece, and an offset in it.
    pub(crate) parent: Option<(u32, u32)>,
    /// Where in the picture's contents: a list, and the first and how many in it.
    pub(crate) list: u32,
    pub(crate) first: u32,
    pub(crate) blocks: u32,
}

/// One block that the stream holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) piece: u32,
    pub(crate) offset: u16,
    pub(crate) tiers: u8,
}

/// Copies of a block in a tier, beyond the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies {
    pub(crate) hash: u64,
    pub(crate) tier: u8,
    pub(crate) count: u32,
}

/// A stream at one moment. Lists are kept in parts as they come: nothing long is moved while the writer waits.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) contents: Vec<Vec<u64>>,
    /// Parents before children.
    pub(crate) pieces: Vec<Vec<Piece>>,
    pub(crate) entries: Vec<Vec<Entry>>,
    pub(crate) copies: Vec<Vec<Copies>>,
    pub(crate) waiting: Vec<Vec<(u64, WaitingBlock)>>,
}

/// What is added to a picture in one step.
#[derive(Debug, Default)]
pub(crate) struct Strokes {
    /// Lists that are full.
    pub(crate) contents: Vec<Vec<u64>>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) copies: Vec<Copies>,
    pub(crate) waiting: Vec<(u64, WaitingBlock)>,
}

impl Picture {
    pub(crate) fn add(&mut self, strokes: Strokes) {
        fn push<T>(parts: &mut Vec<Vec<T>>, part: Vec<T>) {
            if !part.is_empty() {
                parts.push(part);
            }
        }
        self.contents.extend(strokes.contents);
        push(&mut self.pieces, strokes.pieces);
        push(&mut self.entries, strokes.entries);
        push(&mut self.copies, strokes.copies);
        push(&mut self.waiting, strokes.waiting);
    }

    pub(crate) fn contents_of(&self, piece: &Piece) -> &[u64] {
        &self.contents[piece.list as usize][piece.first as usize..][..piece.blocks as usize]
    }
}
