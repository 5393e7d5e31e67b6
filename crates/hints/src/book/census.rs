//! What the book says of itself: bounds, refusals, counts.

use std::sync::Arc;

use crate::policy::Eviction;

/// Bounds of the whole book.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Reported (replica, prefix) pairs. Engines that are heard do not count: what they hold is bounded
    /// elsewhere.
    pub max_entries: usize,
    /// Tenants, models, schemes, adapters and replicas. Reports of one replica more are refused, entries with
    /// one scheme or adapter more are left out; engines that are heard count, but are never refused.
    pub max_names: usize,
}

impl Limits {
    /// Longer names are refused.
    pub const MAX_NAME_BYTES: usize = 1024;
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_entries: 1_000_000, max_names: 65_536 }
    }
}

/// Why something was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// One more name would be too many.
    #[error("too many tenants, models, schemes, adapters and replicas: at most {max} names are kept")]
    TooManyNames {
        /// The bound.
        max: usize,
    },
    /// A name is too long.
    #[error("a name has {bytes} bytes: at most {max} are allowed")]
    NameTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}

/// What became of a report's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reported {
    /// How many were taken.
    pub taken: usize,
    /// How many were left out because the name of their scheme or adapter is too long, or one too many.
    pub unnamed: usize,
}

/// A replica of a tenant's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The model.
    pub model: &'a str,
    /// The replica.
    pub replica: &'a str,
}

/// What a replica says of itself. NaN and infinities become 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Bytes of its cache in use.
    pub cache_memory_bytes: i64,
    /// Hits by queries, 0 to 1.
    pub hit_rate: f32,
    /// How busy it is, 0 to 1.
    pub pressure: f32,
    /// Tokens found behind the device.
    pub t2_hit_tokens: i64,
    /// Tokens looked for behind the device.
    pub t2_query_tokens: i64,
}

/// What a replica said of itself, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicaReport {
    pub(super) stats: Stats,
    /// When it said so.
    pub(super) at_us: i64,
    /// When it was last known to be alive: its word is kept, but it gets no younger.
    pub(super) alive_us: i64,
}

impl Stats {
    /// The same with 0 where a number is none.
    pub(crate) fn finite(self) -> Self {
        let number = |value: f32| if value.is_finite() { value } else { 0.0 };
        Self { hit_rate: number(self.hit_rate), pressure: number(self.pressure), ..self }
    }
}

/// What was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expired {
    /// How many (replica, prefix) pairs.
    pub entries: usize,
}

/// Entries that the book dropped by itself, since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Whose.
    pub tenant: Arc<str>,
    /// By which order.
    pub algorithm: Eviction,
    /// `ttl`, `quota` or `cap`.
    pub reason: &'static str,
    /// How many (replica, prefix) pairs.
    pub entries: u64,
}

/// What is known of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaCensus {
    /// Its tenant.
    pub tenant: Arc<str>,
    /// Its model.
    pub model: Arc<str>,
    /// Its name.
    pub replica: Arc<str>,
    /// Its statistics, and when they came.
    pub stats: Option<(Stats, i64)>,
    /// Prefixes that it holds.
    pub prefixes: usize,
    /// The latest time of a report about it; 0 for an engine that is heard.
    pub last_event_us: i64,
    /// It is an engine that is heard here.
    pub heard: bool,
}

/// What is known of a tenant's model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCensus {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The model.
    pub model: Arc<str>,
    /// Distinct prefixes.
    pub prefixes: usize,
    /// (replica, prefix) pairs.
    pub entries: usize,
}

/// Everything, counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Census {
    /// By replica.
    pub replicas: Vec<ReplicaCensus>,
    /// By tenant and model.
    pub models: Vec<ModelCensus>,
}
