//! `ZeroMQ` in, reports out: how many blocks pass, how far they lag behind, and what they cost.
//!
//! `report_bench KVPLANE_BINARY`
//!
//! Runs `kvplane report` as a process of its own, between a publisher and a server that keeps what it is
//! told, in this one.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_proto::inferencecache::server::inference_cache_server::{InferenceCache, InferenceCacheServer};
use kvplane_proto::inferencecache::{self as proto, Ack, CacheEvent, CacheStateUpdate};
use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};
use parking_lot::Mutex;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Blocks of a batch.
const BLOCKS: u64 = 8;
const SECONDS: u64 = 10;
/// The server knows what it should when it has as many blocks as it should for so long.
const AT_REST: Duration = Duration::from_millis(300);

/// A batch of 8 blocks of 16 tokens, that evicts an old one so that as many batches stay.
fn payload(n: u64, stay: u64) -> Vec<u8> {
    let hashes = |n: u64| -> Vec<OwnedHash> {
        (0..BLOCKS)
            .map(|i| OwnedHash::Unsigned((n * BLOCKS + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect()
    };
    let (medium, group) = (Some("GPU".to_owned()), Some(0));
    let mut events = Vec::new();
    if let Some(old) = n.checked_sub(stay) {
        let mut block_hashes = hashes(old);
        block_hashes.reverse();
        let medium = medium.clone();
        events.push(OwnedEvent::Removed(OwnedRemoved {
            block_hashes,
            medium,
            group,
            ..OwnedRemoved::default()
        }));
    }
    events.push(OwnedEvent::Stored(OwnedStored {
        block_hashes: hashes(n),
        // No two batches begin alike.
        token_ids: (0..128).map(|t| t * 31 + n as u32).collect(),
        block_size: 16,
        medium,
        group,
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    }));
    encode_batch(Profile::Vllm0_32, n as f64, Some(0), &events)
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Keeps what it receives.
#[derive(Default)]
struct Kept {
    hashes: Mutex<HashSet<[u8; 8]>>,
    calls: AtomicU64,
    clears: AtomicU64,
}

impl Kept {
    fn taken(&self) -> Response<Ack> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Response::new(Ack { accepted: true, reason_code: String::new() })
    }

    fn len(&self) -> u64 {
        self.hashes.lock().len() as u64
    }
}

#[derive(Clone)]
struct Service(Arc<Kept>);

#[tonic::async_trait]
impl InferenceCache for Service {
    type StreamCacheEventsStream = tokio_stream::Empty<Result<CacheEvent, Status>>;
    type StreamMetricsStream = tokio_stream::Empty<Result<proto::Metric, Status>>;

    async fn report_cache_state(
        &self,
        request: Request<Streaming<CacheStateUpdate>>,
    ) -> Result<Response<Ack>, Status> {
        let mut updates = request.into_inner();
        while let Some(update) = updates.message().await? {
            let mut hashes = self.0.hashes.lock();
            hashes.extend(
                update.prefixes.iter().map(|prefix| <[u8; 8]>::try_from(&prefix.prefix_hash[..]).unwrap()),
            );
        }
        Ok(self.0.taken())
    }

    async fn publish_event(&self, request: Request<CacheEvent>) -> Result<Response<Ack>, Status> {
        let event = request.into_inner();
        if event.r#type() == Type::AllCleared {
            self.0.clears.fetch_add(1, Ordering::Relaxed);
            self.0.hashes.lock().clear();
        } else {
            self.0.hashes.lock().remove(&event.prefix_hash[..]);
        }
        Ok(self.0.taken())
    }

    async fn render_template(
        &self,
        _: Request<proto::RenderTemplateRequest>,
    ) -> Result<Response<proto::RenderTemplateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_route(
        &self,
        _: Request<proto::LookupRouteRequest>,
    ) -> Result<Response<proto::LookupRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<proto::LookupPdRouteRequest>,
    ) -> Result<Response<proto::LookupPdRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_cache_state(
        &self,
        _: Request<proto::GetCacheStateRequest>,
    ) -> Result<Response<proto::GetCacheStateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_cache_events(
        &self,
        _: Request<proto::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_metrics(
        &self,
        _: Request<proto::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// The reporter under test.
struct Reporter {
    process: Child,
    publisher: PubSocket,
    kept: Arc<Kept>,
    next: u64,
    /// Batches that the engine's cache has room for.
    stay: u64,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Reporter {
    async fn start(binary: &str, context: &PublishContext, stay: u64) -> Self {
        let mut options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
        options.send_hwm = 1_000_000;
        let publisher = PubSocket::open(context, &options).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let kept = Arc::<Kept>::default();
        let service = InferenceCacheServer::new(Service(kept.clone()));
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        let mut command = Command::new(binary);
        command.args(["report", "--engine-endpoint", publisher.last_endpoint(), "--server", &address]);
        command.args(["--topic", "", "--replica-id", "r", "--model-id", "m", "--tenant-id", "t"]);
        command.args(["--engine-metrics-url", "", "--log", "error"]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { process, publisher, kept, next: 0, stay }
    }

    fn send(&mut self) {
        let frame = payload(self.next, self.stay);
        self.publisher.send(b"", self.next, &frame).unwrap();
        self.next += 1;
    }

    /// What the server has to know in the end, of what was published from `first` on.
    fn expected(&self, first: u64) -> u64 {
        BLOCKS * (self.next - first).min(self.stay)
    }

    async fn run(&mut self, rate: u64) {
        // Until it is heard; what was published before that nobody knows.
        let begun = Instant::now();
        while self.kept.len() == 0 {
            self.send();
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(begun.elapsed() < Duration::from_mins(1), "nothing was ever reported");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let first = self.next - self.kept.len() / BLOCKS;
        let pid = self.process.id();
        let (begun, cpu, calls) = (Instant::now(), cpu_seconds(pid), self.kept.calls.load(Ordering::Relaxed));
        let (mut sent, clears) = (0, self.kept.clears.load(Ordering::Relaxed));
        while begun.elapsed() < Duration::from_secs(SECONDS) {
            let due = begun.elapsed().as_micros() as u64 * rate / BLOCKS / 1_000_000;
            while sent < due {
                self.send();
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let ended = Instant::now();
        let mut right_since = None;
        let lag = loop {
            let (has, wants, now) = (self.kept.len(), self.expected(first), Instant::now());
            right_since = if has == wants { right_since.or(Some(now)) } else { None };
            if let Some(since) = right_since.filter(|since| now - *since >= AT_REST) {
                break (since - ended).as_millis();
            }
            assert!(ended.elapsed() < Duration::from_mins(2), "the server knows {has} of {wants}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let share = (cpu_seconds(pid) - cpu) / begun.elapsed().as_secs_f64() * 100.0;
        let room = if self.stay == u64::MAX { "any".to_owned() } else { (self.stay * BLOCKS).to_string() };
        println!(
            "| {room} | {:.0} | {lag} | {share:.1} % | {} | {} |",
            (sent * BLOCKS) as f64 / seconds,
            self.kept.calls.load(Ordering::Relaxed) - calls,
            self.kept.clears.load(Ordering::Relaxed) - clears,
        );
    }
}

#[tokio::main]
async fn main() {
    let binary = std::env::args().nth(1).expect("the path of the kvplane binary");
    let context = PublishContext::new();
    println!(
        "## Reports: ZeroMQ in, inference-cache's contract out, 8 blocks of 16 tokens a batch, {SECONDS} s\n"
    );
    println!(
        "| room for blocks | stored blocks/s | told after the last, ms | CPU of a core | calls | clears |\n|---|---|---|---|---|---|"
    );
    // Beyond this many, every block that is stored evicts another.
    for (rate, stay) in
        [(1_000, u64::MAX), (1_000, 128), (10_000, 4_096), (50_000, u64::MAX), (50_000, 4_096)]
    {
        Reporter::start(&binary, &context, stay).await.run(rate).await;
    }
}
