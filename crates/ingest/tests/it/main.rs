//! Answers over streams, what a late start and a defect leave behind, and what every kind of source has to
//! pass.

#![allow(clippy::unwrap_used, reason = "tests")]

mod catalog;
mod conformance;
mod defect;
mod durable;
mod late_join;
