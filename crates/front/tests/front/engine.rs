//! An engine in bare HTTP/2, with a method for each thing that can happen to a call.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

pub(crate) type Body = UnsyncBoxBody<Bytes, h2::Error>;

/// What the engine saw, in order.
#[derive(Debug)]
pub(crate) enum Seen {
    /// A call began.
    Head(Uri, HeaderMap),
    /// A call was given up by its client before the engine ended it.
    Cancelled,
    /// The request's body broke off, with this code.
    BrokenOff(Option<Reason>),
}

pub(crate) struct EngineOptions {
    pub(crate) at: SocketAddr,
    pub(crate) streams: u32,
    pub(crate) meet: usize,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { at: ([127, 0, 0, 1], 0).into(), streams: 10_000, meet: 1, tls: None }
    }
}

pub(crate) struct Engine {
    pub(crate) addr: SocketAddr,
    seen: mpsc::Receiver<Seen>,
    drain: CancellationToken,
    task: JoinHandle<()>,
}

impl Engine {
    pub(crate) async fn start(options: EngineOptions) -> Self {
        let listener = TcpListener::bind(options.at).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, seen) = mpsc::channel(4096);
        let drain = CancellationToken::new();
        let methods = Arc::new(Methods { tell, barrier: Barrier::new(options.meet), drain: drain.clone() });
        let task = tokio::spawn(async move {
            // Dropped with this task, and the connections with it.
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (methods, tls, streams) = (methods.clone(), options.tls.clone(), options.streams);
                connections.spawn(async move {
                    match tls {
                        None => serve(socket, streams, methods).await,
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, streams, methods).await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, seen, drain, task }
    }

    pub(crate) async fn default() -> Self {
        Self::start(EngineOptions::default()).await
    }

    pub(crate) async fn seen(&mut self) -> Seen {
        tokio::time::timeout(Duration::from_secs(20), self.seen.recv()).await.expect("nothing seen").unwrap()
    }

    pub(crate) async fn head(&mut self) -> (Uri, HeaderMap) {
        match self.seen().await {
            Seen::Head(uri, headers) => (uri, headers),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for no more calls on the connections that there are.
    pub(crate) fn drain(&self) {
        self.drain.cancel();
    }

    /// Dies without a word: sockets close, nothing is said.
    pub(crate) async fn kill(self) -> SocketAddr {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.addr
    }
}

async fn serve<T>(socket: T, streams: u32, methods: Arc<Methods>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let drained = methods.drain.clone();
    let service = service_fn(move |request| {
        let methods = methods.clone();
        async move { methods.call(request).await }
    });
    // A connection that is made after the drain is not part of it.
    let drained =
        async move { if drained.is_cancelled() { pending().await } else { drained.cancelled().await } };
    let mut connection = pin!(
        Builder::new(TokioExecutor::new())
            .max_concurrent_streams(streams)
            .serve_connection(TokioIo::new(socket), service)
    );
    tokio::select! {
        _ = connection.as_mut() => {}
        () = drained => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

struct Methods {
    tell: mpsc::Sender<Seen>,
    barrier: Barrier,
    drain: CancellationToken,
}

/// Says so when it is dropped: a call that does not end by itself was given up.
struct GivenUp(mpsc::Sender<Seen>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        let _ = self.0.try_send(Seen::Cancelled);
    }
}

impl Methods {
    async fn call(&self, request: Request<Incoming>) -> Result<Response<Body>, h2::Error> {
        let (head, body) = request.into_parts();
        let _ = self.tell.try_send(Seen::Head(head.uri.clone(), head.headers.clone()));
        let given_up = || GivenUp(self.tell.clone());
        match head.uri.path() {
            "/test.Engine/Echo" => Ok(echo(&head.headers, body, self.tell.clone())),
            "/test.Engine/Sum" => {
                let data =
                    body.collect().await.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
                Ok(messages(1, &(data.len() as u64).to_be_bytes(), status(0, "")))
            }
            "/test.Engine/Count" => {
                let data = body.collect().await.unwrap().to_bytes();
                Ok(messages(u32::from_be_bytes(data[5..9].try_into().unwrap()), b"token", status(0, "")))
            }
            "/test.Engine/Meet" => {
                self.barrier.wait().await;
                Ok(messages(1, b"met", status(0, "")))
            }
            "/test.Engine/Fail" => Ok(trailers_only(details(9, "not%20now"))),
            "/test.Engine/FailLate" => Ok(messages(2, b"part", details(15, "lost"))),
            "/test.Engine/Early" => {
                // The request is dropped unread.
                Ok(trailers_only(status(8, "enough")))
            }
            "/test.Engine/Deadline" => {
                let timeout = head.headers["grpc-timeout"].to_str().unwrap();
                let millis = timeout.strip_suffix('m').unwrap().parse().unwrap();
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok(trailers_only(status(4, "too late")))
            }
            "/test.Engine/Hang" => {
                let _given_up = given_up();
                pending().await
            }
            "/test.Engine/Drip" => {
                let given_up = given_up();
                let first = stream::iter([Ok(Frame::data(message(b"drop")))]);
                let never = stream::poll_fn(move |_| {
                    let _ = &given_up;
                    std::task::Poll::Pending
                });
                Ok(grpc(StreamBody::new(first.chain(never)).boxed_unsync()))
            }
            "/test.Engine/Flood" => {
                let chunk = message(&vec![7; 60_000]);
                let flood = stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
                Ok(grpc(StreamBody::new(flood).boxed_unsync()))
            }
            "/test.Engine/Refuse" => Err(Reason::ENHANCE_YOUR_CALM.into()),
            "/test.Engine/Break" => {
                // Not before the request has ended: a reset overtakes what was sent right before it.
                let first = stream::iter([Ok(Frame::data(message(b"part")))]);
                let last = stream::once(async move {
                    let _ = body.collect().await;
                    Err(Reason::INADEQUATE_SECURITY.into())
                });
                Ok(grpc(StreamBody::new(first.chain(last)).boxed_unsync()))
            }
            _ => Ok(trailers_only(status(12, "unknown here"))),
        }
    }
}

/// Gives back each frame as it comes, and the metadata.
fn echo(headers: &HeaderMap, mut body: Incoming, tell: mpsc::Sender<Seen>) -> Response<Body> {
    let (frames, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    if frames.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let source = std::error::Error::source(&error).and_then(|error| error.downcast_ref());
                    let _ = tell.try_send(Seen::BrokenOff(source.and_then(h2::Error::reason)));
                    return;
                }
            }
        }
        if body.is_end_stream() {
            let mut trailers = status(0, "");
            trailers.insert("x-trailer-bin", HeaderValue::from_static("AAEC/w"));
            let _ = frames.send(Ok(Frame::trailers(trailers))).await;
        }
    });
    let mut response = grpc(StreamBody::new(ReceiverStream::new(receive)).boxed_unsync());
    for (name, value) in headers {
        if name.as_str().starts_with("x-") || name == "grpc-encoding" {
            response.headers_mut().append(name, value.clone());
        }
    }
    response
}

pub(crate) fn message(payload: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.into()
}

fn messages(count: u32, payload: &[u8], trailers: HeaderMap) -> Response<Body> {
    let message = message(payload);
    let data = (0..count).map(move |_| Ok(Frame::data(message.clone())));
    let frames = data.chain([Ok(Frame::trailers(trailers))]);
    grpc(StreamBody::new(stream::iter(frames)).boxed_unsync())
}

fn grpc(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn trailers_only(status: HeaderMap) -> Response<Body> {
    let mut response = grpc(Empty::new().map_err(infallible).boxed_unsync());
    response.headers_mut().extend(status);
    response
}

fn status(code: u8, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    if !message.is_empty() {
        headers.insert("grpc-message", HeaderValue::from_str(message).unwrap());
    }
    headers
}

fn details(code: u8, message: &str) -> HeaderMap {
    let mut headers = status(code, message);
    headers
        .insert("grpc-status-details-bin", HeaderValue::from_str(&"CAkSB25vdCBub3c".repeat(2000)).unwrap());
    headers
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(infallible).boxed_unsync()
}

fn infallible(never: Infallible) -> h2::Error {
    match never {}
}
