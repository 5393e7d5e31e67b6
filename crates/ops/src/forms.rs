//! What each form of answer means. No IO: what came is passed in, and nothing of it is trusted.

mod grpc;
mod http;
mod json;

pub(crate) use grpc::{read_grpc, read_no_connection};
pub(crate) use http::{read_http, read_no_http};

use crate::answer::{Covers, Meaning, Read};

/// A yes that the engine stands for.
fn yes(covers: Covers, why: impl Into<String>) -> Read {
    Read::closed(Meaning::Accepted { proves: true, covers }, why)
}

#[cfg(test)]
mod tests;
