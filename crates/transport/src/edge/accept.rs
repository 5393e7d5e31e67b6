//! Accepting connections, also where the system has no descriptors left.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

/// After a failure (no descriptors left), so that it is not tried in a circle.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections that may wait to be accepted; the system takes less where `net.core.somaxconn` is lower. The
/// standard library asks for 128. A burst of connections fills those between two turns of the accept loop,
/// and a client whose SYN is dropped then sends it again after a second.
const BACKLOG: i32 = 4096;
/// Connections accepted before others get a turn, so that a burst is not accepted faster than it is served.
const IN_A_ROW: u32 = 32;
/// One line in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Something that may happen often and is logged now and then.
#[derive(Debug, Default)]
pub struct Repeats(Mutex<(Option<Instant>, u64)>);

impl Repeats {
    /// How many were suppressed since the last line, if a line is due.
    pub fn due(&self) -> Option<u64> {
        let mut state = self.0.lock();
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last) < LOG_EVERY) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
impl Repeats {
    pub(super) fn forget_last(&self) {
        self.0.lock().0 = None;
    }
}

/// Accepts the connections of one listener.
#[derive(Debug)]
pub struct Accepting {
    listener: TcpListener,
    name: &'static str,
    failures: Repeats,
    in_a_row: AtomicU32,
}

impl Accepting {
    /// `name` is what the listener is called in logs. Lengthens the listener's queue, however it was bound.
    pub fn new(listener: TcpListener, name: &'static str) -> Self {
        if let Err(error) = SockRef::from(&listener).listen(BACKLOG) {
            debug!(listener = name, %error, "accept queue not lengthened");
        }
        Self { listener, name, failures: Repeats::default(), in_a_row: AtomicU32::new(0) }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. Dropping this loses none.
    pub async fn next(&self) -> (TcpStream, SocketAddr) {
        loop {
            if self.in_a_row.fetch_add(1, Ordering::Relaxed) >= IN_A_ROW {
                self.in_a_row.store(0, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            match self.listener.accept().await {
                Ok((stream, address)) => match stream.set_nodelay(true) {
                    Ok(()) => return (stream, address),
                    Err(error) => debug!(listener = self.name, %error, "connection already closed"),
                },
                Err(error) => {
                    if let Some(suppressed) = self.failures.due() {
                        warn!(listener = self.name, %error, suppressed, "accept failed");
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
