//! Peers over HTTP/2 that say nothing, are gone, or do not read: at the gRPC listener and at a front.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use h2::client::{ResponseFuture, SendRequest};
use http_body::Frame;
use http_body_util::StreamBody;
use kvplane_access::Bounds;
use kvplane_front::{Front, FrontCounters, FrontOptions, OwnedCalls};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status};

use super::{DEADLINE, SHORT, Served, framed, status};

/// What a client sends first: the preface, and no settings of its own.
pub(super) const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A front without an engine. Of its own calls one is never answered, and the answer to another never ends.
struct Fronted {
    address: SocketAddr,
    counters: Arc<FrontCounters>,
    /// Notified by the call that is never answered, once it has its place.
    waiting: Arc<Notify>,
    _stop: DropGuard,
}

impl Fronted {
    async fn with(bounds: Bounds) -> Self {
        let front = Front::new(FrontOptions::without_upstream("a.B")).unwrap().bounded(bounds);
        let counters = front.counters();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = Arc::new(Notify::new());
        let waits = Arc::clone(&waiting);
        let own = OwnedCalls::new(move |request: http::Request<_>| {
            let waits = Arc::clone(&waits);
            async move {
                match request.uri().path() {
                    "/a.B/StartProfile" => {
                        waits.notify_one();
                        std::future::pending().await
                    }
                    "/a.B/StopProfile" => {
                        let first = Ok::<_, Status>(Frame::data(Bytes::from_static(&[0; 100])));
                        let frames = futures::stream::iter([first]).chain(futures::stream::pending());
                        http::Response::new(tonic::body::Body::new(StreamBody::new(frames)))
                    }
                    _ => Status::cancelled("our own").into_http(),
                }
            }
        });
        let stop = CancellationToken::new();
        tokio::spawn(front.run(listener, stop.clone(), own));
        Self { address, counters, waiting, _stop: stop.drop_guard() }
    }

    fn closed(&self, reason: &str) -> u64 {
        self.counters.closed().into_iter().find(|(name, _)| *name == reason).expect("a reason").1
    }
}

/// A client over a connection that answers pings for as long as it is open.
async fn client(address: SocketAddr, window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (send, connection) = builder.initial_window_size(window).handshake(stream).await.unwrap();
    (send, tokio::spawn(connection))
}

async fn call(send: &SendRequest<Bytes>, path: &str) -> ResponseFuture {
    let request = http::Request::post(format!("http://plane{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let mut send = timeout(DEADLINE, send.clone().ready()).await.unwrap().unwrap();
    let (response, mut body) = send.send_request(request, false).unwrap();
    // A call that is refused may be over before its message is sent: its status says so.
    let _ = body.send_data(framed(&[]), true);
    response
}

/// A front closes what never speaks, and keeps its places for those who do.
pub(super) async fn front_connections() {
    let front = Fronted::with(Bounds { front_connections_per_peer: 8, ..Bounds::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(front.address).await.unwrap());
    }
    let (send, _connection) = client(front.address, 65_535).await;
    assert_eq!(status(call(&send, "/a.B/FlushCache").await).await, Code::Cancelled);
    assert_eq!(front.counters.connections_refused(), 0, "idle ones made room");
    for silent in &mut silent[..32] {
        let _ = timeout(DEADLINE, silent.read(&mut [0])).await.expect("the oldest are closed");
    }
    assert!(front.closed("displaced") >= 32);
}

pub(super) async fn front_calls() {
    let front = Fronted::with(Bounds { calls_per_peer: 1, ..Bounds::default() }).await;
    let (send, _connection) = client(front.address, 65_535).await;
    let _waits = call(&send, "/a.B/StartProfile").await;
    timeout(DEADLINE, front.waiting.notified()).await.expect("the first call is taken up");
    assert_eq!(status(call(&send, "/a.B/FlushCache").await).await, Code::ResourceExhausted);
    assert_eq!(front.counters.refused(), [("too_many_calls", 0), ("too_many_calls_of_peer", 1)]);
    let front = Fronted::with(Bounds { calls: 0, ..Bounds::default() }).await;
    let (send, _connection) = client(front.address, 65_535).await;
    assert_eq!(status(call(&send, "/a.B/FlushCache").await).await, Code::ResourceExhausted);
    assert_eq!(front.counters.refused(), [("too_many_calls", 1), ("too_many_calls_of_peer", 0)]);
}

pub(super) async fn idle_http2() {
    let bounds = Bounds { idle_grpc: SHORT, ..Bounds::default() };
    let (served, front) = (Served::with(bounds.clone()).await, Fronted::with(bounds).await);
    Served::until_closed(served.grpc, HELLO).await;
    served.closed("grpc", "idle_timeout", 1.0).await;
    Served::until_closed(front.address, HELLO).await;
    assert_eq!(front.closed("idle_timeout"), 1);
}

/// Nobody answers pings.
pub(super) async fn dead_peer() {
    let (every, patience) = (SHORT, SHORT);
    let bounds = Bounds {
        ping_every: every,
        ping_timeout: patience,
        front_ping_timeout: patience,
        ..Bounds::default()
    };
    let (served, front) = (Served::with(bounds.clone()).await, Fronted::with(bounds).await);
    for address in [served.grpc, front.address] {
        Served::until_closed(address, HELLO).await;
    }
}

/// A client that answers pings and has no room for a response.
pub(super) async fn unread_stream() {
    let bounds = Bounds { unread: SHORT, ping_every: SHORT / 4, ..Bounds::default() };
    let (served, front) = (Served::with(bounds.clone()).await, Fronted::with(bounds).await);
    let (send, connection) = client(served.grpc, 0).await;
    let response = call(&send, "/grpc.health.v1.Health/Check").await;
    // Dropping it would reset the call.
    let _response = timeout(DEADLINE, response).await.expect("headers need no window").unwrap();
    let _ = timeout(DEADLINE, connection).await.expect("the server closes");
    served.closed("grpc", "unread_timeout", 1.0).await;
    let (send, connection) = client(front.address, 0).await;
    let response = call(&send, "/a.B/StopProfile").await;
    let _response = timeout(DEADLINE, response).await.expect("headers need no window").unwrap();
    let _ = timeout(DEADLINE, connection).await.expect("the front closes");
    assert_eq!(front.closed("unread_timeout"), 1);
    // One that waits for something to read is not closed.
    let (send, mut connection) = client(served.grpc, 65_535).await;
    let watch = call(&send, "/grpc.health.v1.Health/Watch").await;
    let mut watch = timeout(DEADLINE, watch).await.unwrap().unwrap().into_body();
    let first = timeout(DEADLINE, watch.data()).await.unwrap().unwrap().unwrap();
    watch.flow_control().release_capacity(first.len()).unwrap();
    assert!(timeout(SHORT * 5, &mut connection).await.is_err(), "it is still open");
}
