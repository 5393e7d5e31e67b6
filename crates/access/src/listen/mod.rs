//! Listeners of both servers: connections come in, with or without TLS, and it is known who is at the other
//! end.

mod door;
mod http1;
mod plain;
mod tls;

pub use door::{Connection, Door, Peer};
pub use tls::{Tls, TlsError, TlsFiles, TlsRead};
