//! `ZeroMQ` in, gRPC out: how many batches pass, what they cost, and how long they take.
//!
//! `relay_bench KVPLANE_BINARY [PYTHON RELAY_SCRIPT]`
//!
//! Runs `kvplane serve` as a process of its own beside a publisher and SMG subscribers in this one. The
//! publisher is held to a few thousand batches ahead of the slowest subscriber, so that what is measured can
//! be sustained. With a Python and a script, SMG's own relay is measured in the same way, in the same run.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_proto::smg::SubscribeKvEventsRequest;
use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint as GrpcEndpoint};

const METHOD: &str = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents";
/// How far the publisher may be ahead of the slowest subscriber.
const AHEAD: u64 = 4_000;

/// All that a subscriber of the benchmark reads of a batch.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(double, tag = "2")]
    timestamp: f64,
    #[prost(bytes = "vec", optional, tag = "7")]
    snapshot: Option<Vec<u8>>,
}

/// A batch of 8 blocks of 16 tokens that evicts the one of 4,096 batches before: constant residency.
fn payload(n: u64, timestamp: f64) -> Vec<u8> {
    let hashes = |n: u64| -> Vec<OwnedHash> {
        (0..8).map(|i| OwnedHash::Unsigned((n * 8 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
    };
    let mut events = Vec::new();
    if let Some(old) = n.checked_sub(4_096) {
        let mut block_hashes = hashes(old);
        block_hashes.reverse();
        let (medium, group) = (Some("GPU".into()), Some(0));
        events.push(OwnedEvent::Removed(OwnedRemoved {
            block_hashes,
            medium,
            group,
            ..OwnedRemoved::default()
        }));
    }
    events.push(OwnedEvent::Stored(OwnedStored {
        block_hashes: hashes(n),
        token_ids: (0..128).map(|t| (t * 31 + n as u32) % 32_000).collect(),
        block_size: 16,
        medium: Some("GPU".into()),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    }));
    encode_batch(Profile::Vllm0_32, timestamp, Some(0), &events)
}

fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[derive(Default)]
struct Counted {
    batches: AtomicU64,
    latencies: parking_lot::Mutex<Vec<u64>>,
}

/// The relay under test, and the publisher that it listens to.
struct Relay {
    process: Child,
    url: String,
    publisher: PubSocket,
    next: u64,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Relay {
    fn start(context: &PublishContext, command: impl FnOnce(&str, u16) -> Command) -> Self {
        let mut options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
        options.send_hwm = 1_000_000;
        let publisher = PubSocket::open(context, &options).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = command(publisher.last_endpoint(), port);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { process, url: format!("http://127.0.0.1:{port}"), publisher, next: 0 }
    }

    async fn channel(&self) -> Channel {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Ok(channel) = GrpcEndpoint::from_shared(self.url.clone()).unwrap().connect().await {
                return channel;
            }
            assert!(Instant::now() < deadline, "the relay never listened");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn subscribe(&self, count: usize) -> Vec<Arc<Counted>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let mut grpc = Grpc::new(self.channel().await).max_decoding_message_size(64 << 20);
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<SubscribeKvEventsRequest, Head>::default();
            let path = http::uri::PathAndQuery::from_static(METHOD);
            let request = tonic::Request::new(SubscribeKvEventsRequest::default());
            let mut stream = grpc.server_streaming(request, path, codec).await.unwrap().into_inner();
            let counted = Arc::new(Counted::default());
            all.push(counted.clone());
            tokio::spawn(async move {
                while let Ok(Some(head)) = stream.message().await {
                    if head.snapshot.is_none() && head.timestamp > 1e9 {
                        counted.batches.fetch_add(1, Ordering::Relaxed);
                        counted.latencies.lock().push(((now() - head.timestamp) * 1e6).max(0.0) as u64);
                    }
                }
            });
        }
        all
    }

    fn send(&mut self) {
        let frame = payload(self.next, now());
        self.publisher.send(b"", self.next, &frame).unwrap();
        self.next += 1;
    }

    /// Publishes until every subscriber gets what is published, and lets it come to rest.
    async fn warm_up(&mut self, subscribers: &[Arc<Counted>]) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while subscribers.iter().any(|s| s.batches.load(Ordering::Relaxed) < 5) {
            self.send();
            assert!(Instant::now() < deadline, "subscribers never heard anything");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        for subscriber in subscribers {
            subscriber.batches.store(0, Ordering::Relaxed);
            subscriber.latencies.lock().clear();
        }
    }

    /// Sustained batches a second, and the relay's CPU microseconds a batch.
    async fn throughput(&mut self, subscribers: &[Arc<Counted>], batches: u64) -> (f64, f64) {
        self.warm_up(subscribers).await;
        let pid = self.process.id();
        let frames: Vec<Vec<u8>> = (0..batches).map(|i| payload(self.next + i, 2e9 + i as f64)).collect();
        let slowest = || subscribers.iter().map(|s| s.batches.load(Ordering::Relaxed)).min().unwrap();
        let (begun, cpu) = (Instant::now(), cpu_seconds(pid));
        for (sent, frame) in frames.iter().enumerate() {
            while sent as u64 > slowest() + AHEAD {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            self.publisher.send(b"", self.next, frame).unwrap();
            self.next += 1;
        }
        while slowest() < batches {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(begun.elapsed() < Duration::from_mins(2), "stuck at {} of {batches}", slowest());
        }
        let seconds = begun.elapsed().as_secs_f64();
        (batches as f64 / seconds, (cpu_seconds(pid) - cpu) * 1e6 / batches as f64)
    }

    /// p50 and p99 in microseconds at a rate, publisher to subscriber.
    async fn latency(&mut self, subscribers: &[Arc<Counted>], rate: u64, seconds: u64) -> (u64, u64) {
        self.warm_up(subscribers).await;
        let begun = Instant::now();
        let mut sent = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            let due = begun.elapsed().as_micros() as u64 * rate / 1_000_000;
            while sent < due {
                self.send();
                sent += 1;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        while subscribers.iter().any(|s| s.batches.load(Ordering::Relaxed) < sent) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(begun.elapsed() < Duration::from_secs(seconds + 30), "batches are missing");
        }
        let mut all: Vec<u64> = subscribers.iter().flat_map(|s| s.latencies.lock().clone()).collect();
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() * 99 / 100])
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let binary = arguments.first().expect("the path of the kvplane binary").clone();
    let context = PublishContext::new();
    let kvplane = |events: &str, port: u16| {
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
        command.args(["--engine", &format!("vllm={events},model=m")]);
        command
    };
    println!(
        "## Relay: ZeroMQ in, gRPC (SMG's contract) out, 8 blocks of 16 tokens stored and 8 evicted a batch\n"
    );
    println!("| relay | subscribers | batches/s | relay CPU us a batch |\n|---|---|---|---|");
    let mut cost = Vec::new();
    for count in [1, 8] {
        let mut relay = Relay::start(&context, kvplane);
        let subscribers = relay.subscribe(count).await;
        let (rate, cpu) = relay.throughput(&subscribers, 200_000).await;
        println!("| kvplane | {count} | {rate:.0} | {cpu:.1} |");
        cost.push((rate, cpu));
    }
    if let [_, python, script, ..] = &arguments[..] {
        let mut relay = Relay::start(&context, |events, port| {
            let mut command = Command::new(python);
            command.args([script, events, &port.to_string()]);
            command
        });
        let subscribers = relay.subscribe(1).await;
        let (rate, cpu) = relay.throughput(&subscribers, 10_000).await;
        println!("| SMG's Python relay | 1 | {rate:.0} | {cpu:.1} |");
        println!("\nkvplane / SMG's relay, 1 subscriber: {:.1} x", cost[0].0 / rate);
    }
    let (c1, c8) = (cost[0].1, cost[1].1);
    println!("\nCPU a batch: (C8 - C1) / 7 = {:.2} us, C1 / 3 = {:.2} us", (c8 - c1) / 7.0, c1 / 3.0);
    println!(
        "\n## Latency at 10,000 batches/s, publisher to subscriber\n\n| run | p50 us | p99 us |\n|---|---|---|"
    );
    let mut relay = Relay::start(&context, kvplane);
    let subscribers = relay.subscribe(1).await;
    let mut tails = Vec::new();
    for run in 1..=5 {
        let (p50, p99) = relay.latency(&subscribers, 10_000, 3).await;
        println!("| {run} | {p50} | {p99} |");
        tails.push(p99);
    }
    tails.sort_unstable();
    println!("\nmedian p99: {} us", tails[2]);
}
