//! Where a caller is.

use std::net::SocketAddr;

/// Whether a caller is on this machine. It is the connection's other end that counts: a listener on all addresses has callers
/// from everywhere. One whose address nobody knows is not.
pub(crate) fn on_this_machine(peer: Option<SocketAddr>) -> bool {
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
}
