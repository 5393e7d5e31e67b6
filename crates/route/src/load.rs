//! What an engine reports of its own load.

/// As an engine's metrics or its `GetLoads` say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Requests that run.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Tokens of the waiting ones that are not cached, where the engine says so.
    pub waiting_tokens: Option<u64>,
    /// The part of its KV cache that is in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_capacity: Option<u64>,
}

/// Whether a decision could go by what an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadSource {
    /// The engine reported nothing yet: bookings alone.
    #[default]
    Bookings,
    /// Bookings and a report that is fresh.
    Reported,
    /// The last report is too old: bookings alone.
    Stale,
}

impl LoadSource {
    /// Every source, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Bookings, Self::Reported, Self::Stale];

    /// Its name in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bookings => "bookings",
            Self::Reported => "reported",
            Self::Stale => "stale",
        }
    }
}

/// A report, when it came, and until when it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reported {
    pub(crate) load: Load,
    pub(crate) at: f64,
    pub(crate) until: f64,
    /// Requests there that were not booked here.
    pub(crate) foreign: u32,
    /// Uncached tokens that waited there and were not booked here.
    pub(crate) foreign_tokens: f64,
}
