//! What a plane costs by the size of its fleet: one total rate over 50, 500, 2,000 and 5,000 engines.
//!
//! `scale_bench KVPLANE_BINARY [ENGINES ...]`
//!
//! Runs `kvplane serve` as a process of its own. All publishers are in this process, each with a port of its
//! own. Needs about two descriptors an engine here and one in the plane: `ulimit -n`. Processor time is read
//! off `/proc`; compare lines of one run.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

const SIZES: [usize; 4] = [50, 500, 2_000, 5_000];
/// Batches a second, over all engines.
const RATE: u64 = 1_500;
const LOAD: Duration = Duration::from_secs(6);
const IDLE: Duration = Duration::from_secs(5);
/// Until a plane has heard of everything, at most.
const PATIENCE: Duration = Duration::from_mins(2);
const BLOCK: u32 = 16;
/// Blocks of the prompt that is asked for, and the engines that hold it.
const ASKED: u32 = 512;
const HOLDERS: usize = 8;
const QUESTIONS: usize = 200;
/// Batches whose way is measured while a third of the engines flaps.
const WATCHED: u64 = 300;
/// How often each of them goes and comes back.
const FLAP_EVERY: Duration = Duration::from_secs(1);

fn main() {
    let mut words = std::env::args().skip(1);
    let binary = words.next().expect("scale_bench KVPLANE_BINARY [ENGINES ...]");
    let sizes: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    let empty = Fleet::start(&binary, 0);
    let (fds, rss) = (empty.plane.descriptors(), empty.plane.rss());
    drop(empty);
    println!(
        "{RATE} batches of 8 blocks a second over all engines; an empty plane has {fds} descriptors, {} MiB",
        rss >> 20
    );
    println!(
        "| engines | CPU a batch, us | idle CPU, % | absent CPU, % | descriptors an engine | RSS an engine, KiB | question p50, us | with all, us | /metrics, KiB | by stream, KiB | /v1/status, KiB | p50 and p99 until a batch is in answers, ms | with a third flapping | flaps a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for engines in sizes {
        let mut fleet = Fleet::start(&binary, engines);
        fleet.say_hello();
        let per_engine = |total: u64, without: u64| total.saturating_sub(without) as f64 / engines as f64;
        let idle = fleet.plane.share(IDLE);
        let (fds, rss) = (per_engine(fleet.plane.descriptors(), fds), per_engine(fleet.plane.rss(), rss));
        let batch = fleet.load();
        let [listed, all] = [false, true].map(|all| fleet.ask(all));
        let sizes = ["/metrics", "/metrics?detail=stream", "/v1/status"];
        let [metrics, by_stream, status] = sizes.map(|path| fleet.plane.get(path).len() as f64 / 1024.0);
        let [calm, calm_99] = fleet.delays();
        let ([flapping, flapping_99], flaps) = fleet.flap();
        let absent = fleet.lose_all();
        println!(
            "| {engines} | {batch:.1} | {idle:.2} | {absent:.2} | {fds:.2} | {:.1} | {listed:.0} | {all:.0} | {metrics:.0} | {by_stream:.0} | {status:.0} | {calm:.2} / {calm_99:.2} | {flapping:.2} / {flapping_99:.2} | {flaps:.0} |",
            rss / 1024.0
        );
    }
}

/// The plane under test.
struct Plane {
    process: Child,
    http: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Publishers, and the plane that hears them.
struct Fleet {
    publishers: Vec<(PubSocket, u64)>,
    plane: Plane,
    sent: u64,
    config: std::path::PathBuf,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config);
    }
}

impl Fleet {
    fn start(binary: &str, engines: usize) -> Self {
        let context = PublishContext::new();
        let mut config = "[members]\nmax_engines = 10000\n".to_owned();
        let publishers = (0..engines).map(|engine| {
            let options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
            let publisher = PubSocket::open(&context, &options).expect("a port; see ulimit -n");
            let events = publisher.last_endpoint();
            writeln!(
                config,
                "[[engine]]\nid = \"e{engine:05}\"\nkind = \"vllm\"\nmodel = \"m\"\nevents = \"{events}\""
            )
            .unwrap();
            (publisher, 0)
        });
        let publishers: Vec<_> = publishers.collect();
        let path = std::env::temp_dir().join(format!("scale_bench-{}.toml", std::process::id()));
        std::fs::write(&path, config).unwrap();
        let [http, grpc] = [free_address(), free_address()];
        let mut command = Command::new(binary);
        command.args(["serve", "--config", path.to_str().unwrap(), "--log", "error"]);
        command.args(["--http", &http.to_string(), "--grpc", &grpc.to_string()]);
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let mut plane = Plane { process, http, connection: None };
        plane.wait_until(|plane| plane.try_get("/healthz").is_ok(), "listens");
        plane.wait_until(
            |plane| plane.counted("kvplane_stream_disconnects_total{model=\"m\"}").is_some() || engines == 0,
            "has its engines",
        );
        std::thread::sleep(Duration::from_secs(1));
        Self { publishers, plane, sent: 0, config: path }
    }

