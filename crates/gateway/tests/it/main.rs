//! The gateway over real sockets: scripted engines, a plane that records its calls, and clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking"
)]

mod answers;
mod callers;
mod disaggregated;
mod engine;
mod faults;
mod refusals;
mod rig;
mod soak;
mod traces;
