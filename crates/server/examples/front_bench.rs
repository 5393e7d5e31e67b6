//! What the front costs: a unary echo, direct and through it, in turns within one run.
//!
//! ```text
//! cargo run --release -p kvplane-server --example front_bench [calls per round]
//! ```
//!
//! Engine, front and client have a thread each, as they would have a process each. The front's processor time
//! is what the whole process uses more per call than without it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_front::{Front, FrontOptions, OwnedCalls};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 7;
const MESSAGE: usize = 256;
/// The kernel counts processor time in these; fixed for user space since ever.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() {
    let calls = std::env::args().nth(1).map_or(6000, |calls| calls.parse().expect("a number of calls"));
    let engine = on_a_thread(|listener| async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service_fn(echo)),
            );
        }
    });
    let front = on_a_thread(move |listener| async move {
        let options = FrontOptions::new(format!("http://{engine}").parse().unwrap(), "bench.Engine");
        let own = OwnedCalls::new(|_| async { tonic::Status::unimplemented("").into_http() });
        Front::new(options).unwrap().run(listener, CancellationToken::new(), own).await;
    });
    let runtime = runtime();
    let mut direct = runtime.block_on(connect(engine));
    let mut through = runtime.block_on(connect(front));
    println!("{MESSAGE}-byte unary echo, {ROUNDS} rounds of {calls} calls each way; times in us");
    println!("{:>10} {:>8} {:>8} {:>8} {:>9} {:>9}", "at once", "way", "p50", "p99", "cpu/call", "calls/s");
    for at_once in [1, 32] {
        let (mut without, mut with) = (Sample::default(), Sample::default());
        for _ in 0..ROUNDS {
            without.add(runtime.block_on(round(&mut direct, calls, at_once)));
            with.add(runtime.block_on(round(&mut through, calls, at_once)));
        }
        let (a, b) = (without.figures(), with.figures());
        for (way, f) in [("direct", a), ("front", b)] {
            println!("{at_once:>10} {way:>8} {:>8.1} {:>8.1} {:>9.1} {:>9.0}", f[0], f[1], f[2], f[3]);
        }
        println!(
            "{at_once:>10} {:>8} {:>8.1} {:>8.1} {:>9.1}",
            "added",
            b[0] - a[0],
            b[1] - a[1],
            b[2] - a[2]
        );
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn on_a_thread<F, A>(serve: F) -> SocketAddr
where
    F: FnOnce(TcpListener) -> A + Send + 'static,
    A: Future<Output = ()>,
{
    let (tell, addr) = std::sync::mpsc::sync_channel(1);
    thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            serve(listener).await;
        });
    });
    addr.recv().unwrap()
}

async fn echo(
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let data = request.into_body().collect().await.map_or_else(|_| Bytes::new(), Collected::to_bytes);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(data).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

async fn connect(addr: SocketAddr) -> SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(addr).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (send, connection) =
        Builder::new(TokioExecutor::new()).handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn call(send: &mut SendRequest<Full<Bytes>>) {
    let request = Request::post("http://bench/bench.Engine/Echo")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .header("user-agent", "front-bench/1")
        .body(Full::new(Bytes::from_static(&[0; MESSAGE])))
        .unwrap();
    let response = send.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes().len(), MESSAGE);
}

async fn round(send: &mut SendRequest<Full<Bytes>>, calls: usize, at_once: usize) -> Sample {
    for _ in 0..calls / 20 {
        call(send).await;
    }
    let (cpu, start) = (cpu(), Instant::now());
    let callers = (0..at_once).map(|_| {
        let mut send = send.clone();
        async move {
            let mut times = Vec::with_capacity(calls / at_once);
            for _ in 0..calls / at_once {
                let start = Instant::now();
                call(&mut send).await;
                times.push(start.elapsed());
            }
            times
        }
    });
    let times = join_all(callers).await.concat();
    Sample { times, cpu: self::cpu() - cpu, wall: start.elapsed().as_secs_f64() }
}

#[derive(Default)]
struct Sample {
    times: Vec<Duration>,
    cpu: f64,
    wall: f64,
}

impl Sample {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.cpu += other.cpu;
        self.wall += other.wall;
    }

    /// p50, p99 and processor time in microseconds, and calls per second.
    fn figures(mut self) -> [f64; 4] {
        self.times.sort_unstable();
        let count = self.times.len();
        let at =
            |share: f64| self.times[((count as f64 * share) as usize).min(count - 1)].as_secs_f64() * 1e6;
        [at(0.5), at(0.99), self.cpu * 1e6 / count as f64, count as f64 / self.wall]
    }
}

/// Seconds of processor time of all threads.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / TICKS_PER_SECOND
}
