//! One call: a connection, a subscription, and messages as bytes.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use kvplane_stream::Ended;
use kvplane_transport::grpc::{self, GrpcSpec, NoConnection, Raw, Watch};
use kvplane_wire::smg::subscribe_request;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// How long a connection may take to be made, its TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A server has to send headers at once, whatever it has to tell.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
/// What a message may weigh.
const MAX_MESSAGE: usize = 64 << 20;

/// Calls one server, over one connection at a time.
pub(super) struct Caller {
    spec: GrpcSpec,
    watch: Watch,
    channel: Option<Channel>,
}

impl Caller {
    pub(super) fn new(spec: GrpcSpec, watch: Watch) -> Self {
        Self { spec, watch, channel: None }
    }

    /// A connection that is there was proven to be at most so long ago.
    pub(super) fn proven_within(&self) -> Duration {
        self.watch.every + self.watch.within
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
            None => connect_watched(&self.spec, self.watch).await?,
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

async fn connect_watched(spec: &GrpcSpec, watch: Watch) -> Result<Channel, Ended> {
    let connected = grpc::connect_watched(&spec.url, spec.ca.as_deref(), CONNECT_WITHIN, watch).await;
    connected.map_err(|error| match error {
        NoConnection::Timeout => Ended::Deadline,
        NoConnection::Address | NoConnection::Unreachable(_) => Ended::Unreachable,
    })
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
