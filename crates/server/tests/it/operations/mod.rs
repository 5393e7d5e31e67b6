//! Operations on the fleet, over HTTP and gRPC, with simulated engines and with servers that do as a test
//! says.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod audit;
mod cancelled;
mod fronts;
mod input;
mod misbehaving;
mod proofs;
mod scripted;
mod talk;
mod verdicts;
