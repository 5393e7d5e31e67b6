//! What engines hold, reported as metadata.
//!
//! ```text
//! journals of an engine's ranks ──> Feed ──> notes ──┬──> the hints of this plane
//!    (the last place with tokens)                    └──> Outbox ──> ReportCacheState, PublishEvent of a server
//! ```
//!
//! Beyond the feed nothing can carry a token: a note is a hash and counts.

mod feed;
mod outbox;
mod reports;
mod sender;
mod sink;
mod stats;

pub use feed::{AdapterNames, Feeds, Rules, Target, WithheldCounts, hear};
pub use outbox::{Add, Call, Next, Outbox, OutboxCounts, OutboxOptions, Outcome, Pending, Saying, Ticket};
pub use reports::{ReplicaName, ReportSpec, Reports, ReportsChanged};
pub use sender::{
    CALL_OUTCOMES, Credentials, Identity, Link, ReplicaReport, ReportSink, Reporter, ReporterOptions,
    SAYINGS, ServerAddress, ServerAddressError, Token, begin, unix_us,
};
pub use sink::{Sink, Withheld};
pub use stats::{StatsNews, StatsOptions, StatsSource, UsageOf, follow_stats};
