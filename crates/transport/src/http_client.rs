//! Questions over HTTP/1: each has a connection of its own, so that dropping one is seen by the server at
//! once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use futures::future::{self, Either};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Sent;

/// How long a connection may take to be made, the name included: a machine that is there answers within a
/// second.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// A metrics page is some hundred kilobytes; what is larger is not one.
pub const MAX_PAGE: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It is not `http://host[:port]`, nor `https://host[:port]` where TLS is spoken.
    #[error("invalid address: expected http://host[:port]")]
    Address,
    /// No TLS: the server speaks none, or shows a certificate that is not trusted.
    #[error("TLS failed: the server does not use it, or its certificate is not trusted")]
    Tls,
    /// No connection: refused, no such host, no way to it.
    #[error("cannot connect ({})", reason(*.0))]
    Unreachable(io::ErrorKind),
    /// The time was over.
    #[error("no answer in time")]
    Timeout,
    /// The connection ended before there was an answer, or what came is no HTTP.
    #[error("connection closed before a response")]
    Lost,
    /// The answer ended before its end.
    #[error("connection closed in the middle of the response")]
    Body,
    /// The answer is larger than it may be.
    #[error("the response is too large")]
    TooLarge,
}

/// Why TLS cannot be spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsUnusable {
    /// There is no certificate of an authority among those that are to be trusted.
    #[error("has no certificate of an authority: name a file with certificates as PEM")]
    Certificates,
    /// The library lacks what it needs.
    #[error("TLS has no versions in common with its library")]
    Versions,
}

fn reason(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::TimedOut => "no connection in time".to_owned(),
        kind => kind.to_string(),
    }
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct HttpQuestion<'q> {
    /// How.
    pub method: Method,
    /// Of whom: `http://host:port`, or `https://host:port` where TLS is spoken.
    pub base: &'q str,
    /// Path and query.
    pub path: &'q str,
    /// A body in JSON.
    pub json: Option<Bytes>,
    /// Who asks, for a server that wants to know. To be marked as sensitive, so that nothing prints it.
    pub authorization: Option<HeaderValue>,
    /// Additional headers of the request.
    pub header: Option<(HeaderName, HeaderValue)>,
}

impl<'q> HttpQuestion<'q> {
    /// A page is asked for.
    pub fn get(base: &'q str, path: &'q str) -> Self {
        Self { method: Method::GET, base, path, json: None, authorization: None, header: None }
    }
}

/// Asks servers.
#[derive(Clone)]
pub struct HttpClient {
    connect_within: Duration,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// A client that gives connections 2 s to be made.
    pub fn new() -> Self {
        Self::with_connect_timeout(CONNECT_WITHIN)
    }

    /// A client that gives connections this long to be made.
    pub fn with_connect_timeout(connect_within: Duration) -> Self {
        Self { connect_within, tls: None }
    }

    /// A client that speaks TLS to `https` addresses. `ca`: certificates (PEM) to trust instead of the public
    /// ones.
    pub fn with_tls(ca: Option<&[u8]>) -> Result<Self, TlsUnusable> {
        Ok(Self { tls: Some(connector(ca)?), ..Self::new() })
    }

    /// The status and at most `max` bytes of a page.
    pub async fn get(
        &self,
        base: &str,
        path: &str,
        max: usize,
        deadline: Duration,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        self.ask(HttpQuestion::get(base, path), max, deadline, &Sent::default()).await
    }

    /// The status and at most `max` bytes of the answer. `sent` is marked before the first byte leaves.
    pub async fn ask(
        &self,
        question: HttpQuestion<'_>,
        max: usize,
        deadline: Duration,
        sent: &Sent,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        // What TLS keeps is large, and askers keep this future in their own.
        let asked = Box::pin(self.ask_without_deadline(question, max, sent));
        tokio::time::timeout(deadline, asked).await.unwrap_or(Err(NoAnswer::Timeout))
    }

    async fn ask_without_deadline(
        &self,
        question: HttpQuestion<'_>,
        max: usize,
        sent: &Sent,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        let Addressed { host, port, secure, request } = request(question).ok_or(NoAnswer::Address)?;
        let tls = if secure { Some(self.tls.as_ref().ok_or(NoAnswer::Address)?) } else { None };
        let socket = tokio::time::timeout(self.connect_within, TcpStream::connect((&*host, port)))
            .await
            .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| NoAnswer::Unreachable(error.kind()))?;
        // A question is one small packet. Without this option it only may wait a little.
        let _ = socket.set_nodelay(true);
        let socket = match tls {
            None => tokio_util::either::Either::Left(socket),
            Some(tls) => {
                let name = ServerName::try_from(host).map_err(|_| NoAnswer::Address)?;
                let secured = tls.connect(name, socket).await;
                tokio_util::either::Either::Right(secured.map_err(|_| NoAnswer::Tls)?)
            }
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|_| NoAnswer::Lost)?;
        sent.mark();
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|_| NoAnswer::Lost)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), max).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() { NoAnswer::TooLarge } else { NoAnswer::Body }
            })?;
            Ok((status, body.to_bytes()))
        };
        // The connection lives in here and not in a task: dropping the request closes it.
        match future::select(pin!(exchange), pin!(connection)).await {
            Either::Left((answer, _)) => answer,
            Either::Right((_, exchange)) => exchange.await,
        }
    }
}

/// TLS towards servers, of which each has to show a certificate.
fn connector(ca: Option<&[u8]>) -> Result<TlsConnector, TlsUnusable> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|_| TlsUnusable::Certificates)?;
                roots.add(certificate).map_err(|_| TlsUnusable::Certificates)?;
            }
        }
    }
    if roots.is_empty() {
        return Err(TlsUnusable::Certificates);
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| TlsUnusable::Versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A question, and where it goes.
struct Addressed {
    host: String,
    port: u16,
    secure: bool,
    request: Request<Full<Bytes>>,
}

/// The request; `None` if the address is none.
fn request(question: HttpQuestion<'_>) -> Option<Addressed> {
    let HttpQuestion { method, base, path, json, authorization, header } = question;
    let uri: Uri = format!("{}{path}", base.trim_end_matches('/')).parse().ok()?;
    let secure = uri.scheme() == Some(&Scheme::HTTPS);
    if !secure && uri.scheme() != Some(&Scheme::HTTP) {
        return None;
    }
    let authority = uri.authority()?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let mut request = Request::builder()
        .method(method)
        .uri(uri.path_and_query().map_or("/", PathAndQuery::as_str))
        .header(HOST, authority.as_str())
        .header(CONNECTION, "close");
    if json.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(json.unwrap_or_default())).ok()?;
    Some(Addressed { host, port, secure, request })
}
