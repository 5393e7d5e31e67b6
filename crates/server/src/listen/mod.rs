//! Listeners of both servers: connections come in, with or without TLS, and it is known who is at the other end.

mod door;
mod plain;
mod tls;

pub(crate) use door::{Door, Peer};
pub use tls::{Tls, TlsError, TlsFiles, TlsRead};
