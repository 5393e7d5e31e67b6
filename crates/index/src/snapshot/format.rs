//! Chunks: heads, checks and numbers. See the format in the module above.

use kvplane_core::digest;

use crate::extent::MAX_BLOCKS;

pub(super) const MAGIC: [u8; 4] = *b"KVPX";
pub(super) const VERSION: u16 = 1;
/// Bytes before the first item.
pub(super) const HEAD: usize = 44;
/// Bytes behind the last item.
pub(super) const CHECK: usize = 8;
/// The most blocks of a piece.
pub(super) const MOST_BLOCKS: u32 = 4096;
const _: () = assert!(MAX_BLOCKS <= MOST_BLOCKS as usize, "a piece has room for any extent");
/// A chunk of this size is closed before its next item, which is at most 80 KiB: a piece in which all blocks are held in other tiers than the one before.
const FULL: usize = (1 << 20) - (80 << 10);

/// What a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pieces = 1,
    Names = 2,
    Copies = 3,
    Waiting = 4,
}

impl Kind {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [Self::Pieces, Self::Names, Self::Copies, Self::Waiting]
            .into_iter()
            .find(|kind| *kind as u16 == number)
    }
}

/// The head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) chunks: u32,
    pub(super) sequence: u64,
    pub(super) entries: u64,
    pub(super) items: u32,
    pub(super) snapshot: u64,
}

impl Head {
    fn write(&self, chunk: &mut [u8]) {
        let fields: [&[u8]; 9] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &(self.kind as u16).to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.chunks.to_le_bytes(),
            &self.sequence.to_le_bytes(),
            &self.entries.to_le_bytes(),
            &self.items.to_le_bytes(),
            &self.snapshot.to_le_bytes(),
        ];
        let bytes = fields.into_iter().flatten();
        chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }
}

/// The check of a chunk, of everything but its last bytes.
pub(super) fn check_of(bytes: &[u8]) -> u64 {
    digest(bytes) as u64
}

pub(super) fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Chunks that are being written.
#[derive(Debug)]
pub(super) struct Chunks {
    done: Vec<(Kind, u32, Vec<u8>)>,
    kind: Kind,
    items: u32,
    open: Vec<u8>,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { done: Vec::new(), kind: Kind::Pieces, items: 0, open: vec![0; HEAD] }
    }

    /// Where the next item is written to.
    pub(super) fn item(&mut self, kind: Kind) -> &mut Vec<u8> {
        if self.open.len() >= FULL || (kind != self.kind && self.items > 0) {
            self.close();
        }
        self.kind = kind;
        self.items += 1;
        &mut self.open
    }

    fn close(&mut self) {
        let mut next = Vec::with_capacity(1 << 20);
        next.resize(HEAD, 0);
        let bytes = std::mem::replace(&mut self.open, next);
        self.done.push((self.kind, std::mem::take(&mut self.items), bytes));
    }

    /// Fills in the heads. There is at least one chunk, so that there is a head.
    pub(super) fn finish(mut self, sequence: u64, entries: u64) -> Vec<Vec<u8>> {
        if self.items > 0 || self.done.is_empty() {
            self.close();
        }
        let checks: Vec<u8> =
            self.done.iter().flat_map(|(_, _, bytes)| check_of(&bytes[HEAD..]).to_le_bytes()).collect();
        let snapshot = check_of(&checks);
        let chunks = self.done.len() as u32;
        let finish = |(number, (kind, items, mut bytes)): (usize, (Kind, u32, Vec<u8>))| {
            let head = Head { kind, number: number as u32, chunks, sequence, entries, items, snapshot };
            head.write(&mut bytes);
            let check = check_of(&bytes);
            bytes.extend(check.to_le_bytes());
            bytes
        };
        self.done.into_iter().enumerate().map(finish).collect()
    }
}

/// Reads numbers from bytes. `None` where there are not enough.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A varint of at most 32 bits.
    pub(super) fn varint(&mut self) -> Option<u32> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).ok();
            }
        }
        None
    }

    /// A head, if the chunk is of a known version.
    pub(super) fn head(&mut self) -> Option<Head> {
        let (kind, number, chunks) = (Kind::from_number(self.u16()?)?, self.u32()?, self.u32()?);
        let (sequence, entries, items, snapshot) = (self.u64()?, self.u64()?, self.u32()?, self.u64()?);
        Some(Head { kind, number, chunks, sequence, entries, items, snapshot })
    }
}
