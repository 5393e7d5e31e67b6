//! Many TensorRT-LLM engines, each drained once and followed by several subscribers: what it costs.
//!
//! `drain_fleet_bench KVPLANE_BINARY [ENGINES] [EVENTS_A_SECOND] [SUBSCRIBERS]`
//!
//! Runs `kvplane serve` as a process of its own beside an HTTP server, which plays all engines, and SMG
//! subscribers in this one. Every subscriber must get every block that its engine stored.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kvplane_proto::engines::trtllm::trtllm_service_client::TrtllmServiceClient;
use kvplane_proto::smg::SubscribeKvEventsRequest;
use kvplane_proto::smg::kv_cache_event::Data;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::Endpoint;

/// How long each measurement takes.
const SECONDS: u64 = 10;
/// Blocks of 32 tokens that an engine holds; then every store evicts one.
const HELD: u64 = 512;

/// One engine: its buffer of events, drained by every reader.
#[derive(Default)]
struct Engine {
    buffer: Mutex<String>,
    next_id: AtomicU64,
    stored: AtomicU64,
}

impl Engine {
    fn emit(&self, event: &str) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut buffer = self.buffer.lock();
        let comma = if buffer.is_empty() { "" } else { "," };
        write!(buffer, "{comma}{{\"event_id\":{id},\"data\":{event},\"window_size\":4096}}").unwrap();
    }

    /// Stores a block of a prompt of its own, and evicts the oldest where the cache is full.
    fn work(&self) {
        let hash = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let n = self.stored.fetch_add(1, Ordering::Relaxed);
        if let Some(old) = n.checked_sub(HELD) {
            self.emit(&format!("{{\"type\":\"removed\",\"block_hashes\":[{}]}}", hash(old)));
        }
        let mut tokens = String::new();
        for at in 0..32 {
            let comma = if at == 0 { "" } else { "," };
            let id = (n * 32 + at) % 100_000;
            write!(tokens, "{comma}{{\"type\":\"unique_token\",\"token_id\":{id},\"token_extra_id\":0}}")
                .unwrap();
        }
        self.emit(&format!(
            "{{\"type\":\"stored\",\"parent_hash\":null,\"blocks\":[{{\"type\":\"stored_block\",\"block_hash\":{},\"tokens\":[{tokens}],\"cache_level\":0,\"priority\":35,\"mm_keys\":[],\"cache_salt\":null}}]}}",
            hash(n)
        ));
    }
}

/// Every engine under a path of its own: `/N/kv_cache_events`.
async fn serve(listener: TcpListener, engines: Arc<Vec<Engine>>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let engines = engines.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let number: usize = request.uri().path().split('/').nth(1).unwrap().parse().unwrap();
            let drained = std::mem::take(&mut *engines[number].buffer.lock());
            let body = Full::new(Bytes::from(format!("[{drained}]")));
            async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer),
        );
    }
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

struct Plane(Child);

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts the blocks that a subscriber receives.
async fn subscribe(url: &str, engine: usize, reported: Arc<AtomicU64>) {
    let deadline = Instant::now() + Duration::from_mins(1);
    let channel = loop {
        match Endpoint::from_shared(url.to_owned()).unwrap().connect().await {
            Ok(channel) => break channel,
            Err(error) => assert!(Instant::now() < deadline, "kvplane never listened: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut request = tonic::Request::new(SubscribeKvEventsRequest::default());
    request.metadata_mut().insert("kvplane-engine", format!("e{engine}").parse().unwrap());
    let mut client = TrtllmServiceClient::new(channel);
    let mut batches = client.subscribe_kv_events(request).await.unwrap().into_inner();
    tokio::spawn(async move {
        while let Ok(Some(batch)) = batches.message().await {
            for event in batch.events {
                if let Some(Data::Stored(stored)) = event.data {
                    reported.fetch_add(stored.blocks.len() as u64, Ordering::Relaxed);
                }
            }
        }
    });
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let binary = arguments.first().expect("the path of the kvplane binary").clone();
    let number = |at: usize, default: u64| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let (count, rate, subscribers) = (number(1, 64) as usize, number(2, 100), number(3, 4));

    let engines: Arc<Vec<Engine>> = Arc::new((0..count).map(|_| Engine::default()).collect());
    for engine in &*engines {
        engine.emit("{\"type\":\"created\",\"num_blocks_per_cache_level\":[100000,0]}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, engines.clone()));

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(&binary);
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        &format!("127.0.0.1:{port}"),
        "--log",
        "error",
    ]);
    for engine in 0..count {
        command.args([
            "--engine",
            &format!("trtllm=http://{address}/{engine},id=e{engine},model=m,block_size=32"),
        ]);
    }
    let plane = Plane(command.stdout(Stdio::null()).spawn().unwrap());
    let url = format!("http://127.0.0.1:{port}");
    let reported: Vec<Arc<AtomicU64>> = (0..count as u64 * subscribers).map(|_| Arc::default()).collect();
    for (at, reported) in reported.iter().enumerate() {
        subscribe(&url, at % count, reported.clone()).await;
    }

    println!(
        "## Drain once, serve many: {count} engines, {rate} events/s each, {subscribers} subscribers each\n"
    );
    println!("| run | events/s | kvplane CPU, % of one core | CPU us an event |\n|---|---|---|---|");
    for run in 1..=3 {
        let (begun, cpu) = (Instant::now(), cpu_seconds(plane.0.id()));
        let events = || engines.iter().map(|engine| engine.next_id.load(Ordering::Relaxed)).sum::<u64>();
        let before = events();
        // A store and, once full, a removal: two events a turn.
        let mut turns = 0;
        while begun.elapsed() < Duration::from_secs(SECONDS) {
            let due = begun.elapsed().as_millis() as u64 * rate / 2 / 1000;
            while turns < due {
                engines.iter().for_each(Engine::work);
                turns += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (seconds, used) = (begun.elapsed().as_secs_f64(), cpu_seconds(plane.0.id()) - cpu);
        let done = events() - before;
        println!(
            "| {run} | {:.0} | {:.1} | {:.1} |",
            done as f64 / seconds,
            used / seconds * 100.0,
            used * 1e6 / done as f64
        );
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for (at, reported) in reported.iter().enumerate() {
        let stored = engines[at % count].stored.load(Ordering::Relaxed);
        while reported.load(Ordering::Relaxed) < stored {
            assert!(Instant::now() < deadline, "a subscriber has {reported:?} of {stored} blocks");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    println!("\nevery subscriber was told of every block of its engine");
}
