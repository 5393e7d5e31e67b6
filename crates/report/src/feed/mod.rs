//! From the journals of an engine's ranks to notes.
//!
//! ```text
//! Stream ── snapshot, entries ──> RankFeed ── Ledger ──┐
//!                                 (describe: the last  ├── shares ──> Replica ── notes ──> Sink
//! Stream ───────────────────────>  place with tokens)  ┘
//! ```
//!
//! The protocol carries no trust, so what cannot be vouched for is not reported (`share.rs`), nor
//! is what a fingerprint cannot say (`describe.rs`). Both are counted. While a stream is being recovered,
//! what was reported of it stays; once it is out of reach, or another epoch has begun, nothing does.

mod adapters;
mod book;
mod describe;
mod feeds;
mod ledger;
mod lies;
mod progress;
mod rank;
mod replica;
mod share;
mod withheld;

pub use book::hear;
pub use describe::AdapterNames;
pub use feeds::{Feeds, Target};
use ledger::Ledger;
use share::Share;
pub use withheld::WithheldCounts;

/// How an engine is reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Names of adapters that the engine knows by their numbers alone.
    pub adapter_names: AdapterNames,
    /// For engines that keep what leaves their device, and do not say so: this many blocks of each rank that
    /// left it are reported behind it. The one that left first is the first to be given up. 0: what is
    /// removed is gone.
    pub keep_left: usize,
}

impl Rules {
    fn ledger(&self, share: Share) -> Ledger {
        Ledger::new(share, self.keep_left)
    }
}
