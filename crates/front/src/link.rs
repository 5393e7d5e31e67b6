//! One connection to the engine.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::target::Target;

/// What one call may have on its way to us unread. Larger than what a round trip holds in a data centre.
pub(super) const STREAM_WINDOW: u32 = 1 << 20;

/// What all calls of one connection may have on their way unread. Streams share it, so it is a multiple of
/// theirs: hundreds of stalled readers are needed before they hold up another.
pub(super) const CONNECTION_WINDOW: u32 = 512 << 20;

/// Large messages in fewer frames, small enough that a frame of one call is no wait for another.
pub(super) const FRAME_SIZE: u32 = 64 << 10;

/// What may wait in memory per call until the peer opens its window.
pub(super) const SEND_BUFFER: usize = 1 << 20;

/// Room for error details in trailers, which are often larger than the usual 16 KiB.
pub(super) const HEADER_LIST: u32 = 256 << 10;

/// Calls that were cancelled and may still get frames. A gateway that gives up hundreds of calls at once is
/// no attack.
pub(super) const RESET_STREAMS: usize = 4096;

/// Calls on one connection, where the engine would allow more: beyond this another connection is faster.
const STREAMS_MAX: usize = 1024;

/// HTTP/2 pings would find a dead engine too, but gRPC servers close the connection of who pings more often
/// than every five minutes (`too_many_pings`). So the kernel asks.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Sent bytes that stay unacknowledged for this long end the connection.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("HTTP/2: {0}")]
    Http(#[from] h2::Error),
    #[error("closed before it sent its HTTP/2 settings")]
    Closed,
}

/// A connection that calls can enter.
#[derive(Debug)]
pub(super) struct Link {
    send: SendRequest<Bytes>,
    gauge: Arc<Gauge>,
    used: Instant,
}

/// What the connection's task and its calls know of each other.
#[derive(Debug)]
struct Gauge {
    /// Calls that the engine allows at once; it may change its mind.
    limit: AtomicUsize,
    calls: AtomicUsize,
    closed: AtomicBool,
}

/// A call's place on a connection.
#[derive(Debug)]
pub(super) struct Place(Arc<Gauge>);

// === impl Link ===

impl Link {
    /// Dials, and waits for the engine's settings: only then is it known that HTTP/2 is spoken there, and how
    /// many calls it takes at once.
    pub(super) async fn dial(target: &Target) -> Result<Self, DialError> {
        let limit = target.connect_timeout;
        let dial = async {
            let tcp = TcpStream::connect((target.host.as_str(), target.port)).await?;
            prepare(&tcp)?;
            match &target.tls {
                None => Self::start(tcp).await,
                Some(tls) => Self::start(tls.connector.connect(tls.name.clone(), tcp).await?).await,
            }
        };
        match timeout(limit, Box::pin(dial)).await {
            Ok(done) => done,
            Err(_) => Err(DialError::Timeout(limit)),
        }
    }

    async fn start<T>(io: T) -> Result<Self, DialError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (send, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_SIZE)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(HEADER_LIST)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .enable_push(false)
            // None until the settings are here; that is how we see that they are.
            .initial_max_send_streams(0)
            .handshake::<_, Bytes>(io)
            .await?;
        let limit = poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(DialError::Closed)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => match connection.max_concurrent_send_streams() {
                0 => Poll::Pending,
                limit => Poll::Ready(Ok(limit)),
            },
        })
        .await?;
        let gauge = Arc::new(Gauge {
            limit: AtomicUsize::new(limit.min(STREAMS_MAX)),
            calls: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        // Ends by itself: with the connection, or when nobody holds the link and the last call is over.
        kvplane_runtime::spawn("front: connection", drive(connection, gauge.clone()));
        Ok(Self { send, gauge, used: Instant::now() })
    }

    /// A place for one more call, if there is one.
    pub(super) fn enter(&mut self) -> Option<(SendRequest<Bytes>, Place)> {
        let gauge = &self.gauge;
        if gauge.closed.load(Ordering::Acquire) {
            return None;
        }
        if gauge.calls.fetch_add(1, Ordering::AcqRel) >= gauge.limit.load(Ordering::Acquire) {
            gauge.calls.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        self.used = Instant::now();
        Some((self.send.clone(), Place(gauge.clone())))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.gauge.closed.load(Ordering::Acquire)
    }

    pub(super) fn is_idle_for(&self, time: Duration) -> bool {
        self.gauge.calls.load(Ordering::Acquire) == 0 && self.used.elapsed() > time
    }
}

// === impl Place ===

impl Place {
    /// Nobody else is to enter this connection: it did not take a call.
    pub(super) fn condemn(&self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Moves the connection's frames until it ends.
async fn drive<T>(mut connection: Connection<T, Bytes>, gauge: Arc<Gauge>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let end = poll_fn(|cx| {
        let poll = Pin::new(&mut connection).poll(cx);
        gauge.limit.store(connection.max_concurrent_send_streams().min(STREAMS_MAX), Ordering::Release);
        poll
    })
    .await;
    gauge.closed.store(true, Ordering::Release);
    match end {
        Ok(()) => debug!("connection to the engine closed"),
        Err(error) => debug!(%error, "connection to the engine lost"),
    }
}

fn prepare(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}
