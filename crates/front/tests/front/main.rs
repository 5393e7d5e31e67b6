//! The transparent front, over real sockets: whatever a gRPC call can do, it does the same through the front.
//!
//! The engine and most clients here are bare HTTP/2, so that tests see each header and each byte; tonic
//! stands on either side where statuses matter.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod calls;
mod ends;
mod engine;
mod load;
mod owned;
mod rig;
mod tls;
