//! systemd's notification protocol: a datagram with lines of `KEY=VALUE`.
//!
//! Its few lines are here rather than a library's: the socket must never block the loop that serves, and what
//! the environment says is passed in, so that tests need not change it.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;
use tracing::{error, warn};

/// How often, and how long apart, readiness is notified again.
const READY_TRIES: u32 = 100;
const READY_PAUSE: Duration = Duration::from_millis(50);
/// What a stop takes besides draining: reports, sockets and threads end.
const STOP_MARGIN: Duration = Duration::from_secs(15);
/// A round of a socket thread takes a second at most, a burst of huge batches aside.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// The manager that started this process, if one did and wants notifications.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How long it waits for a sign of life.
    patience: Option<Duration>,
}

/// What a manager leaves in the environment.
#[derive(Debug, Default)]
struct Left<'a> {
    /// `NOTIFY_SOCKET`
    socket: Option<&'a OsStr>,
    /// `WATCHDOG_USEC`
    watchdog: Option<&'a OsStr>,
    /// `WATCHDOG_PID`: the process that is watched, where it is not every one.
    watched: Option<&'a OsStr>,
}

impl Manager {
    /// From the environment. A manager that cannot be notified is a warning: it will end this process.
    pub(crate) fn from_env() -> Self {
        let [socket, watchdog, watched] =
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].map(std::env::var_os);
        let left =
            Left { socket: socket.as_deref(), watchdog: watchdog.as_deref(), watched: watched.as_deref() };
        match Self::new(&left) {
            Ok(manager) => manager,
            Err(error) => {
                warn!(%error, "service manager cannot be notified");
                Self::default()
            }
        }
    }

    fn new(left: &Left<'_>) -> io::Result<Self> {
        let Some(address) = left.socket.filter(|name| !name.is_empty()) else { return Ok(Self::default()) };
        let address = match address.as_bytes() {
            [b'@', name @ ..] => abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => {
                let message = format!("NOTIFY_SOCKET: {} is neither a path nor @NAME", address.display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // Without watchdog pings, everything else is still notified.
        let patience = patience(left).unwrap_or_else(|error| {
            warn!(%error, "the watchdog of the service manager gets no signs of life");
            None
        });
        Ok(Self { socket: Some((socket, address)), patience })
    }

    /// Listeners are bound and engines are followed. A manager whose socket is full is notified again for a
    /// while: it would wait for this, and end the process.
    pub(crate) async fn ready(&self, status: &str) {
        let state = format!("READY=1\nSTATUS={}", status.replace('\n', " "));
        let mut sent = self.send(&state);
        for _ in 0..READY_TRIES {
            if !sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
            tokio::time::sleep(READY_PAUSE).await;
            sent = self.send(&state);
        }
        warn_of(&state, sent);
    }

    /// The configuration is read again; [`ready`](Self::ready) says that this is over.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration again"));
    }

    /// The process is about to end, within the drain timeout and a margin. A manager that would wait for less
    /// waits for that.
    pub(crate) fn stopping(&self, drain: Duration) {
        let micros = drain.saturating_add(STOP_MARGIN).as_micros();
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=draining connections"));
    }

    /// Shows a sign of life, four times as often as is asked for. To be polled by the task that serves. Where
    /// that is stuck no sign comes, nor where all workers of the runtime are, whose timer this is, nor where
    /// a socket thread is, as `longest_round` tells; the manager then starts the process again.
    pub(crate) async fn show_life(&self, longest_round: impl Fn() -> Duration) -> Infallible {
        let Some(patience) = self.patience else { return std::future::pending().await };
        let mut beat = tokio::time::interval(patience / 4);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let round = longest_round();
            if round > STUCK_AFTER.max(patience / 2) {
                error!(seconds = round.as_secs(), "socket thread stalled; withholding the watchdog ping");
            } else {
                self.tell("WATCHDOG=1");
            }
        }
    }

    fn tell(&self, state: &str) {
        warn_of(state, self.send(state));
    }

    fn send(&self, state: &str) -> io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
        socket.send_to_addr(state.as_bytes(), address).map(drop)
    }
}

fn warn_of(state: &str, sent: io::Result<()>) {
    if let Err(error) = sent {
        let reported = state.lines().next().unwrap_or_default();
        warn!(%error, reported, "service manager not notified");
    }
}

/// A socket that has a name and no file. Only Linux has them.
#[cfg(target_os = "linux")]
fn abstract_name(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_name(_name: &[u8]) -> io::Result<SocketAddr> {
    let message = "NOTIFY_SOCKET: this system has no sockets without a path";
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

/// How long the manager waits for a sign of life of this process.
fn patience(left: &Left<'_>) -> io::Result<Option<Duration>> {
    let number = |name: &str, value: &OsStr| {
        let parsed = value.to_str().and_then(|text| text.parse::<u64>().ok());
        parsed.ok_or_else(|| {
            let message = format!("{name}: {} is not a number", value.display());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })
    };
    if let Some(watched) = left.watched
        && number("WATCHDOG_PID", watched)? != u64::from(std::process::id())
    {
        return Ok(None);
    }
    let Some(watchdog) = left.watchdog else { return Ok(None) };
    let micros = number("WATCHDOG_USEC", watchdog)?;
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
