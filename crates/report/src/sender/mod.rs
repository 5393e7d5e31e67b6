//! From outboxes to servers.
//!
//! ```text
//! notes ──> ReportSink ──> Outbox <── Reporter ── calls ──> Link ──> server
//!           (never waits)                          (one connection for all replicas)
//! ```

mod calls;
mod connection;
mod credentials;
mod link;
mod reporter;
mod tally;

pub use calls::{Identity, unix_us};
pub use connection::{ServerAddress, ServerAddressError};
pub use credentials::{Credentials, Token};
pub use link::Link;
pub use reporter::{ReportSink, Reporter, ReporterOptions, begin};
pub use tally::{CALL_OUTCOMES, ReplicaReport, SAYINGS};
