//! The thread that publishing sockets share.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use mio::Poll;
use parking_lot::Mutex;

use super::hub::Hub;
use super::outgoing::Limits;
use super::outlet::{Outlet, Patience, Source};
use super::thread::{Calls, Server};
use crate::refusals::Refusals;
use crate::zmtp::SocketType;
use crate::{Endpoint, SocketError};

/// The thread that publishing sockets share, `kvp-pub`. Cheap to clone. The thread starts with the first
/// socket and ends with the last clone and the last socket.
#[derive(Clone, Default)]
pub struct PublishContext(Arc<Inner>);

#[derive(Default)]
struct Inner {
    running: Mutex<Option<(Arc<Calls>, JoinHandle<()>)>>,
    refusals: Refusals,
}

impl PublishContext {
    /// A new context.
    pub fn new() -> Self {
        Self::default()
    }

    /// Peers of all its sockets whose connections were refused, or closed for a fault of theirs.
    pub fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Opens a socket; what is wrong with its address is known when this returns.
    pub(super) fn open(
        &self,
        socket: SocketType,
        endpoint: &Endpoint,
        limits: Limits,
        holds_back: bool,
    ) -> Result<Handle, SocketError> {
        self.open_with(socket, endpoint, limits, holds_back, Patience::default())
    }

    /// Opens a socket with other limits for strangers.
    pub(super) fn open_with(
        &self,
        socket: SocketType,
        endpoint: &Endpoint,
        limits: Limits,
        holds_back: bool,
        patience: Patience,
    ) -> Result<Handle, SocketError> {
        let source = Source::open(endpoint)?;
        let last_endpoint = source.address(endpoint).to_owned();
        let calls = self.calls()?;
        let hub = Hub::new(socket, limits, holds_back, calls.clone(), self.0.refusals.clone());
        calls.add(Outlet::new(hub.clone(), source, last_endpoint.clone(), patience))?;
        Ok(Handle { hub, last_endpoint, calls, _context: self.clone() })
    }

    fn calls(&self) -> Result<Arc<Calls>, SocketError> {
        let mut running = self.0.running.lock();
        if let Some((calls, _)) = &*running {
            return Ok(calls.clone());
        }
        let poll = Poll::new()?;
        let calls = Calls::new(&poll)?;
        let server = Server::new(calls.clone(), poll);
        let thread = thread::Builder::new().name("kvp-pub".to_owned()).spawn(move || server.run())?;
        *running = Some((calls.clone(), thread));
        Ok(calls)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((calls, thread)) = self.running.get_mut().take() {
            calls.stop();
            if thread.join().is_err() {
                tracing::error!("a publishing thread panicked");
            }
        }
    }
}

impl std::fmt::Debug for PublishContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublishContext")
    }
}

/// What the owner of a socket holds. Dropping it closes the listener and all connections, and frees the
/// address, before it returns.
pub(super) struct Handle {
    pub(super) hub: Arc<Hub>,
    pub(super) last_endpoint: String,
    calls: Arc<Calls>,
    /// The thread lives as long as its sockets.
    _context: PublishContext,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.calls.remove(self.hub.id);
    }
}
