//! Sockets that others connect to, and whether they ask who connects.

use schemars::JsonSchema;
use serde::Serialize;

use crate::auth::is_loopback;

/// A socket that others connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Listener {
    /// What it is for: the key that configures it, and the engine.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Only this machine reaches it.
    pub loopback: bool,
    /// Whether callers have to show a key.
    pub keys: bool,
    /// Somebody said by a key of its own that it may be open.
    pub opened: bool,
}

impl Listener {
    /// A socket at `host:port`, or at an address with its transport in front.
    pub fn new(name: impl Into<String>, address: impl Into<String>, keys: bool, opened: bool) -> Self {
        let address = address.into();
        let loopback = if address.contains("://") {
            is_loopback(&address)
        } else {
            is_loopback(&format!("tcp://{address}"))
        };
        Self { name: name.into(), address, loopback, keys, opened }
    }
}
