//! What an operator can ask of an engine, and what can be made to go wrong with it.
//!
//! ```text
//!  HTTP routes ─┐                                        ┌─ SimEngine
//!               ├─ layer: answers late, never, wrongly ──┤            Operated: ranks that flush, or say so
//!  gRPC ────────┘                                        └─ SimRelay
//! ```
//!
//! - [`conduct`] is how operations go wrong, as a value that replaces the one before;
//! - `desk` keeps it, and what was asked and recorded;
//! - `layer` stands before every route: answers that are late, missing or nonsense;
//! - `flush` is how ranks are asked, once or until they are idle.
//!
//! The engines' own ways (who reports the first rank only, who waits, what is published when) are with their
//! routes and services.

pub mod conduct;

mod desk;
mod flush;
mod layer;

use std::sync::Arc;

pub use self::conduct::{ClearEvent, Conduct, Question, Reply};
pub(crate) use self::desk::{Desk, Manner, ProfileError};
pub(crate) use self::flush::{flush_once, flush_ranks, flush_together};
pub(crate) use self::layer::before_routes;
use crate::engine::{CompletionResult, SimError};

/// What a flush is to reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reset {
    /// vLLM's tiers behind the device, too.
    pub(crate) external: bool,
    /// Running requests lose what they hold and compute it again, instead of being in the way.
    pub(crate) running: bool,
}

/// An engine as its operator sees it.
pub(crate) trait Operated: Send + Sync + 'static {
    /// What goes wrong, and what was asked.
    fn desk(&self) -> &Desk;

    /// What it says of itself.
    fn facts(&self) -> Facts;

    /// How busy each rank is.
    fn loads(&self) -> Vec<Load>;

    /// Flushes a rank; whether it says that it did.
    fn flush_rank(&self, rank: u32, reset: Reset) -> bool;

    /// Runs a request to its end, on a rank or in turn. `None` where there is no model behind the service.
    fn generate(
        self: Arc<Self>,
        prompt: &[u32],
        max_tokens: usize,
        rank: Option<u32>,
    ) -> Option<Result<CompletionResult, SimError>>;
}

/// What an engine says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) model: String,
    pub(crate) release: &'static str,
    pub(crate) block_size: usize,
    /// Of a rank.
    pub(crate) blocks: usize,
    pub(crate) ranks: u32,
    /// When this life began, in seconds since 1970.
    pub(crate) start_time: f64,
    /// Whether it was started with a profiler.
    pub(crate) has_profiler: bool,
}

impl Facts {
    /// Tokens that a rank has room for.
    pub(crate) fn room(&self) -> usize {
        self.blocks * self.block_size
    }

    /// Seconds since this life began.
    pub(crate) fn uptime(&self) -> f64 {
        kvplane_runtime::unix_time().as_secs_f64() - self.start_time
    }
}

/// How busy a rank is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) rank: u32,
    pub(crate) running: usize,
    pub(crate) used_tokens: usize,
    pub(crate) room: usize,
}

impl Load {
    /// The part of the cache that holds something.
    pub(crate) fn usage(&self) -> f64 {
        if self.room == 0 { 0.0 } else { self.used_tokens as f64 / self.room as f64 }
    }
}
