//! `inferencecache.v1alpha1` over real gRPC and HTTP, as gateways, subscribers and controllers use it.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

mod bounds;
mod events;
mod gates;
mod heard;
mod pages;
mod talk;
mod text;
mod tokens;
mod writes;
