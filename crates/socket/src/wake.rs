//! How other threads get the attention of a thread that sleeps in `zmq_poll`.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zmq::{Context, DONTWAIT, Socket};

use crate::SocketError;

/// The calling side. Closed on shutdown so that handles that outlive the service keep no context alive.
pub(crate) struct Waker(Mutex<Option<Socket>>);

/// The sleeping side.
pub(crate) struct Sleeper(Socket);

/// A connected pair.
pub(crate) fn pair(context: &Context) -> Result<(Waker, Sleeper), SocketError> {
    let address = unique_inproc("wake");
    let sleeper = context.socket(zmq::PULL).map_err(SocketError::doing("open a wake socket"))?;
    let waker = context.socket(zmq::PUSH).map_err(SocketError::doing("open a wake socket"))?;
    for socket in [&sleeper, &waker] {
        socket.set_linger(0).map_err(SocketError::doing("set linger"))?;
        // One pending call is as good as many.
        socket.set_sndhwm(1).map_err(SocketError::doing("set a queue limit"))?;
        socket.set_rcvhwm(1).map_err(SocketError::doing("set a queue limit"))?;
    }
    sleeper.bind(&address).map_err(SocketError::doing("bind a wake socket"))?;
    waker.connect(&address).map_err(SocketError::doing("connect a wake socket"))?;
    Ok((Waker(Mutex::new(Some(waker))), Sleeper(sleeper)))
}

/// An in-process address that nobody else uses.
pub(crate) fn unique_inproc(purpose: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("inproc://kvp-{purpose}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Waker {
    /// Ends the other side's sleep, or its next one.
    pub(crate) fn wake(&self) {
        if let Some(socket) = &*self.0.lock() {
            // A full queue means that a call is already waiting.
            let _ = socket.send("", DONTWAIT);
        }
    }

    /// Lets go of the socket. Only when the other side has ended: closing drops a call not yet heard.
    pub(crate) fn close(&self) {
        self.0.lock().take();
    }
}

impl Sleeper {
    /// The socket to poll on.
    pub(crate) fn socket(&self) -> &Socket {
        &self.0
    }

    /// Forgets the calls that were heard.
    pub(crate) fn clear(&self) {
        while self.0.recv_msg(DONTWAIT).is_ok() {}
    }
}
