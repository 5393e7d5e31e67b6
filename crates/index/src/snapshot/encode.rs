//! From a picture to bytes.

use super::format::{Chunks, Kind, write_varint};
use super::{Copies, Entry, Picture, Piece};
use crate::LEVELS;

/// The blocks that are written, piece after piece.
#[derive(Debug)]
struct Blocks {
    /// By piece: how many of its blocks are needed, to the last that is held or has a piece below it.
    needed: Vec<u32>,
    /// By piece: where its blocks begin in the lists below.
    starts: Vec<usize>,
    hashes: Vec<u64>,
    /// None: not held.
    tiers: Vec<u8>,
}

/// Writes a picture.
pub(super) fn encode(mut picture: Picture, sequence: u64, entries: u64) -> Vec<Vec<u8>> {
    let pieces: Vec<Piece> = std::mem::take(&mut picture.pieces).into_iter().flatten().collect();
    let entry_lists = std::mem::take(&mut picture.entries);
    let mut blocks = Blocks::needed_for(&pieces, entry_lists.iter().flatten());
    let mut names = Vec::new();
    for entry in entry_lists.iter().flatten() {
        names.extend(blocks.enter(entry).map(|known| (known, entry.hash, entry.tiers)));
    }
    drop(entry_lists);

    let mut chunks = Chunks::new();
    write_pieces(&mut chunks, &picture, &pieces, &blocks);
    for (known, hash, tiers) in names {
        let bytes = chunks.item(Kind::Names);
        bytes.extend(known.to_le_bytes());
        bytes.extend(hash.to_le_bytes());
        bytes.push(tiers);
    }
    // A block whose table was visited again had its copies counted again.
    let mut copies: Vec<Copies> = picture.copies.into_iter().flatten().collect();
    copies.sort_unstable_by_key(|copies| (copies.hash, copies.tier));
    copies.dedup_by_key(|copies| (copies.hash, copies.tier));
    for copies in copies {
        let bytes = chunks.item(Kind::Copies);
        bytes.extend(copies.hash.to_le_bytes());
        bytes.push(copies.tier);
        write_varint(bytes, u64::from(copies.count));
    }
    for (hash, block) in picture.waiting.iter().flatten() {
        let bytes = chunks.item(Kind::Waiting);
        for number in [*hash, block.parent, block.content] {
            bytes.extend(number.to_le_bytes());
        }
        const { assert!(LEVELS == 4) };
        block.copies.iter().for_each(|copies| write_varint(bytes, u64::from(*copies)));
    }
    chunks.finish(sequence, entries)
}

impl Blocks {
    fn needed_for<'a>(pieces: &[Piece], entries: impl Iterator<Item = &'a Entry>) -> Self {
        let mut needed = vec![0; pieces.len()];
        let need = |needed: &mut Vec<u32>, piece: u32, offset: u32| {
            let needed = &mut needed[piece as usize];
            *needed = (*needed).max(offset + 1);
        };
        for entry in entries {
            need(&mut needed, entry.piece, u32::from(entry.offset));
        }
        // Children come after their parents.
        for at in (0..pieces.len()).rev() {
            if let Some((parent, offset)) = pieces[at].parent
                && needed[at] > 0
            {
                need(&mut needed, parent, offset);
            }
        }
        let mut total = 0;
        let mut starts = Vec::with_capacity(needed.len());
        for needed in &needed {
            starts.push(total);
            total += *needed as usize;
        }
        Self { needed, starts, hashes: vec![0; total], tiers: vec![0; total] }
    }

    /// Enters a block. If it has a hash already, says which.
    fn enter(&mut self, entry: &Entry) -> Option<u64> {
        let at = self.starts[entry.piece as usize] + usize::from(entry.offset);
        if self.tiers[at] != 0 {
            return Some(self.hashes[at]);
        }
        (self.hashes[at], self.tiers[at]) = (entry.hash, entry.tiers);
        None
    }
}

fn write_pieces(chunks: &mut Chunks, picture: &Picture, pieces: &[Piece], blocks: &Blocks) {
    // As they were made, not as they were visited: whoever loads them would fill its tables in the order of these tables, which is slow. Pieces that
    // nothing needs are left out.
    let mut order: Vec<usize> = (0..pieces.len()).filter(|at| blocks.needed[*at] > 0).collect();
    order.sort_unstable_by_key(|at| pieces[*at].origin);
    let mut numbers = vec![0_u32; pieces.len()];
    for (number, at) in order.into_iter().enumerate() {
        let (piece, count) = (&pieces[at], blocks.needed[at] as usize);
        numbers[at] = number as u32;
        let bytes = chunks.item(Kind::Pieces);
        match piece.parent {
            None => write_varint(bytes, 0),
            Some((parent, offset)) => {
                write_varint(bytes, u64::from(numbers[at] - numbers[parent as usize]));
                write_varint(bytes, u64::from(offset));
            }
        }
        write_varint(bytes, count as u64);
        let (hashes, tiers) =
            (&blocks.hashes[blocks.starts[at]..][..count], &blocks.tiers[blocks.starts[at]..][..count]);
        for run in tiers.chunk_by(|a, b| a == b) {
            write_varint(bytes, run.len() as u64);
            bytes.push(run[0]);
        }
        for content in &picture.contents_of(piece)[..count] {
            bytes.extend_from_slice(&content.to_le_bytes());
        }
        let held = hashes.iter().zip(tiers).filter(|(_, tiers)| **tiers != 0);
        for (hash, _) in held {
            bytes.extend_from_slice(&hash.to_le_bytes());
        }
    }
}
