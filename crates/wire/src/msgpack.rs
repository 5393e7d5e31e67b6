//! Msgpack at the level of bytes: a reader that borrows and trusts nothing, and a writer that picks the
//! shortest form, which is the form that engines send.
//!
//! The reader never recurses and never allocates by a length from the wire. A length is only a number
//! of values still to come, and each of them needs at least one byte.

mod ids;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use reader::{Fault, Integer, Reader};
pub use writer::Writer;
