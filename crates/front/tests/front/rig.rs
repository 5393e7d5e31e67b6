//! A front to put before an engine, and a client in bare HTTP/2 to call it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_front::{Front, FrontCounters, FrontOptions, OwnedCalls, Upstream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::engine::{Body, full};

pub(crate) const SERVICE: &str = "test.Engine";
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Fronted {
    pub(crate) addr: SocketAddr,
    pub(crate) upstream: Upstream,
    pub(crate) counters: Arc<FrontCounters>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Fronted {
    pub(crate) async fn of(engine: SocketAddr) -> Self {
        Self::with(FrontOptions::new(format!("http://{engine}").parse().unwrap(), SERVICE)).await
    }

    pub(crate) async fn with(options: FrontOptions) -> Self {
        let own = OwnedCalls::new(|_| async { Status::aborted("answered by the front").into_http() });
        Self::owning(options, own).await
    }

    pub(crate) async fn owning(options: FrontOptions, own: OwnedCalls) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let front = Front::new(options).unwrap();
        let (upstream, counters, stop) =
            (front.upstream().unwrap(), front.counters(), CancellationToken::new());
        let task = tokio::spawn(front.run(listener, stop.clone(), own));
        Self { addr, upstream, counters, stop, task }
    }

    pub(crate) async fn ended(self) {
        within(self.task).await.unwrap();
    }
}

/// An address where nobody listens.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Nothing here takes long; what does has failed.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("took too long")
}

#[derive(Clone)]
pub(crate) struct Client(http2::SendRequest<Body>);

/// All that a call gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) headers: HeaderMap,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Client {
    pub(crate) async fn to(addr: SocketAddr) -> Self {
        let socket = TcpStream::connect(addr).await.unwrap();
        let (send, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .handshake(TokioIo::new(socket))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(send)
    }

    pub(crate) async fn send(
        &mut self,
        request: http::request::Builder,
        body: Body,
    ) -> hyper::Result<Response<Incoming>> {
        let request = request
            .method("POST")
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .body(body)
            .unwrap();
        within(self.0.send_request(request)).await
    }

    /// A call with one request message, and all of its answer.
    pub(crate) async fn unary(&mut self, method: &str, body: impl Into<Bytes>) -> Outcome {
        Outcome::of(self.send(post(method), full(body)).await.unwrap()).await.unwrap()
    }

    /// A call whose request goes on for as long as the sender lives.
    pub(crate) async fn open(
        &mut self,
        method: &str,
    ) -> (mpsc::Sender<Result<Frame<Bytes>, h2::Error>>, Response<Incoming>) {
        let (sender, body) = channel();
        (sender, self.send(post(method), body).await.unwrap())
    }
}

pub(crate) fn post(path: &str) -> http::request::Builder {
    Request::builder().uri(format!("http://front.test{path}"))
}

pub(crate) fn channel() -> (mpsc::Sender<Result<Frame<Bytes>, h2::Error>>, Body) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync())
}

impl Outcome {
    pub(crate) async fn of(response: Response<Incoming>) -> hyper::Result<Self> {
        let (head, body) = response.into_parts();
        // A response that is nothing but trailers ends with its headers.
        assert_eq!(head.headers.contains_key("grpc-status"), body.is_end_stream());
        let body = within(body.collect()).await?;
        let trailers = body.trailers().cloned();
        Ok(Self { headers: head.headers, data: body.to_bytes(), trailers })
    }

    pub(crate) fn status(&self) -> Status {
        let place = self.trailers.as_ref().unwrap_or(&self.headers);
        Status::from_header_map(place).unwrap()
    }
}

/// The code with which a stream was reset.
pub(crate) fn reset(error: &hyper::Error) -> Option<Reason> {
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.reason();
        }
        next = error.source();
    }
    None
}
