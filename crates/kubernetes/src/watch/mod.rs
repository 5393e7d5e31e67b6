//! Watching an API server.

mod ask;
mod client;
mod follow;
mod object;
mod pool;
mod source;

pub use client::{ClientError, Pace, Way};
pub use pool::{PoolEndpoint, PoolRewrite, PoolSelect, PoolSource, PoolState, follow_pool};
pub use source::{Fleet, Select, Source, run};
