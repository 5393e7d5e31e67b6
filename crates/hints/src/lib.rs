//! Hints for gateways, from metadata alone: which replica holds which prefix, and which one should be asked.
//!
//! ```text
//! reports, evictions ──┐
//!                      ├──> Book (who holds what) ── lookup ──> Verdict (scores, a reason code)
//! engines heard here ──┘         Policies, Limits
//! ```
//!
//! The decision is inference-cache's, rule by rule. Nothing in this room can carry a token: prefixes are
//! hashes and counts. No IO; time is passed in as microseconds of the wall clock.

mod book;
mod decide;
mod observer;
mod policy;
mod prefix;
mod question;

pub use book::{
    Book, Census, Dropped, Expired, Limits, ModelCensus, Refused, ReplicaCensus, Reported, Stats, Whose,
};
pub use observer::{Happened, Observer};
pub use policy::{Eviction, Policies, Policy, Quota, Strategy};
pub use prefix::{CacheTier, Entry, Note, Prefix, PrefixHash};
pub use question::{Asked, Question, ReasonCode, Score, Verdict};

/// Writes and lookups of this tenant do nothing, silently: probes use it.
pub const RESERVED_TENANT: &str = "inferencecache.io/probe";
