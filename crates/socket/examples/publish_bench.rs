//! What publishing costs, beside libzmq: both publish to subscribers that read and discard, in the same
//! process, in turns.
//!
//! ```text
//! cargo run --release -p kvplane-socket --example publish_bench [SUBSCRIBERS] [PAYLOAD] [MESSAGES] [ROUNDS]
//! ```
//!
//! Prints messages per second, CPU time per message of all threads but the readers', and how long a single
//! message takes until every subscriber has it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a measurement fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};

/// Messages and bytes that may be under way: far below what either drops at.
const WINDOW: u64 = 20_000;
const WINDOW_BYTES: u64 = 32 << 20;

/// Messages before anything is timed.
const WARM: u64 = 1000;

/// Single messages that are timed.
const SINGLES: u64 = 2000;

trait Publisher {
    fn address(&self) -> String;
    fn wait_for(&mut self, subscriptions: u64);
    fn send(&mut self, sequence: u64, payload: &[u8]);
}

impl Publisher for PubSocket {
    fn address(&self) -> String {
        self.last_endpoint().to_owned()
    }

    fn wait_for(&mut self, subscriptions: u64) {
        assert!(self.wait_for_subscriptions(subscriptions, Duration::from_secs(30)));
    }

    fn send(&mut self, sequence: u64, payload: &[u8]) {
        PubSocket::send(self, b"kv", sequence, payload).unwrap();
    }
}

/// libzmq's XPUB, as kvplane used it.
struct Libzmq(zmq::Socket);

impl Publisher for Libzmq {
    fn address(&self) -> String {
        self.0.get_last_endpoint().unwrap().unwrap()
    }

    fn wait_for(&mut self, subscriptions: u64) {
        for _ in 0..subscriptions {
            self.0.recv_msg(0).unwrap();
        }
    }

    fn send(&mut self, sequence: u64, payload: &[u8]) {
        // As it was: a look for subscriptions, then the frames one by one.
        assert!(self.0.recv_msg(zmq::DONTWAIT).is_err());
        self.0.send(&b"kv"[..], zmq::DONTWAIT | zmq::SNDMORE).unwrap();
        self.0.send(&sequence.to_be_bytes()[..], zmq::DONTWAIT | zmq::SNDMORE).unwrap();
        self.0.send(payload, zmq::DONTWAIT).unwrap();
    }
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    per_second: f64,
    cpu_micros: f64,
    single_micros: f64,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let subscribers = arguments.next().unwrap_or(8);
    let payload = vec![7_u8; arguments.next().unwrap_or(1024) as usize];
    let messages = arguments.next().unwrap_or(200_000);
    let rounds = arguments.next().unwrap_or(5);
    println!("{subscribers} subscribers, {} bytes, {messages} messages", payload.len());
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..2 * rounds {
        let figures = if round % 2 == 0 {
            let options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
            measure(
                PubSocket::open(&PublishContext::new(), &options).unwrap(),
                subscribers,
                &payload,
                messages,
            )
        } else {
            let context = zmq::Context::new();
            let socket = context.socket(zmq::XPUB).unwrap();
            socket.set_linger(0).unwrap();
            socket.set_sndhwm(100_000).unwrap();
            socket.set_xpub_verbose(true).unwrap();
            socket.bind("tcp://127.0.0.1:*").unwrap();
            measure(Libzmq(socket), subscribers, &payload, messages)
        };
        let name = ["ours", "libzmq"][(round % 2) as usize];
        println!(
            "{name:<8} {:9.0} messages/s   {:7.3} us of CPU per message   {:7.1} us for a single one",
            figures.per_second, figures.cpu_micros, figures.single_micros
        );
        all[(round % 2) as usize].push(figures);
    }
    let median = |of: usize, figure: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = all[of].iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ratio = |figure: fn(&Figures) -> f64| median(0, figure) / median(1, figure);
    println!(
        "ours / libzmq, medians: {:.2} in messages/s, {:.2} in CPU, {:.2} for a single message",
        ratio(|figures| figures.per_second),
        ratio(|figures| figures.cpu_micros),
        ratio(|figures| figures.single_micros)
    );
}

fn measure(mut publisher: impl Publisher, subscribers: u64, payload: &[u8], messages: u64) -> Figures {
    // Two short frames, and one with a short or a long length.
    let size = (4 + 10 + payload.len() + if payload.len() < 256 { 2 } else { 9 }) as u64;
    let window = WINDOW.min(WINDOW_BYTES / size);
    let step = (window / 20).max(1);
    let address = publisher.address();
    let readers: Vec<_> = (0..subscribers).map(|_| Reader::start(&address)).collect();
    publisher.wait_for(subscribers);
    let received = |count: u64| readers.iter().all(|reader| reader.has(count * size));
    let wait_for = |count: u64| {
        while !received(count) {
            thread::yield_now();
        }
    };
    // Without CPU time of our own.
    let sleep_until = |count: u64| {
        while !received(count) {
            thread::sleep(Duration::from_micros(20));
        }
    };
    // Warm.
    for sequence in 0..WARM {
        publisher.send(sequence, payload);
        if sequence % step == 0 {
            wait_for(sequence + 1);
        }
    }
    wait_for(WARM);
    let (cpu_before, start) = (cpu(), Instant::now());
    for sequence in WARM..WARM + messages {
        publisher.send(sequence, payload);
        if sequence % step == 0 && sequence > window {
            sleep_until(sequence - window);
        }
    }
    sleep_until(WARM + messages);
    let elapsed = start.elapsed().as_secs_f64();
    let used = cpu() - cpu_before;
    let start = Instant::now();
    for sequence in 0..SINGLES {
        publisher.send(sequence, payload);
        wait_for(WARM + messages + sequence + 1);
    }
    let single = start.elapsed().as_secs_f64() / SINGLES as f64;
    drop(publisher);
    for reader in readers {
        reader.thread.join().unwrap();
    }
    Figures {
        per_second: messages as f64 / elapsed,
        cpu_micros: used * 1e6 / messages as f64,
        single_micros: single * 1e6,
    }
}

/// A subscriber that reads and discards.
struct Reader {
    read: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(address: &str) -> Self {
        const HANDSHAKE: usize = 64 + 28;
        let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        let mut greeting = [0; 64];
        (greeting[0], greeting[8], greeting[9], greeting[10], greeting[11]) = (0xff, 1, 0x7f, 3, 1);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).unwrap();
        stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").unwrap();
        stream.read_exact(&mut [0; HANDSHAKE]).unwrap();
        stream.write_all(b"\x04\x0a\x09SUBSCRIBE").unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let total = read.clone();
        let run = move || {
            let mut buffer = vec![0; 256 << 10];
            while let Ok(count) = stream.read(&mut buffer)
                && count > 0
            {
                total.fetch_add(count as u64, Ordering::Release);
            }
        };
        Self { read, thread: thread::Builder::new().name("reader".to_owned()).spawn(run).unwrap() }
    }

    fn has(&self, bytes: u64) -> bool {
        self.read.load(Ordering::Acquire) >= bytes
    }
}

/// CPU seconds of all threads but the readers, from the scheduler's own account.
fn cpu() -> f64 {
    let of_thread = |path: std::path::PathBuf| {
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let nanos = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let nanos = nanos.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default();
        if name.trim() == "reader" { 0.0 } else { nanos / 1e9 }
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| of_thread(task.unwrap().path())).sum()
}
