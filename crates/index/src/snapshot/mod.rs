//! Snapshots: everything that the index knows of one stream, as bytes.
//!
//! A snapshot is of one sequence, as [`Index::mark`] told it. It is taken in steps while the stream goes on (see `writer::cut`), and loaded into an empty stream
//! of any index. That stream then answers as the first did, and so it does after any further announcements.
//! Which sides hold its blocks is left out ([`Index::set_sides`]): whoever loads a stream that has sides tells it again.
//!
//! # Format
//!
//! A snapshot is one or more chunks of at most about 1 MiB. Numbers are little-endian; a `varint` is 7 bits a byte, low ones first, the top bit set on all bytes but
//! the last.
//!
//! ```text
//! chunk     magic "KVPX" | version u16 = 1 | kind u16 | number u32 | chunks u32 | sequence u64 | entries u64 | items u32 | snapshot u64 | item ... | check u64
//!
//!           number     of this chunk, from 0
//!           chunks     of the snapshot
//!           entries    of the snapshot: (hash, block) pairs; what waits is not counted
//!           items      of this chunk
//!           snapshot   the same in every chunk of a snapshot, hardly ever in another
//!           check      lower half of the 128-bit xxh3 of everything before it
//!
//! piece     kind 1: consecutive blocks of a prompt, all below one block
//!           back varint | [offset varint] | blocks varint | run ... | content u64 ... | hash u64 ...
//!           back       0: the first block begins a prompt. n: it follows a block of the piece n pieces before this one ...
//!           offset     ... this one. Only where back is not 0
//!           run        blocks varint | tiers u8: so many blocks lie in these tiers (one bit each). None: the block is not held,
//!                      but others below it are. Runs end when they add up to the blocks of the piece
//!           hash       of every block that is held
//!
//! name      kind 2: one more hash of a block
//!           known u64 | hash u64 | tiers u8         known: a hash that the block has in its piece
//!
//! copies    kind 3: copies of a block in a tier, beyond the first
//!           hash u64 | tier u8 | count varint
//!
//! waiting   kind 4: a block whose parent is not known
//!           hash u64 | parent u64 | content u64 | copies varint, for each of the four tiers
//! ```
//!
//! Chunks come in the order of their numbers, kinds in the order above. Pieces are numbered through all chunks. Two pieces may have the same blocks at their
//! beginning; a block is what its path says it is. A block that is held takes 16 bytes, and its part of a piece's head.

mod decode;
mod encode;
mod format;
mod load;
mod picture;
mod taking;

pub use load::LoadError;
pub use taking::{Snapshot, Step, Taking};

pub(crate) use decode::{Parsed, PieceBytes};
pub(crate) use picture::{Copies, Entry, Picture, Piece, Strokes};

#[cfg(doc)]
use crate::Index;
