//! The table of bounds, walked over real sockets: every row is in the security guide and does what it says
//! there.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod peers;
mod picker;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kvplane_access::Bounds;
use kvplane_ingest::{Plane, PlaneOptions};
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::{self as proto};
use kvplane_server::{Options, Service};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/limits.md");
/// Far beyond anything that should take: only a hang reaches it.
const DEADLINE: Duration = Duration::from_mins(1);
/// A bound that a test waits for.
const SHORT: Duration = Duration::from_millis(200);

/// A plane without engines, under these bounds.
struct Served {
    http: SocketAddr,
    grpc: SocketAddr,
    _stop: DropGuard,
}

impl Served {
    async fn with(bounds: Bounds) -> Self {
        Self::beside(bounds, |service| service).await
    }

    /// The same with more listeners.
    async fn beside(bounds: Bounds, more: impl FnOnce(Service) -> Service) -> Self {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let service = more(Service::new(plane, Options { bounds, ..Options::default() }));
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(service.run(http, grpc, stop.clone()));
        Self { http: addresses.0, grpc: addresses.1, _stop: stop.drop_guard() }
    }

    /// Sends bytes and returns all that comes until the server closes.
    async fn until_closed(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the server closes");
        answer
    }

    /// A good client's request on a connection of its own.
    async fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        String::from_utf8(Self::until_closed(self.http, request.as_bytes()).await).unwrap()
    }

    /// Waits until a counter with these labels has at least a value.
    async fn counted(&self, series: &str, least: f64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let page = self.get("/metrics").await;
            let line = page.lines().find_map(|line| line.strip_prefix(series));
            let value: f64 = line.and_then(|value| value.trim().parse().ok()).unwrap_or(-1.0);
            if value >= least {
                return;
            }
            assert!(Instant::now() < deadline, "{series} is {value}, not {least}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn closed(&self, listener: &str, reason: &str, least: f64) {
        let series =
            format!("kvplane_connections_closed_total{{listener=\"{listener}\",reason=\"{reason}\"}}");
        self.counted(&series, least).await;
    }

    async fn refused(&self, reason: &str) {
        self.counted(&format!("kvplane_requests_refused_total{{reason=\"{reason}\"}}"), 1.0).await;
    }

    async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    /// One raw gRPC call over an HTTP/2 connection of its own; the sender goes on with the body.
    async fn raw_call(&self, path: &str) -> (h2::client::ResponseFuture, h2::SendStream<bytes::Bytes>) {
        Self::raw_call_at(self.grpc, path).await
    }

    async fn raw_call_at(
        address: SocketAddr,
        path: &str,
    ) -> (h2::client::ResponseFuture, h2::SendStream<bytes::Bytes>) {
        let stream = TcpStream::connect(address).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://plane{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        send.ready().await.unwrap().send_request(request, false).unwrap()
    }
}

/// The status of a call that was refused at once.
async fn status(response: h2::client::ResponseFuture) -> Code {
    let response = timeout(DEADLINE, response).await.expect("an answer").unwrap();
    let code = response.headers().get("grpc-status").expect("a status").to_str().unwrap();
    Code::from_i32(code.parse().unwrap())
}

