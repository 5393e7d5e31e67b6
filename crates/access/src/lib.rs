//! Access: who may connect, who may ask for what, and how much a caller may take.
//!
//! | module | what it has |
//! |---|---|
//! | `auth` | roles, tokens and certificates, the table of routes and methods, the gate before each listener |
//! | `listen` | listeners with or without TLS, and who is at the other end of a connection |
//! | [`bounds`] | what callers may take, and what is taken |
//! | `error` | a public error as HTTP and as gRPC have it |
//!
//! This crate knows no engine, no stream and no handler. It reads certificates from files, and no
//! configuration: the caller that starts a listener passes in the keys, the certificates and the bounds.

mod auth;
pub mod bounds;
mod error;
mod limits;
mod listen;
mod listener;
pub mod pem;

pub use auth::{
    Access, Caller, CertificateKey, Exposed, Gate, Keys, KeysError, Needs, Network, NetworkError, Networks,
    Port, Proof, Refused, Role, Roles, Subject, TokenKey, guard_calls, guard_pages, is_loopback,
    refused_call, table,
};
pub use bounds::{Bound, Bounds, Edge, OtherListener};
pub use error::ApiError;
pub use limits::{descriptor_limit, open_descriptors};
pub use listen::{Connection, Door, Peer, Tls, TlsError, TlsFiles, TlsRead};
pub use listener::Listener;
