//! What a question costs when it is served: prompts of 512 blocks over HTTP and gRPC.
//!
//! ```text
//! cargo run --release -p kvplane-server --example query_bench KVPLANE_BINARY [SECONDS]
//! ```
//!
//! Runs `kvplane serve` as a process of its own, over a simulated engine in this one. Eight connections ask one after the
//! other; the server's processor time is what the kernel counts for its process.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, reason = "a benchmark")]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use kvplane_proto::kvplane::v1::QueryRequest;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine};
use tokio::net::TcpStream;

const CONNECTIONS: usize = 8;
const BLOCKS: usize = 512;
const BLOCK_SIZE: usize = 16;
/// Different prompts, so that no cache of the processor holds all of them.
const PROMPTS: usize = 64;
/// The kernel counts processor time in these; fixed for user space since ever.
const TICKS_PER_SECOND: f64 = 100.0;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Seconds of processor time so far.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        ticks / TICKS_PER_SECOND
    }
}

fn prompts() -> Vec<Vec<u32>> {
    let tokens =
        |prompt: usize| (0..BLOCKS * BLOCK_SIZE).map(move |at| ((at * 31 + prompt * 7_919) % 128_000) as u32);
    (0..PROMPTS).map(|prompt| tokens(prompt).collect()).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut words = std::env::args().skip(1);
    let binary = words.next().expect("the path of a kvplane binary");
    let seconds = words.next().map_or(5, |seconds| seconds.parse().expect("a number of seconds"));
    let sim = SimEngine::start(SimConfig { blocks: PROMPTS * (BLOCKS + 2), ..SimConfig::default() }).unwrap();
    let prompts = prompts();
    for prompt in &prompts {
        sim.complete(prompt, 1, &CompletionOptions::default()).unwrap();
    }
    let events = sim.event_endpoints().remove(0);
    let replay = sim.replay_endpoints().remove(0).unwrap();
    let engine = format!("vllm={events},replay={replay},model=m");
    let (http, grpc) = (free_address(), free_address());
    let server = Command::new(binary)
        .args(["serve", "--http", &http.to_string(), "--grpc", &grpc.to_string()])
        .args(["--engine", &engine, "--log", "error"])
        .stdout(Stdio::null())
        .spawn();
    let server = Server(server.unwrap());
    let bodies: Arc<[Bytes]> = prompts
        .iter()
        .map(|ids| Bytes::from(serde_json::json!({ "model": "m", "token_ids": ids }).to_string()))
        .collect();
    until_known(http, &bodies).await;
    println!(
        "{BLOCKS} blocks of {BLOCK_SIZE} tokens ({} bytes of JSON), {CONNECTIONS} connections, one stream that holds all",
        bodies[0].len()
    );
    println!("{:>14} {:>12} {:>16} {:>20}", "", "requests/s", "cpu/request, us", "requests/cpu second");
    let length = Duration::from_secs(seconds);
    let row = |name: &str, count: u64, cpu: f64, elapsed: f64| {
        let count = count as f64;
        println!("{name:>14} {:>12.0} {:>16.1} {:>20.0}", count / elapsed, cpu / count * 1e6, count / cpu);
    };
    for _ in 0..3 {
        let (count, cpu, elapsed) =
            measure(&server, length, |asked| http_caller(http, bodies.clone(), asked)).await;
        row("POST /v1/query", count, cpu, elapsed);
        let prompts: Arc<[Vec<u32>]> = prompts.clone().into();
        let (count, cpu, elapsed) =
            measure(&server, length, |asked| grpc_caller(grpc, prompts.clone(), asked)).await;
        row("gRPC Query", count, cpu, elapsed);
    }
    sim.stop();
}

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Waits until the server knows everything that the engine holds.
async fn until_known(server: SocketAddr, bodies: &[Bytes]) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        assert!(Instant::now() < deadline, "the server never knew all prompts");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(socket) = TcpStream::connect(server).await else { continue };
        let (mut send, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut known = 0;
        for body in bodies {
            known += usize::from(ask(&mut send, body.clone()).await.contains("\"blocks\":512"));
        }
        if known == bodies.len() {
            return;
        }
    }
}

type Send = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

async fn ask(send: &mut Send, body: Bytes) -> String {
    let request = Request::post("/v1/query").header("host", "kvplane").body(Full::new(body)).unwrap();
    send.ready().await.unwrap();
    let response = send.send_request(request).await.unwrap();
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn measure<F: Future<Output = ()> + 'static>(
    server: &Server,
    length: Duration,
    caller: impl Fn(Arc<AtomicU64>) -> F,
) -> (u64, f64, f64) {
    let asked = Arc::new(AtomicU64::new(0));
    let local = tokio::task::LocalSet::new();
    let callers: Vec<_> = (0..CONNECTIONS).map(|_| local.spawn_local(caller(asked.clone()))).collect();
    local
        .run_until(async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let (before, cpu, start) = (asked.load(Ordering::Relaxed), server.cpu(), Instant::now());
            tokio::time::sleep(length).await;
            let count = asked.load(Ordering::Relaxed) - before;
            let figures = (count, server.cpu() - cpu, start.elapsed().as_secs_f64());
            callers.iter().for_each(tokio::task::JoinHandle::abort);
            figures
        })
        .await
}

async fn http_caller(server: SocketAddr, bodies: Arc<[Bytes]>, asked: Arc<AtomicU64>) {
    let socket = TcpStream::connect(server).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::task::spawn_local(connection);
    loop {
        let at = asked.fetch_add(1, Ordering::Relaxed) as usize;
        let answer = ask(&mut send, bodies[at % PROMPTS].clone()).await;
        assert!(answer.contains("\"blocks\":512"), "{answer}");
    }
}

async fn grpc_caller(server: SocketAddr, prompts: Arc<[Vec<u32>]>, asked: Arc<AtomicU64>) {
    let mut client = PlaneClient::connect(format!("http://{server}")).await.unwrap();
    loop {
        let at = asked.fetch_add(1, Ordering::Relaxed) as usize;
        let token_ids = prompts[at % PROMPTS].clone();
        let request = QueryRequest { model: "m".to_owned(), token_ids, ..QueryRequest::default() };
        let answer = client.query(request).await.unwrap().into_inner();
        assert_eq!(answer.matches[0].blocks as usize, BLOCKS);
    }
}
