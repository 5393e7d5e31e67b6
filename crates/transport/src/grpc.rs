//! Calls over gRPC, with messages as bytes: callers decode them.

use std::error::Error as _;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// How often a quiet connection is tested, and how long the answer may take: a machine that vanished says
/// nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(10);
/// What a server may send before we have read it: enough for a snapshot to flow.
const WINDOW: u32 = 4 << 20;

/// A gRPC server, and the services to call there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcSpec {
    /// Its address: `http://host:port` or `https://host:port`.
    pub url: String,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// Full names of the services that may offer a method, tried in this order.
    pub services: Vec<&'static str>,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoConnection {
    /// It is not `http://host:port` or `https://host:port`, or its certificates are none.
    #[error("invalid address or certificates: expected http://host:port or https://host:port")]
    Address,
    /// Refused, no such host, no TLS.
    #[error("cannot connect ({0})")]
    Unreachable(String),
    /// The time was over.
    #[error("no connection in time")]
    Timeout,
}

/// A connection to a server. `ca`, certificates (PEM) to trust instead of the public ones, is for `https`.
pub async fn connect(url: &str, ca: Option<&[u8]>, within: Duration) -> Result<Channel, NoConnection> {
    connect_watched(url, ca, within, Watch::default()).await
}

/// How often a quiet connection is tested, and how long the answer may take. A connection without an answer
/// is ended, so one that is there was proven to be at most `every + within` ago.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Silence after which it is tested.
    pub every: Duration,
    /// How long the answer may take.
    pub within: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self { every: KEEP_ALIVE, within: KEEP_ALIVE_WITHIN }
    }
}

/// A connection to a server, as [`connect`] makes it, that is tested as `watch` says.
pub async fn connect_watched(
    url: &str,
    ca: Option<&[u8]>,
    within: Duration,
    watch: Watch,
) -> Result<Channel, NoConnection> {
    let endpoint = endpoint(url, ca, watch).map_err(|_| NoConnection::Address)?;
    match tokio::time::timeout(within, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(NoConnection::Unreachable(innermost(&error))),
        Err(_) => Err(NoConnection::Timeout),
    }
}

/// What an error comes down to: the outer ones say no more than that there is one.
pub fn innermost(error: &tonic::transport::Error) -> String {
    let mut cause = error.source();
    let mut text = error.to_string();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

fn endpoint(url: &str, ca: Option<&[u8]>, watch: Watch) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = server(url, ca)?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(watch.every)
        .keep_alive_timeout(watch.within)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    Ok(endpoint)
}

/// A server at an address, with TLS where that says so. `ca` is as for [`connect`].
pub fn server(url: &str, ca: Option<&[u8]>) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url.to_owned())?;
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls(ca))
}

/// TLS towards a server. `ca` is as for [`connect`].
pub fn tls(ca: Option<&[u8]>) -> ClientTlsConfig {
    match ca {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    }
}

/// Whether there is any certificate (PEM). Trusting a file without one would be trusting nobody.
pub fn has_certificate(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    pem.windows(BEGIN.len()).any(|window| window == BEGIN)
}

/// One question and one answer of at most `max` bytes. It has no deadline: a caller that cannot wait for ever
/// drops it.
pub async fn unary(
    channel: Channel,
    path: &str,
    request: Request<Bytes>,
    max: usize,
) -> Result<Bytes, Status> {
    let method: PathAndQuery =
        path.parse().map_err(|_| Status::unimplemented(format!("{path:?} is no method")))?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(max);
    client.ready().await.map_err(|error| Status::unavailable(innermost(&error)))?;
    client.unary(request, method, Raw).await.map(tonic::Response::into_inner)
}

/// Messages as the bytes that they are.
#[derive(Debug, Clone, Copy)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
