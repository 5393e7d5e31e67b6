//! Who may ask for what.
//!
//! ```text
//!  connection ── listen/ ──> Peer (address, client certificate)
//!                               │
//!  request ── headers ──────> Gate ── table: what the route needs ──> Caller, or 401 / 403
//! ```
//!
//! Every route and every method has a row in the [`table`]. A request is checked before anything is looked
//! up, so that a refusal says nothing about engines. Where no keys are configured, it is the address that
//! counts: callers on this machine may do everything, others nothing, unless the listener was opened to
//! everybody. The routes of an indexer may be opened to networks, with or without keys.

mod access;
mod guard;
mod keys;
mod network;
mod refusals;
mod role;
pub mod table;

pub use access::{Access, Exposed, is_loopback};
pub use access::{Gate, Port};
pub use guard::{guard_calls, guard_pages, refused_call};
pub(crate) use keys::Identity;
pub use keys::{Caller, CertificateKey, Keys, KeysError, Proof, Subject, TokenKey};
pub use network::{Network, NetworkError, Networks};
pub use refusals::Refused;
pub use role::{Needs, Role, Roles};

#[cfg(test)]
mod tests;