    /// Every engine publishes a batch; some hold the prompt that is asked for.
    fn say_hello(&mut self) {
        for engine in 0..self.publishers.len() {
            let (publisher, _) = &mut self.publishers[engine];
            assert!(publisher.wait_for_subscriptions(1, PATIENCE), "nobody subscribed");
            let payload =
                if engine < HOLDERS { stored(1, ASKED) } else { stored(engine as u64 * 1_000_000, 1) };
            self.send(engine, &payload);
        }
        self.wait_until_applied();
        std::thread::sleep(Duration::from_secs(2));
    }

    fn send(&mut self, engine: usize, payload: &[u8]) {
        let (publisher, sequence) = &mut self.publishers[engine];
        publisher.send(b"", *sequence, payload).unwrap();
        *sequence += 1;
        self.sent += 1;
    }

    fn wait_until_applied(&mut self) {
        let sent = self.sent;
        self.plane.wait_until(
            |plane| plane.counted("kvplane_stream_batches_total{model=\"m\"}") == Some(sent),
            "has applied every batch",
        );
    }

    /// Microseconds of processor time for a batch.
    fn load(&mut self) -> f64 {
        let (began, cpu, before) = (Instant::now(), self.plane.cpu(), self.sent);
        let total = RATE * LOAD.as_secs();
        for batch in 0..total {
            let due = began + Duration::from_micros(batch * 1_000_000 / RATE);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let engine = batch as usize % self.publishers.len();
            let payload = stored((1 << 40) + batch * 8, 8);
            self.send(engine, &payload);
        }
        std::thread::sleep(Duration::from_millis(200));
        let cpu = self.plane.cpu().saturating_sub(cpu);
        self.wait_until_applied();
        cpu.as_secs_f64() * 1e6 / (self.sent - before) as f64
    }

    /// The middle of many questions, in microseconds.
    fn ask(&mut self, all: bool) -> f64 {
        let ids: Vec<String> = tokens(1, ASKED).iter().map(u32::to_string).collect();
        let body = format!("{{\"model\":\"m\",\"all\":{all},\"token_ids\":[{}]}}", ids.join(","));
        let mut took: Vec<Duration> = Vec::with_capacity(QUESTIONS);
        for _ in 0..QUESTIONS {
            let began = Instant::now();
            let answer = self.plane.call("POST", "/v1/query", &body).unwrap();
            took.push(began.elapsed());
            let holders = HOLDERS.min(self.publishers.len());
            assert!(
                answer.contains(&format!("\"holders\":{holders},")),
                "{}",
                &answer[..answer.len().min(2_000)]
            );
        }
        took.sort();
        took[took.len() / 2].as_secs_f64() * 1e6
    }

