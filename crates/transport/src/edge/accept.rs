//! Accepting connections, also where the system has no descriptors left.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

/// After a failure (no descriptors left), so that it is not tried in a circle.
const PAUSE: Duration = Duration::from_millis(50);
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
}

impl Accepting {
    /// `name` is what the listener is called in logs.
    pub fn new(listener: TcpListener, name: &'static str) -> Self {
        Self { listener, name, failures: Repeats::default() }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. Dropping this loses none.
    pub async fn next(&self) -> (TcpStream, SocketAddr) {
        loop {
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
