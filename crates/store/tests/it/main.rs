//! A journal of streams, and everything that disks do to it.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

mod faults;
mod rig;
mod running;