fn framed(message: &[u8]) -> bytes::Bytes {
    let mut bytes = vec![0];
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend(message);
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bound_is_in_the_reference_and_holds() {
    let page = std::fs::read_to_string(LIMITS).unwrap();
    for row in Bounds::default().table() {
        let line = format!("| {} | {} | {} | {} | {} |", row.name, row.edge, row.limit, row.then, row.metric);
        assert!(page.contains(&line), "docs/reference/limits.md has no row\n{line}");
        match row.name {
            "connections" => connections().await,
            "front connections" => peers::front_connections().await,
            "idle HTTP/2" => {
                peers::idle_http2().await;
                picker::idle().await;
            }
            "HTTP/2" => http2_is_not_spoken().await,
            "request head" => request_head().await,
            "HTTP/2 preface" => preface().await,
            "idle" => idle().await,
            "unread stream" => peers::unread_stream().await,
            "dead peer" => peers::dead_peer().await,
            "streams per connection" => streams_per_connection().await,
            "calls" => {
                calls().await;
                peers::front_calls().await;
            }
            "health watches" => health_watches().await,
            "request bytes" => request_bytes().await,
            "request time" => request_time().await,
            "message size" => message_size().await,
            "decoded size" => decoded_size().await,
            "dumps" => dumps().await,
            "picker streams" => picker::streams().await,
            "picker messages" => picker::messages().await,
            // By name: auth::tests::secure::half_a_handshake_ends,
            // edge::tests::a_peer_that_does_not_read_is_closed,
            // front::evidence::tests::the_budget_is_a_bound, in kvplane-stream
            // journal::evidence::tests::contents_are_remembered_within_their_bound, and in kvplane-socket
            // tests/bounds.rs and publish::tests. In kvplane-gateway
            // refusals::one_client_takes_neither_all_bytes_nor_all_places and
            // refusals::what_takes_too_long_or_is_too_long_is_counted; here chain::bookings.
            "gateway"
            | "gateway bodies"
            | "shared bookings"
            | "TLS handshake"
            | "unread response"
            | "copied calls"
            | "evidence"
            | "event sockets"
            | "republished sockets" => {}
            other => panic!("no test for the bound {other:?}"),
        }
    }
}

/// Silent connections beyond the cap make room for a client that asks.
async fn connections() {
    let served = Served::with(Bounds { connections_per_peer: 8, ..Bounds::default() }).await;
    for address in [served.http, served.grpc] {
        let mut silent = Vec::new();
        for _ in 0..40 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(served.get("/healthz").await.ends_with("ok\n"));
        let mut health = HealthClient::new(served.channel().await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    served.closed("http", "displaced", 30.0).await;
    served.closed("grpc", "displaced", 30.0).await;
}

/// A client that speaks HTTP/2 at once: none of the bounds of the gRPC listener would hold for it.
async fn http2_is_not_spoken() {
    let served = Served::with(Bounds::default()).await;
    let stream = TcpStream::connect(served.http).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    let request = http::Request::get("http://plane/healthz").body(()).unwrap();
    let answer = send.send_request(request, true).map(|(response, _)| response);
    let ended = timeout(DEADLINE, connection).await.expect("the server closes");
    assert!(ended.is_err(), "{ended:?}");
    if let Ok(answer) = answer {
        assert!(timeout(DEADLINE, answer).await.expect("an end").is_err());
    }
    served.closed("http", "http2", 1.0).await;
    assert!(served.get("/healthz").await.ends_with("ok\n"));
    // It may come in pieces, and end before it is whole.
    let mut slow = TcpStream::connect(served.http).await.unwrap();
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        slow.write_all(&[*byte]).await.unwrap();
    }
    let mut answer = Vec::new();
    let _ = timeout(DEADLINE, slow.read_to_end(&mut answer)).await.expect("the server closes");
    served.closed("http", "http2", 2.0).await;
}

async fn request_head() {
    let served = Served::with(Bounds { head: SHORT, ..Bounds::default() }).await;
    assert!(Served::until_closed(served.http, b"").await.is_empty());
    assert!(Served::until_closed(served.http, b"GET /healthz HTTP/1.1\r\nhost: loc").await.is_empty());
    served.closed("http", "head_timeout", 2.0).await;
}

async fn preface() {
    let served = Served::with(Bounds { head: SHORT, ..Bounds::default() }).await;
    Served::until_closed(served.grpc, b"").await;
    Served::until_closed(served.grpc, b"PRI * HTTP").await;
    served.closed("grpc", "preface_timeout", 2.0).await;
}

async fn idle() {
    let served = Served::with(Bounds { idle_http: SHORT, ..Bounds::default() }).await;
    let answer = Served::until_closed(served.http, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(String::from_utf8(answer).unwrap().ends_with("ok\n"));
    served.closed("http", "idle_timeout", 1.0).await;
}

async fn streams_per_connection() {
    let served = Served::with(Bounds { streams_per_connection: 7, ..Bounds::default() }).await;
    let stream = TcpStream::connect(served.grpc).await.unwrap();
    let (_send, mut connection) = h2::client::handshake(stream).await.unwrap();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let settled = async {
        loop {
            // Driven until the server's settings are here.
            let _ = timeout(Duration::from_millis(20), &mut connection).await;
            if connection.max_concurrent_send_streams() == 7 {
                return;
            }
        }
    };
    tokio::time::timeout_at(deadline, settled).await.expect("the server's settings");
}

async fn dumps() {
    let served = Served::with(Bounds { dumps: 0, dump_wait: SHORT, ..Bounds::default() }).await;
    let answer = served.get("/dump").await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1"), "{answer}");
    served.refused("too_many_dumps").await;
    let served = Served::with(Bounds::default()).await;
    assert!(served.get("/dump").await.contains("{}"));
    assert!(served.get("/dump").await.contains("{}"), "a place is given back");
}

async fn calls() {
    let served = Served::with(Bounds { calls_per_peer: 1, ..Bounds::default() }).await;
    let (first, mut body) = served.raw_call("/kvplane.v1.Plane/QueryStream").await;
    body.send_data(framed(&[]), false).unwrap();
    // Its headers come once it has its place, which it keeps for as long as it may send more.
    let first = timeout(DEADLINE, first).await.expect("an answer").unwrap();
    assert_eq!(first.headers().get("grpc-status"), None);
    let (second, _body) = served.raw_call("/kvplane.v1.Plane/Status").await;
    assert_eq!(status(second).await, Code::ResourceExhausted);
    served.refused("too_many_calls_of_peer").await;
}

async fn health_watches() {
    let served = Served::with(Bounds { watches_per_peer: 3, ..Bounds::default() }).await;
    let mut health = HealthClient::new(served.channel().await);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(health.watch(HealthCheckRequest::default()).await.unwrap());
    }
    let refused = health.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    health.check(HealthCheckRequest::default()).await.unwrap();
    served.refused("too_many_watches").await;
    drop(open);
}

/// Unfinished requests share a budget.
async fn request_bytes() {
    let bounds = Bounds { request_bytes_per_peer: 100_000, ..Bounds::default() };
    let served = Served::with(bounds).await;
    let mut unfinished = Vec::new();
    let head = "POST /v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90000\r\n\r\n";
    let mut stream = TcpStream::connect(served.http).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; 80_000]).await.unwrap();
    unfinished.push(stream);
    served.counted("kvplane_request_bytes ", 80_000.0).await;
    let (response, mut body) = served.raw_call("/kvplane.v1.Plane/Query").await;
    let message = proto::QueryRequest { token_ids: vec![1 << 20; 10_000], ..Default::default() };
    body.send_data(framed(&message.encode_to_vec()), true).unwrap();
    assert_eq!(status(response).await, Code::ResourceExhausted);
    served.refused("request_bytes_of_peer").await;
    let full = format!("{head}{}", " ".repeat(90_000));
    let answer = String::from_utf8(Served::until_closed(served.http, full.as_bytes()).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after"), "{answer}");
    drop(unfinished);
    served.counted("kvplane_requests_refused_total{reason=\"request_bytes_of_peer\"}", 2.0).await;
}

async fn request_time() {
    let served = Served::with(Bounds { request_time: SHORT, ..Bounds::default() }).await;
    let half = b"POST /v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    let answer = String::from_utf8(Served::until_closed(served.http, half).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let (response, mut body) = served.raw_call("/kvplane.v1.Plane/Query").await;
    body.send_data(framed(&[1; 100]).slice(..50), false).unwrap();
    assert_eq!(status(response).await, Code::DeadlineExceeded);
    served.counted("kvplane_requests_refused_total{reason=\"request_timeout\"}", 2.0).await;
    // A stream of messages may rest between two of them.
    let mut plane = PlaneClient::new(served.channel().await);
    let (send, messages) = tokio::sync::mpsc::channel::<proto::QueryBatch>(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
    send.send(proto::QueryBatch::default()).await.unwrap();
    let mut answers = plane.query_stream(stream).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    tokio::time::sleep(SHORT * 3).await;
    send.send(proto::QueryBatch::default()).await.unwrap();
    answers.message().await.unwrap().unwrap();
}

/// A message is refused by its length alone, before any of it is here.
async fn message_size() {
    let served = Served::with(Bounds::default()).await;
    for (path, limit) in [
        ("/kvplane.v1.Plane/Query", 12 << 20),
        ("/kvplane.v1.Plane/QueryStream", 24 << 20),
        ("/kvplane.v1.Plane/Subscribe", 1 << 20),
        ("/kvplane.v1.Plane/Status", 1 << 20),
        ("/kvplane.v1.Admin/Flush", 1 << 20),
        ("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", 64 << 10),
        ("/grpc.health.v1.Health/Check", 64 << 10),
    ] {
        let (response, mut body) = served.raw_call(path).await;
        let prefix: Vec<u8> = [0].into_iter().chain((limit as u32 + 1).to_be_bytes()).collect();
        body.send_data(prefix.into(), false).unwrap();
        let response = timeout(DEADLINE, response).await.expect("an answer").unwrap();
        let code = response.headers().get("grpc-status").cloned();
        let code = match code {
            Some(code) => code,
            // A stream has begun: its status comes last.
            None => timeout(DEADLINE, response.into_body().trailers()).await.unwrap().unwrap().unwrap()["grpc-status"].clone(),
        };
        assert_eq!(code, "8", "{path}");
    }
    served.refused("message_too_large").await;
}

/// Two bytes each on the wire, hundreds in memory.
async fn decoded_size() {
    let served = Served::with(Bounds::default()).await;
    let mut plane = PlaneClient::new(served.channel().await);
    let batch = proto::QueryBatch { queries: vec![proto::QueryRequest::default(); 1 << 20] };
    let answers = plane.query_stream(tokio_stream::iter([batch])).await.unwrap();
    let refused = answers.into_inner().message().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("queries") && refused.message().contains("67108864"), "{refused}");
    let request =
        proto::QueryRequest { extra_keys: vec![proto::BlockKeys::default(); 2 << 20], ..Default::default() };
    let refused = plane.query(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("extra_keys"), "{refused}");
    served.refused("message_decoded_too_large").await;
    // The longest prompt is answered, or refused for what it asks: nobody has the model.
    let longest = proto::QueryRequest {
        token_ids: vec![150_000; 1 << 20],
        model: "m".to_owned(),
        ..Default::default()
    };
    let answered = plane.query(longest).await;
    assert!(!answered.is_err_and(|status| status.code() == Code::ResourceExhausted));
}
