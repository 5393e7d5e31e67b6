//! What engines hold, told as metadata.
//!
//! ```text
//! journals of an engine's ranks ──> Feed ──> notes ──┬──> the hints of this plane
//!    (the last place with tokens)                    └──> Outbox ──> ReportCacheState, PublishEvent of a server
//! ```
//!
//! Beyond the feed nothing can carry a token: a note is a hash and counts.

mod feed;
mod sink;

pub use feed::{AdapterNames, Feeds, Rules, Told, WithheldCounts, hear};
pub use sink::{Sink, Withheld};
