//! Somebody who wants to know what changes in the book.

use crate::book::Whose;
use crate::prefix::PrefixHash;

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened<'a> {
    /// A prefix is held that was not.
    Added {
        /// What it hashes to.
        hash: &'a PrefixHash,
        /// Its adapter; empty for none.
        adapter: &'a str,
    },
    /// A prefix is not held any more: evicted, forgotten, or dropped for want of room.
    Evicted {
        /// What it hashes to.
        hash: &'a PrefixHash,
        /// Its adapter; empty for none.
        adapter: &'a str,
    },
    /// Statistics came, or a sign of life.
    Updated,
    /// Nothing is held any more.
    Cleared,
}

/// Notified of every change, under the book's lock: it must not wait, nor ask the book.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Whether anybody listens; if not, changes are not notified.
    fn listens(&self) -> bool;
    /// Something changed for a replica.
    fn happened(&self, whose: Whose<'_>, what: Happened<'_>);
}
