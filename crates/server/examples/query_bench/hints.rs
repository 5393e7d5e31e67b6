//! What `LookupRoute` costs when it is served: a million reported entries, chains of 512 blocks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use kvplane_proto::inferencecache::{CacheStateUpdate, LookupRouteRequest, PrefixEntry};
use tonic::transport::Channel;

use crate::callers::{CONNECTIONS, HttpCaller};
use crate::engines::{BLOCK_SIZE, BLOCKS};
use crate::servers::Server;
use crate::spread;

const REPLICAS: usize = 64;
const PROMPTS: usize = 128;
/// Replicas that hold each prompt: with 512 blocks a prompt, 1 048 576 entries in all.
const HOLDERS: usize = 16;
/// What a gateway of some size asks.
const STEADY_PER_SECOND: u32 = 2000;
const TENANT: &str = "bench";
const SCHEME: &str = "vllm";

/// Measures a server of its own, and prints.
pub(crate) async fn run(binary: &str, length: Duration, rounds: u64) {
    let (server, grpc) = Server::kvplane(binary, &["--set", "hints.max_entries=2000000"]);
    // It listens for HTTP as soon as it listens for gRPC.
    HttpCaller::connect_patiently(server.http).await;
    let mut client = connect(grpc).await;
    let start = Instant::now();
    for replica in 0..REPLICAS {
        let held =
            (0..PROMPTS).filter(|prompt| holds(replica, *prompt)).map(|prompt| update(replica, prompt));
        let held: Vec<_> = held.collect();
        assert!(client.report_cache_state(tokio_stream::iter(held)).await.unwrap().into_inner().accepted);
    }
    let (loading, loading_cpu) = (start.elapsed().as_secs_f64(), server.cpu());
    let entries = PROMPTS * HOLDERS * BLOCKS;
    println!("\nLookupRoute: {entries} entries over {REPLICAS} replicas, chains of {BLOCKS} blocks:");
    println!(
        "  reported in {loading:.1} s ({:.0} entries a second of processor time)",
        entries as f64 / loading_cpu
    );

    let asked: Arc<[LookupRouteRequest]> = (0..PROMPTS).map(lookup).collect();
    let (mut per_cpu, mut per_second, mut middle, mut late) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        let (cpu, second) = as_fast_as_possible(&server, grpc, &asked, length).await;
        per_cpu.push(cpu);
        per_second.push(second);
        let [p50, p99] = steadily(grpc, &asked, length).await;
        middle.push(p50);
        late.push(p99);
    }
    let ([second, ..], [cpu, least, most]) = (spread(&per_second), spread(&per_cpu));
    println!(
        "  {CONNECTIONS} connections: {second:.0} a second, {cpu:.0} ({least:.0}-{most:.0}) a second of processor time"
    );
    let ([p50, ..], [p99, least, most]) = (spread(&middle), spread(&late));
    println!("  {STEADY_PER_SECOND} a second: p50 {p50:.2} ms, p99 {p99:.2} ({least:.2}-{most:.2}) ms");
}

async fn connect(grpc: SocketAddr) -> InferenceCacheClient<Channel> {
    InferenceCacheClient::connect(format!("http://{grpc}")).await.unwrap()
}

fn holds(replica: usize, prompt: usize) -> bool {
    // Neighbours share prompts, each with another set.
    (replica + REPLICAS - prompt % REPLICAS) % REPLICAS < HOLDERS
}

fn hash(prompt: usize, block: usize) -> bytes::Bytes {
    // A fingerprint is as good as random.
    let number = ((prompt * BLOCKS + block + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number.to_be_bytes().to_vec().into()
}

fn update(replica: usize, prompt: usize) -> CacheStateUpdate {
    let entry = |block| PrefixEntry {
        prefix_hash: hash(prompt, block),
        token_count: ((block + 1) * BLOCK_SIZE) as i32,
        ..PrefixEntry::default()
    };
    CacheStateUpdate {
        replica_id: format!("replica-{replica}"),
        model_id: "model".to_owned(),
        tenant_id: TENANT.to_owned(),
        hash_scheme: SCHEME.to_owned(),
        prefixes: (0..BLOCKS).map(entry).collect(),
        ..CacheStateUpdate::default()
    }
}

fn lookup(prompt: usize) -> LookupRouteRequest {
    LookupRouteRequest {
        model_id: "model".to_owned(),
        tenant_id: TENANT.to_owned(),
        hash_scheme: SCHEME.to_owned(),
        block_hashes: (0..BLOCKS).map(|block| hash(prompt, block)).collect(),
        block_token_counts: vec![BLOCK_SIZE as i32; BLOCKS],
        ..LookupRouteRequest::default()
    }
}

/// Asks once, and checks the answer.
async fn ask(client: &mut InferenceCacheClient<Channel>, request: &LookupRouteRequest) {
    let answer = client.lookup_route(request.clone()).await.unwrap().into_inner();
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores.len()), ("PREFIX_MATCH", HOLDERS));
    assert_eq!(answer.replica_scores[0].matched_tokens as usize, BLOCKS * BLOCK_SIZE);
}

/// One lookup after the other on each connection: answers per second of the server's processor time, and per
/// second.
async fn as_fast_as_possible(
    server: &Server,
    grpc: SocketAddr,
    asked: &Arc<[LookupRouteRequest]>,
    length: Duration,
) -> (f64, f64) {
    let answered = Arc::new(AtomicU64::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (asked, answered) = (asked.clone(), answered.clone());
        callers.spawn(async move {
            let mut client = connect(grpc).await;
            for request in asked.iter().cycle() {
                ask(&mut client, request).await;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (count, cpu, start) = (answered.load(Ordering::Relaxed), server.cpu(), Instant::now());
    tokio::time::sleep(length).await;
    let (cpu, elapsed) = (server.cpu() - cpu, start.elapsed().as_secs_f64());
    let count = (answered.load(Ordering::Relaxed) - count) as f64;
    // One that ended has met a wrong answer.
    assert!(callers.try_join_next().is_none(), "a caller gave up");
    (count / cpu, count / elapsed)
}

/// At a steady rate, whether answers come or not: milliseconds from when a lookup was due until its answer,
/// median and p99.
async fn steadily(grpc: SocketAddr, asked: &Arc<[LookupRouteRequest]>, length: Duration) -> [f64; 2] {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(connect(grpc).await);
    }
    let total = (f64::from(STEADY_PER_SECOND) * length.as_secs_f64()) as u32;
    // A thread keeps time: the runtime's timers are no finer than a millisecond.
    let (due, mut called) = tokio::sync::mpsc::channel(total as usize);
    let start = Instant::now() + Duration::from_millis(100);
    let timer = std::thread::spawn(move || {
        for at in 0..total {
            let moment = start + Duration::from_secs(1) / STEADY_PER_SECOND * at;
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            due.blocking_send((at as usize, moment)).unwrap();
        }
    });
    let mut calls = tokio::task::JoinSet::new();
    while let Some((at, due)) = called.recv().await {
        let (mut client, asked) = (clients[at % CONNECTIONS].clone(), asked.clone());
        calls.spawn(async move {
            ask(&mut client, &asked[at % PROMPTS]).await;
            due.elapsed().as_secs_f64() * 1e3
        });
    }
    timer.join().unwrap();
    let mut times = calls.join_all().await;
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}
