//! From bytes to what they say. Nothing is believed before all of it was looked at.

use super::format::{Bytes, CHECK, HEAD, Head, Kind, MAGIC, MOST_BLOCKS, VERSION, check_of};
use super::{Copies, LoadError};
use crate::LEVELS;
use crate::writer::WaitingBlock;

/// A piece that was found to be well formed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceBytes<'a> {
    /// The block before the first: an earlier piece, and an offset in it.
    pub(crate) parent: Option<(u32, u32)>,
    pub(crate) blocks: u32,
    runs: &'a [u8],
    contents: &'a [u8],
    hashes: &'a [u8],
}

/// A snapshot that was found to be whole.
#[derive(Debug, Default)]
pub(crate) struct Parsed<'a> {
    pub(crate) sequence: u64,
    pub(crate) entries: u64,
    /// Every tier that something is held in, one bit each.
    pub(crate) tiers: u8,
    pub(crate) pieces: Vec<PieceBytes<'a>>,
    /// A hash that a block has, one more, and the tiers of that.
    pub(crate) names: Vec<(u64, u64, u8)>,
    pub(crate) copies: Vec<Copies>,
    pub(crate) waiting: Vec<(u64, WaitingBlock)>,
}

const ALL_TIERS: u8 = (1 << LEVELS) - 1;

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes
        .chunks_exact(8)
        .map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

impl<'a> PieceBytes<'a> {
    /// Runs of blocks that lie in the same tiers: how many, and the tiers.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u8)> + 'a {
        let mut bytes = Bytes(self.runs);
        std::iter::from_fn(move || Some((bytes.varint()?, bytes.u8()?)))
    }

    pub(crate) fn contents(&self) -> impl Iterator<Item = u64> + 'a {
        numbers(self.contents)
    }

    /// Of every block that is held.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> + 'a {
        numbers(self.hashes)
    }
}

/// Reads and checks a snapshot.
pub(super) fn parse<'a>(chunks: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Parsed<'a>, LoadError> {
    let count = chunks.len();
    let mut parsed = Parsed::default();
    let mut first: Option<Head> = None;
    let mut kind = Kind::Pieces;
    for (number, chunk) in chunks.enumerate() {
        let damaged = LoadError::Damaged { chunk: number };
        let (head, items) = open(chunk).ok_or(damaged)??;
        let of = first.get_or_insert(head);
        if (head.snapshot, head.chunks, head.sequence, head.entries)
            != (of.snapshot, of.chunks, of.sequence, of.entries)
        {
            return Err(LoadError::Mixed { chunk: number });
        }
        if (head.number as usize, head.chunks as usize) != (number, count) {
            return Err(LoadError::Incomplete { chunks: head.chunks });
        }
        if head.kind < kind || parsed.read(head, items).is_none() {
            return Err(damaged);
        }
        kind = head.kind;
    }
    let Some(first) = first else { return Err(LoadError::Incomplete { chunks: 1 }) };
    (parsed.sequence, parsed.entries) = (first.sequence, first.entries);
    let held: usize = parsed.pieces.iter().map(|piece| piece.hashes.len() / 8).sum();
    if (held + parsed.names.len()) as u64 != first.entries {
        return Err(LoadError::Damaged { chunk: count - 1 });
    }
    Ok(parsed)
}

/// The head and the items of a chunk whose check is right.
fn open(chunk: &[u8]) -> Option<Result<(Head, Bytes<'_>), LoadError>> {
    let mut bytes = Bytes(chunk);
    if bytes.take(MAGIC.len())? != MAGIC {
        return None;
    }
    // Said before the check, which another version may do in another way.
    let version = bytes.u16()?;
    if version != VERSION {
        return Some(Err(LoadError::Version(version)));
    }
    let (checked, check) = chunk.split_at_checked(chunk.len().checked_sub(CHECK)?)?;
    if Bytes(check).u64()? != check_of(checked) {
        return None;
    }
    let head = bytes.head()?;
    Some(Ok((head, Bytes(checked.get(HEAD..)?))))
}

impl<'a> Parsed<'a> {
    /// Reads the items of a chunk. `None` if they are not what the format says.
    fn read(&mut self, head: Head, mut bytes: Bytes<'a>) -> Option<()> {
        for _ in 0..head.items {
            match head.kind {
                Kind::Pieces => {
                    let piece = self.piece(&mut bytes)?;
                    self.pieces.push(piece);
                }
                Kind::Names => {
                    let (known, hash) = (bytes.u64()?, bytes.u64()?);
                    let tiers = self.tiers(&mut bytes).filter(|tiers| *tiers != 0)?;
                    self.names.push((known, hash, tiers));
                }
                Kind::Copies => {
                    let (hash, tier, count) = (bytes.u64()?, bytes.u8()?, bytes.varint()?);
                    if usize::from(tier) >= LEVELS || count == 0 {
                        return None;
                    }
                    self.copies.push(Copies { hash, tier, count });
                }
                Kind::Waiting => {
                    let (hash, parent, content) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
                    let mut copies = [0; LEVELS];
                    for copies in &mut copies {
                        *copies = bytes.varint()?;
                    }
                    if copies == [0; LEVELS] {
                        return None;
                    }
                    self.waiting.push((hash, WaitingBlock::new(parent, content, copies)));
                }
            }
        }
        bytes.is_empty().then_some(())
    }

    fn tiers(&mut self, bytes: &mut Bytes<'_>) -> Option<u8> {
        let tiers = bytes.u8().filter(|tiers| tiers & !ALL_TIERS == 0)?;
        self.tiers |= tiers;
        Some(tiers)
    }

    fn piece(&mut self, bytes: &mut Bytes<'a>) -> Option<PieceBytes<'a>> {
        let back = bytes.varint()?;
        let parent = if back == 0 {
            None
        } else {
            let parent = (self.pieces.len() as u32).checked_sub(back)?;
            let offset = bytes.varint()?;
            if offset >= self.pieces[parent as usize].blocks {
                return None;
            }
            Some((parent, offset))
        };
        let blocks = bytes.varint().filter(|blocks| (1..=MOST_BLOCKS).contains(blocks))?;
        let before = bytes.0;
        let (mut all, mut held) = (0, 0);
        while all < blocks {
            let run = bytes.varint().filter(|run| *run > 0 && *run <= blocks - all)?;
            all += run;
            held += if self.tiers(bytes)? == 0 { 0 } else { run as usize };
        }
        let runs = &before[..before.len() - bytes.0.len()];
        let contents = bytes.take(blocks as usize * 8)?;
        let hashes = bytes.take(held * 8)?;
        Some(PieceBytes { parent, blocks, runs, contents, hashes })
    }
}
