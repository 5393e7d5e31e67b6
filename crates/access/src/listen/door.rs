//! A listener whose connections are ready to be served.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use futures::Stream;
use kvplane_transport::edge::{Accepting, Admitted, Connections, Guarded, Metered, PeerKey, Pulse, Speaks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tracing::{debug, error};

use super::http1::Http1Only;
use super::plain;
use super::tls::{Failure, Tls, identity};
use crate::auth::{Identity, Port};
use crate::bounds;

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// What its certificate says, if it has shown one.
    pub(crate) certificate: Option<Arc<Identity>>,
    /// How the connection is doing; absent where nothing watches it.
    pub pulse: Option<Arc<Pulse>>,
}

impl Peer {
    /// A peer that has shown no certificate.
    pub fn new(address: SocketAddr, pulse: Option<Arc<Pulse>>) -> Self {
        Self { address, certificate: None, pulse }
    }

    /// Who shares limits with it.
    pub fn key(&self) -> PeerKey {
        PeerKey::of(self.address.ip())
    }
}

/// A connection, ready to be served.
pub struct Connection {
    stream: Pin<Box<dyn Duplex>>,
    peer: Peer,
}

/// Why a connection was never served.
#[derive(Debug)]
enum Gone {
    /// It said nothing, or was closed at a bound.
    Silent,
    Handshake(Failure),
}

trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A listener. A connection is served from its first byte on, and with TLS once its handshake is done. Both
/// are waited for aside: a client that takes its time holds up nobody, and one that says nothing costs next
/// to nothing.
#[derive(Debug)]
pub struct Door {
    accepting: Accepting,
    connections: Arc<Connections>,
    port: Port,
    tls: Option<Arc<Tls>>,
    arriving: JoinSet<Result<Connection, Gone>>,
}

impl Door {
    /// Opens a listener.
    pub fn open(
        listener: TcpListener,
        port: Port,
        tls: Option<Arc<Tls>>,
        connections: Arc<Connections>,
    ) -> Self {
        let accepting = Accepting::new(listener, port.as_str());
        Self { accepting, connections, port, tls, arriving: JoinSet::new() }
    }

    /// The next connection. There is no task that could end and leave a listener that nobody serves.
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                (stream, address) = self.accepting.next() => self.admit(stream, address),
                Some(arrived) = self.arriving.join_next() => match arrived {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err(Gone::Silent)) => {}
                    Ok(Err(Gone::Handshake(failure))) => self.failed(failure),
                    Err(error) if self.tls.is_none() => {
                        error!(listener = self.port.as_str(), %error, "task of a new connection failed");
                    }
                    Err(error) => {
                        error!(listener = self.port.as_str(), %error, "TLS handshake task failed");
                        self.failed(Failure::Handshake);
                    }
                },
            }
        }
    }

    fn failed(&self, failure: Failure) {
        if let Some(tls) = &self.tls {
            tls.count(self.port, failure);
        }
    }

    /// Gives a connection its place, and waits aside until it can be served.
    fn admit(&mut self, stream: TcpStream, address: SocketAddr) {
        let (port, speaks) = (self.port, if self.port == Port::Http { Speaks::Http1 } else { Speaks::Http2 });
        let Some(tls) = self.tls.clone() else {
            let Some(place) = self.connections.admit(address, speaks) else { return };
            let connections = self.connections.clone();
            self.arriving.spawn(async move {
                let peer = Peer { address, certificate: None, pulse: Some(place.pulse().clone()) };
                let mut stream = Guarded::new(stream, place);
                // Counted by its place.
                stream.first_byte().await.map_err(|_| Gone::Silent)?;
                Ok(Connection::new(stream, peer, speaks, connections))
            });
            return;
        };
        let Some(place) = self.connections.admit(address, Speaks::Handshake) else {
            return tls.count(port, Failure::TooMany);
        };
        let closing = place.pulse().closing().clone();
        let connections = self.connections.clone();
        self.arriving.spawn(async move {
            let shaking = timeout(bounds::HANDSHAKE, shake(stream, address, port, &tls, place));
            let shaken = closing.run_until_cancelled(shaking).await;
            let shaken = shaken.map_or(Err(Failure::TooMany), |done| done.unwrap_or(Err(Failure::Timeout)));
            let (stream, peer) = shaken.map_err(|failure| {
                debug!(listener = port.as_str(), %address, reason = failure.as_str(), "TLS handshake failed");
                Gone::Handshake(failure)
            })?;
            if let Some(pulse) = &peer.pulse {
                pulse.begin(speaks);
            }
            Ok(Connection::new(stream, peer, speaks, connections))
        });
    }

    /// All connections, for tonic.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Connection>> {
        futures::stream::unfold(self, async |mut door| {
            let connection = door.next().await;
            Some((Ok(connection), door))
        })
    }
}

async fn shake(
    stream: TcpStream,
    address: SocketAddr,
    port: Port,
    tls: &Tls,
    place: Admitted,
) -> Result<(TlsStream<Guarded<TcpStream>>, Peer), Failure> {
    if !plain::speaks_tls(&stream).await.map_err(|_| Failure::Handshake)? {
        plain::send_away(stream).await;
        return Err(Failure::Plain);
    }
    let pulse = place.pulse().clone();
    let stream = tls.acceptor(port).accept(Guarded::new(stream, place)).await.map_err(|error| {
        debug!(listener = port.as_str(), %address, %error, "handshake failed");
        match error.kind() {
            io::ErrorKind::TimedOut => Failure::Timeout,
            // Its place was needed.
            io::ErrorKind::ConnectionAborted => Failure::TooMany,
            _ => Failure::Handshake,
        }
    })?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = shown.and_then(identity).map(Arc::new);
    Ok((stream, Peer { address, certificate, pulse: Some(pulse) }))
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
        let address = self.accepting.local_addr()?;
        Ok(Peer { address, certificate: None, pulse: None })
    }
}

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.remote_addr().clone()
    }
}

// === impl Connection ===

impl Connection {
    fn new(
        stream: impl Duplex + Unpin + 'static,
        peer: Peer,
        speaks: Speaks,
        connections: Arc<Connections>,
    ) -> Self {
        let stream: Pin<Box<dyn Duplex>> = match &peer.pulse {
            Some(pulse) if speaks == Speaks::Http2 => Box::pin(Metered::new(stream, pulse.clone())),
            _ => Box::pin(Http1Only::new(stream, connections)),
        };
        Self { stream, peer }
    }
}

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
