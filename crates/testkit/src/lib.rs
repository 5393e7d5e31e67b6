//! Rigs for tests: simulated engines, served planes over them, and connections that can be cut.
//!
//! - [`Engine`], [`DrainedEngine`] and [`RelayedEngine`] are simulated engines with a seeded load, one per
//!   way in which events come;
//! - [`Rig`] is a plane with its servers on free ports, over any of them;
//! - [`Subscriber`] is a replica that is fed by the wire alone;
//! - [`Line`] is a TCP connection that can be cut, or go silent;
//! - [`model`] writes the files of a small model: a vocabulary and a template;
//! - [`call`], [`send`] and [`text`] make HTTP requests.
//!
//! Everything waits for a condition, with a deadline that only a hang reaches.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "for tests alone"
)]

mod ask;
mod drained;
mod engine;
mod http;
mod line;
pub mod model;
mod relayed;
mod rig;
mod subscriber;

use std::time::{Duration, Instant};

pub use drained::DrainedEngine;
pub use engine::{Engine, profiles, speaking, workload};
pub use http::{call, send, text};
pub use line::Line;
pub use relayed::RelayedEngine;
pub use rig::{Rig, Which, config, hasty, held, soon_down};
pub use subscriber::Subscriber;

/// Far beyond anything that should take: only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_secs(40);

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_async(what, async || holds()).await;
}

/// Waits until something holds that has to be asked for.
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