    /// Milliseconds from publishing a batch until a question finds it, at engines that are always there: the
    /// middle and the worst of a hundred.
    fn delays(&mut self) -> [f64; 2] {
        let healthy = self.publishers.len() - self.publishers.len() / 3;
        let mut took = Vec::new();
        for batch in 0..WATCHED {
            // Tokens that no other batch has.
            let fresh: Vec<u32> = (0..BLOCK).map(|at| 1_000_000 + self.sent as u32 * BLOCK + at).collect();
            let ids: Vec<String> = fresh.iter().map(u32::to_string).collect();
            let payload = stored_tokens((1 << 50) + self.sent, 1, fresh);
            let body = format!("{{\"model\":\"m\",\"token_ids\":[{}]}}", ids.join(","));
            let began = Instant::now();
            self.send(batch as usize * 37 % healthy, &payload);
            while !self.plane.call("POST", "/v1/query", &body).unwrap().contains("\"holders\":1,") {
                assert!(began.elapsed() < PATIENCE, "a batch was never in an answer");
            }
            took.push(began.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        took.sort();
        [50, 99].map(|percent| took[took.len() * percent / 100].as_secs_f64() * 1e3)
    }

    /// The same while the last third of the engines goes and comes back again and again; and how often that
    /// was, a second.
    fn flap(&mut self) -> ([f64; 2], f64) {
        let flapping = self.publishers.split_off(self.publishers.len() - self.publishers.len() / 3);
        let (stop, flaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (stop, flaps) = (stop.clone(), flaps.clone());
            move || flap_until(flapping, &stop, &flaps)
        });
        std::thread::sleep(FLAP_EVERY * 2);
        let (began, before) = (Instant::now(), flaps.load(Ordering::Relaxed));
        let delays = self.delays();
        let count = flaps.load(Ordering::Relaxed) - before;
        let rate = count as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        (delays, rate)
    }

    /// No engine is there any more: the share of a core that is left, once reconnecting has slowed down.
    fn lose_all(&mut self) -> f64 {
        self.publishers.clear();
        std::thread::sleep(Duration::from_secs(20));
        self.plane.share(IDLE)
    }
}

impl Plane {
    fn wait_until(&mut self, done: impl Fn(&mut Self) -> bool, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "it never {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Processor time of all threads so far.
    fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_one = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split_whitespace().next().and_then(|ran| ran.parse().ok()).unwrap_or(0)
        };
        Duration::from_nanos(tasks.filter_map(Result::ok).map(of_one).sum())
    }

    /// Percent of a core, over some time.
    fn share(&self, length: Duration) -> f64 {
        let (cpu, began) = (self.cpu(), Instant::now());
        std::thread::sleep(length);
        self.cpu().saturating_sub(cpu).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
    }

    fn descriptors(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count() as u64
    }

    fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The value of a series, with all engines together.
    fn counted(&mut self, series: &str) -> Option<u64> {
        let page = self.try_get("/metrics?detail=fleet").ok()?;
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    fn get(&mut self, path: &str) -> String {
        self.try_get(path).unwrap()
    }

    fn try_get(&mut self, path: &str) -> std::io::Result<String> {
        self.call("GET", path, "")
    }

    fn call(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(self.http)?;
            stream.set_nodelay(true)?;
            self.connection = Some(BufReader::new(stream));
        }
        let answer = self.exchange(method, path, body);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        let connection = self.connection.as_mut().unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes())?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            if let Some(given) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = given.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let mut answer = vec![0; length];
        connection.read_exact(&mut answer)?;
        String::from_utf8(answer).map_err(std::io::Error::other)
    }
}

/// Each publisher goes and comes back at its address, once in every round, until stopped.
fn flap_until(publishers: Vec<(PubSocket, u64)>, stop: &AtomicBool, flaps: &AtomicU64) {
    let context = PublishContext::new();
    let mut publishers: Vec<_> = publishers
        .into_iter()
        .map(|(publisher, _)| (publisher.last_endpoint().to_owned(), Some(publisher)))
        .collect();
    while !stop.load(Ordering::Relaxed) && !publishers.is_empty() {
        let (began, count) = (Instant::now(), publishers.len() as u32);
        for (at, (address, publisher)) in (0..).zip(&mut publishers) {
            std::thread::sleep((began + FLAP_EVERY * at / count).saturating_duration_since(Instant::now()));
            *publisher = None;
            // A port that is not free yet is tried again in the next round.
            *publisher = PubSocket::open(&context, &PubOptions::new(Endpoint::Bind(address.clone()))).ok();
            flaps.fetch_add(u64::from(publisher.is_some()), Ordering::Relaxed);
        }
        std::thread::sleep((began + FLAP_EVERY).saturating_duration_since(Instant::now()));
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Tokens of this many blocks, which differ by the first one's number.
fn tokens(first: u64, blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK).map(|at| ((first * 7_919 + u64::from(at) * 31) % 128_000) as u32).collect()
}

/// A batch that stores blocks in a row.
fn stored(first: u64, blocks: u32) -> Vec<u8> {
    stored_tokens(first, blocks, tokens(first, blocks))
}

fn stored_tokens(first: u64, blocks: u32, token_ids: Vec<u32>) -> Vec<u8> {
    let hash = |at: u64| OwnedHash::Unsigned((first + at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let store = OwnedEvent::Stored(OwnedStored {
        block_hashes: (0..u64::from(blocks)).map(hash).collect(),
        token_ids,
        block_size: BLOCK,
        medium: Some("GPU".into()),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    });
    encode_batch(Profile::Vllm0_32, 0.0, Some(0), &[store])
}
