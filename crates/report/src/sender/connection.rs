//! One connection to a server, and word of its end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use kvplane_ingest::TokenFileError;
use kvplane_proto::Bearer;
use kvplane_transport::grpc::{has_certificate, innermost, tls};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Identity};
use tower_service::Service;

use super::credentials::{Credentials, Held};

/// How long a connection may take to be made, its TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A machine that vanished says nothing. The network's own means are used, not HTTP/2's pings: gRPC servers
/// in Go end connections whose client pings more often than every five minutes.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// What is sent before the server has taken it.
const WINDOW: u32 = 4 << 20;

/// Where a server is, and what it asks of its callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// `http://host:port` or `https://host:port`.
    url: String,
    credentials: Arc<Credentials>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoConnection {
    #[error("{}", innermost(.0))]
    Unreachable(#[from] tonic::transport::Error),
    #[error(transparent)]
    Token(#[from] TokenFileError),
}

/// An invalid address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an address like 127.0.0.1:9090, http://host:port or https://host:port{why}")]
pub struct ServerAddressError {
    given: String,
    why: &'static str,
}

impl ServerAddress {
    /// An address; without a scheme it is plain text.
    pub fn new(given: &str, credentials: Credentials) -> Result<Self, ServerAddressError> {
        let wrong = |why| ServerAddressError { given: given.to_owned(), why };
        let url = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let uri: Uri = url.parse().map_err(|_| wrong(""))?;
        let Some(scheme @ ("http" | "https")) = uri.scheme_str() else { return Err(wrong("")) };
        let (Some(host), Some(port)) = (uri.host().filter(|host| !host.is_empty()), uri.port_u16()) else {
            return Err(wrong(": host and port are needed"));
        };
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(wrong(": it has a path"));
        }
        if credentials.need_tls() && scheme != "https" {
            return Err(wrong(": certificates are for https"));
        }
        // A file without any would be taken for a list of nobody.
        if credentials.ca.as_ref().is_some_and(|pem| !has_certificate(pem)) {
            return Err(wrong(": its certificates cannot be used"));
        }
        // In one way, however it is given: reports are compared by it.
        let url = format!("{scheme}://{}:{port}", host.to_ascii_lowercase());
        let address = Self { url, credentials: Arc::new(credentials) };
        address.endpoint().map_err(|_| wrong(": its certificates cannot be used"))?;
        Ok(address)
    }

    /// As it is dialled.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(self.url.clone())?
            .connect_timeout(CONNECT_WITHIN)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        if !self.url.starts_with("https://") {
            return Ok(endpoint);
        }
        let Credentials { ca, certificate, .. } = &*self.credentials;
        let tls = tls(ca.as_deref());
        endpoint.tls_config(match certificate {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        })
    }

    /// Connects once. A channel that came back by itself would hide that the server may be another one by
    /// then.
    pub(super) async fn connect(&self) -> Result<Connection, NoConnection> {
        let token = Held::read(&self.credentials.token)?;
        let broken = CancellationToken::new();
        let once = Once { broken: broken.clone(), used: false };
        let channel = self.endpoint()?.connect_with_connector(once).await?;
        Ok(Connection { channel, token, broken })
    }
}

/// A connection to a server.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    /// What callers over it send.
    pub(super) token: Held,
    /// Cancelled when it has ended.
    pub(super) broken: CancellationToken,
}

impl Connection {
    /// For calls that say whose they are.
    pub(super) fn channel(&self) -> InterceptedService<Channel, Bearer> {
        InterceptedService::new(self.channel.clone(), self.token.bearer())
    }
}

/// Dials, once.
struct Once {
    broken: CancellationToken,
    used: bool,
}

impl Service<Uri> for Once {
    type Response = TokioIo<Watched>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Watched>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let again = std::mem::replace(&mut self.used, true);
        let broken = self.broken.clone();
        Box::pin(async move {
            if again {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection has ended"));
            }
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
            stream.set_nodelay(true)?;
            let socket = SockRef::from(&stream);
            socket
                .set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENCE_MAX).with_interval(SILENCE_MAX))?;
            socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
            Ok(TokioIo::new(Watched { stream, _end: broken.drop_guard() }))
        })
    }
}

/// A stream that signals its end: the driver of the connection drops it then.
struct Watched {
    stream: TcpStream,
    _end: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for (given, url) in [
            ("127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("http://h:1/", "http://h:1"),
            ("https://h:1", "https://h:1"),
            ("HTTP://Host.Example:09090/", "http://host.example:9090"),
            ("[::1]:9090", "http://[::1]:9090"),
        ] {
            assert_eq!(ServerAddress::new(given, Credentials::default()).unwrap().url(), url);
        }
        for given in ["", "h", "tcp://h:1", "http://h:1/x", "http://:1"] {
            assert!(ServerAddress::new(given, Credentials::default()).is_err(), "{given}");
        }
        let ca = Credentials { ca: Some(Vec::new()), ..Credentials::default() };
        let shown = Credentials { certificate: Some(<_>::default()), ..Credentials::default() };
        for credentials in [ca, shown] {
            assert!(ServerAddress::new("http://h:1", credentials.clone()).is_err());
            assert!(ServerAddress::new("https://h:1", credentials).is_err(), "they are empty");
        }
    }
}
