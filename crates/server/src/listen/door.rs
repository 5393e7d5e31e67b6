//! A listener whose connections are ready to be served.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::plain;
use super::tls::{Failure, Tls, identity};
use crate::auth::{Identity, Port};

/// A client that has not shaken hands by then is not going to.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Handshakes under way. More at once are an attack, or of no use to clients that wait.
const HANDSHAKES_MAX: usize = 1024;
/// Connections that wait to be taken; the server takes them at once.
const READY_MAX: usize = 64;
/// After a failure to accept (no descriptors left), so that it is not tried in a circle.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// What its certificate says, if it has shown one.
    pub(crate) certificate: Option<Arc<Identity>>,
}

/// A connection, ready to be served.
pub(crate) struct Connection {
    stream: Pin<Box<dyn Duplex>>,
    peer: Peer,
}

trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A listener. With TLS, handshakes are made aside: a client that takes its time holds up nobody.
#[derive(Debug)]
pub(crate) enum Door {
    Plain(TcpListener),
    Secure { address: SocketAddr, ready: mpsc::Receiver<Connection>, _accepting: AbortOnDropHandle<()> },
}

impl Door {
    /// Opens a listener.
    pub(crate) fn open(listener: TcpListener, port: Port, tls: Option<Arc<Tls>>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(listener)) };
        let address = listener.local_addr()?;
        let (hand_over, ready) = mpsc::channel(READY_MAX);
        let accepting = tokio::spawn(accept_secure(listener, port, tls, hand_over));
        Ok(Self::Secure { address, ready, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// The next connection.
    async fn next(&mut self) -> Connection {
        match self {
            Self::Plain(listener) => {
                let (stream, address) = accept(listener).await;
                Connection { stream: Box::pin(stream), peer: Peer { address, certificate: None } }
            }
            Self::Secure { ready, .. } => match ready.recv().await {
                Some(connection) => connection,
                // Whoever accepts has ended, which only the end of the process can be.
                None => std::future::pending().await,
            },
        }
    }

    /// All connections, for tonic.
    pub(crate) fn incoming(self) -> impl Stream<Item = io::Result<Connection>> {
        futures::stream::unfold(self, async |mut door| {
            let connection = door.next().await;
            Some((Ok(connection), door))
        })
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "connection of a client is gone");
                    continue;
                }
                return (stream, address);
            }
            Err(error) => {
                warn!(%error, "connection not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept_secure(
    listener: TcpListener,
    port: Port,
    tls: Arc<Tls>,
    hand_over: mpsc::Sender<Connection>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let (stream, address) = accept(&listener).await;
        let Ok(place) = places.clone().try_acquire_owned() else {
            tls.count(port, Failure::TooMany);
            continue;
        };
        let (tls, hand_over) = (tls.clone(), hand_over.clone());
        tokio::spawn(async move {
            let shaken = timeout(HANDSHAKE_WITHIN, shake(stream, address, port, &tls)).await;
            match shaken.unwrap_or(Err(Failure::Timeout)) {
                // The server that would take it may have ended.
                Ok(connection) => drop(hand_over.send(connection).await),
                Err(failure) => {
                    tls.count(port, failure);
                    debug!(listener = port.as_str(), %address, why = failure.as_str(), "no TLS connection");
                }
            }
            drop(place);
        });
    }
}

async fn shake(stream: TcpStream, address: SocketAddr, port: Port, tls: &Tls) -> Result<Connection, Failure> {
    if !plain::speaks_tls(&stream).await.map_err(|_| Failure::Handshake)? {
        plain::send_away(stream).await;
        return Err(Failure::Plain);
    }
    let stream = tls.acceptor(port).accept(stream).await.map_err(|error| {
        debug!(listener = port.as_str(), %address, %error, "handshake failed");
        Failure::Handshake
    })?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = shown.and_then(identity).map(Arc::new);
    Ok(Connection { stream: Box::pin(stream), peer: Peer { address, certificate } })
}

// === impl Listener ===

impl Listener for Door {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        let connection = self.next().await;
        let peer = connection.peer.clone();
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<Peer> {
        let address = match self {
            Self::Plain(listener) => listener.local_addr()?,
            Self::Secure { address, .. } => *address,
        };
        Ok(Peer { address, certificate: None })
    }
}

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.remote_addr().clone()
    }
}

// === impl Connection ===

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}
