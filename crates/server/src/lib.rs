//! What the plane answers: gRPC and HTTP servers over the streams that `ingest` keeps.
//!
//! Servers take listeners that somebody else bound, so that a taken port is known before anything starts. They never
//! see an engine's bytes.

mod error;
mod grpc;
mod http;
mod readiness;
mod select;
mod service;

pub use service::{Options, Service};
