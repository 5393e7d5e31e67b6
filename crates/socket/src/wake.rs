//! How other threads get the attention of a thread that sleeps in `zmq_poll`.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use zmq::{Context, DONTWAIT, Socket};

use crate::SocketError;

/// The calling side. Closed on shutdown so that handles that outlive the service keep no context alive.
pub(crate) struct Waker {
    socket: Mutex<Option<Socket>>,
    called: Arc<AtomicBool>,
}

/// The sleeping side.
pub(crate) struct Sleeper {
    socket: Socket,
    /// A call is under way: one is as good as many. Not a queue limit of one instead: the sender learns late
    /// that there is room again, and would lose a call.
    called: Arc<AtomicBool>,
    descriptor: RawFd,
}

/// A connected pair.
pub(crate) fn pair(context: &Context) -> Result<(Waker, Sleeper), SocketError> {
    let address = unique_inproc("wake");
    let sleeper = context.socket(zmq::PULL).map_err(SocketError::doing("open a wake socket"))?;
    let waker = context.socket(zmq::PUSH).map_err(SocketError::doing("open a wake socket"))?;
    for socket in [&sleeper, &waker] {
        socket.set_linger(0).map_err(SocketError::doing("set linger"))?;
    }
    sleeper.bind(&address).map_err(SocketError::doing("bind a wake socket"))?;
    waker.connect(&address).map_err(SocketError::doing("connect a wake socket"))?;
    let descriptor = sleeper.get_fd().map_err(SocketError::doing("read a descriptor"))?;
    let called = Arc::new(AtomicBool::new(false));
    let waker = Waker { socket: Mutex::new(Some(waker)), called: called.clone() };
    Ok((waker, Sleeper { socket: sleeper, called, descriptor }))
}

/// An in-process address that nobody else uses.
pub(crate) fn unique_inproc(purpose: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("inproc://kvp-{purpose}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Waker {
    /// Ends the other side's sleep, or its next one. What it shall find must be in its place before.
    pub(crate) fn wake(&self) {
        if self.called.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(socket) = &*self.socket.lock()
            && let Err(cause) = socket.send("", DONTWAIT)
        {
            tracing::error!(%cause, "a socket thread could not be woken");
        }
    }

    /// Lets go of the socket. Only when the other side has ended: closing drops a call not yet heard.
    pub(crate) fn close(&self) {
        self.socket.lock().take();
    }
}

impl Sleeper {
    /// The socket to poll on.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Its descriptor, readable when there may be a call. Call [`Self::clear`] after every look at it.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Forgets the calls that were heard. Look for what they were about afterwards, not before.
    pub(crate) fn clear(&self) {
        while self.socket.recv_msg(DONTWAIT).is_ok() {}
        self.called.store(false, Ordering::SeqCst);
    }
}
