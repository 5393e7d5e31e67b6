//! A served plane over real sockets.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod chain;
mod discovery;
mod edges;
mod faults;
mod hints;
mod operations;
mod rig;
mod routing;
mod value;

use kvplane_testkit::every_engine;
