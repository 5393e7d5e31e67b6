//! Engines from pods: any history against a naive model, and what each key is decided by.

#![allow(clippy::unwrap_used, reason = "tests")]

mod histories;
#[cfg(feature = "watch")]
mod remote;
mod rules;
#[cfg(feature = "watch")]
mod server;
#[cfg(feature = "watch")]
mod watching;
