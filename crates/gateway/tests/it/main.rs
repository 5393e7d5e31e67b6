//! The gateway over real sockets: engines that are told what to do, a plane that says what it was told, and clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking"
)]

mod answers;
mod callers;
mod engine;
mod faults;
mod refusals;
mod rig;
mod soak;
