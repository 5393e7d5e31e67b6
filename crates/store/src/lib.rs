//! The durable journal of one plane: the only room that writes files.
//!
//! A directory has segments, and nothing else that is read: no index and no ledger that could be out of step with them.
//! [`segment`] is their format, [`Log`] appends to them, [`recover`] reads them back through each stream's ledger, and
//! [`Journal`] is what streams append to: it never makes them wait, and where a disk fails it is [`Off`], and hearing
//! goes on.
//!
//! Files are reached through [`Files`], so that tests can put every fault into it.

mod compact;
mod disk;
mod files;
mod journal;
mod log;
pub mod memory;
mod recover;
mod segment;
mod writer;

pub use disk::Disk;
pub use files::{Files, Out};
pub use journal::{Counters, Journal, Off, Options, Status, StreamJournal, Sync, Written};
pub use log::{Header, Log, Name};
pub use recover::{Found, Recovered, Recovery, Trouble, clear, read};
pub use segment::{Cut, Kind, Record, RecordHead, Records, Segment};
