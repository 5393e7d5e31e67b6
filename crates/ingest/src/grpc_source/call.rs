//! One call: a connection, a subscription, and messages as bytes.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use kvplane_stream::Ended;
use kvplane_wire::smg::subscribe_request;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::spec::GrpcSpec;

/// How long a connection may take to be made, its TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A server has to send headers at once, whatever it has to tell.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
/// How often a quiet connection is tested, and how long the answer may take: a machine that vanished says nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(10);
/// What a message may weigh.
const MAX_MESSAGE: usize = 64 << 20;
/// What a server may send before we have read it: enough for a snapshot to flow.
const WINDOW: u32 = 4 << 20;

/// Calls one server, over one connection at a time.
pub(super) struct Caller {
    spec: GrpcSpec,
    channel: Option<Channel>,
}

impl Caller {
    pub(super) fn new(spec: GrpcSpec) -> Self {
        Self { spec, channel: None }
    }

    /// Subscribes under the `name`th name of the service. Returns when the headers are there.
    pub(super) async fn subscribe(&mut self, name: usize, start: u64) -> Result<Streaming<Bytes>, Ended> {
        let called = self.call(name, start).await;
        // A server that refuses in due form is there; with any other a new connection is worth a try.
        if let Err(Ended::Deadline | Ended::Unreachable | Ended::Other) = called {
            self.channel = None;
        }
        called
    }

    async fn call(&mut self, name: usize, start: u64) -> Result<Streaming<Bytes>, Ended> {
        let service = self.spec.services.get(name).ok_or(Ended::Unimplemented)?;
        let path = format!("/{service}/SubscribeKvEvents");
        let path = PathAndQuery::from_maybe_shared(path).map_err(|_| Ended::Unimplemented)?;
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => connect(&self.spec).await?,
        };
        self.channel = Some(channel.clone());
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let call = async {
            client.ready().await.map_err(|_| Ended::Unreachable)?;
            let request = Request::new(Bytes::from(subscribe_request(start)));
            let taken = client.server_streaming(request, path, Raw).await;
            taken.map(tonic::Response::into_inner).map_err(|status| ended(&status))
        };
        tokio::time::timeout(HEADERS_WITHIN, call).await.unwrap_or(Err(Ended::Deadline))
    }
}

/// A connection to a server.
pub(crate) async fn connect(spec: &GrpcSpec) -> Result<Channel, Ended> {
    let endpoint = endpoint(spec).map_err(|_| Ended::Unreachable)?;
    match tokio::time::timeout(CONNECT_WITHIN, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(_)) => Err(Ended::Unreachable),
        Err(_) => Err(Ended::Deadline),
    }
}

fn endpoint(spec: &GrpcSpec) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(spec.url.clone())?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_WITHIN)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    if !spec.url.starts_with("https://") {
        return Ok(endpoint);
    }
    let tls = match &spec.ca {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    endpoint.tls_config(tls)
}

/// What a status means.
pub(super) fn ended(status: &Status) -> Ended {
    match status.code() {
        Code::Ok => Ended::Ok,
        Code::OutOfRange => Ended::OutOfRange,
        Code::DataLoss => Ended::DataLoss,
        Code::Unimplemented => Ended::Unimplemented,
        Code::FailedPrecondition => Ended::FailedPrecondition,
        Code::DeadlineExceeded => Ended::Deadline,
        Code::Unavailable => Ended::Unreachable,
        _ => Ended::Other,
    }
}

/// Messages as the bytes that they are: they are decoded once, by whoever applies them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw;

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
