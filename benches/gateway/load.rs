//! Engines that answer at a given pace, and clients that measure what is between: for `scripts/bench_gateway.py`.
//!
//! ```text
//! load engine                                  serves on a free port, and prints it
//! load streams ADDRESS COUNT EVENTS PAUSE_US   COUNT streams at once: how late each event comes
//! load requests ADDRESS COUNT CLIENTS BYTES    COUNT requests with a body of about BYTES, one after the other
//! load hold ADDRESS COUNT                      opens COUNT streams, says so, and holds them until its input ends
//! ```
//!
//! A thread for each connection and nothing but the standard library: it is built by `rustc` alone, and the
//! same for all that are measured. Every event says when it was sent, by the machine's clock.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STACK: usize = 96 << 10;
const USAGE: &str = r#""usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":0}}"#;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["engine"] => engine(),
        ["streams", address, count, events, pause] => {
            streams(address, count.parse()?, events.parse()?, pause.parse()?)
        }
        ["requests", address, count, clients, bytes] => {
            requests(address, count.parse()?, clients.parse()?, bytes.parse()?)
        }
        ["hold", address, count] => hold(address, count.parse()?),
        _ => Err("engine | streams ADDRESS COUNT EVENTS PAUSE_US | requests ADDRESS COUNT CLIENTS BYTES | hold ADDRESS COUNT".into()),
    }
}

fn nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos())
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    thread::Builder::new().stack_size(STACK).spawn(work)
}

// === the engine ===

fn engine() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    for socket in listener.incoming() {
        let socket = socket?;
        drop(spawn(move || drop(serve(socket)))?);
    }
    Ok(())
}

struct Head {
    first: String,
    length: usize,
    chunked: bool,
}

fn head(reader: &mut impl BufRead) -> Result<Option<Head>, Failed> {
    let mut head = Head { first: String::new(), length: 0, chunked: false };
    if reader.read_line(&mut head.first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some(head));
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            head.length = value.trim().parse()?;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = true;
        }
    }
}

fn body(reader: &mut impl BufRead, head: &Head) -> Result<Vec<u8>, Failed> {
    let mut body = vec![0; head.length];
    reader.read_exact(&mut body)?;
    while head.chunked {
        let mut size = String::new();
        reader.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16)?;
        let from = body.len();
        body.resize(from + size, 0);
        reader.read_exact(&mut body[from..])?;
        let mut end = String::new();
        reader.read_line(&mut end)?;
        if size == 0 {
            break;
        }
    }
    Ok(body)
}

/// What the body asks for: `"user":"EVENTS:PAUSE_US"`.
fn asked(body: &[u8]) -> (usize, u64) {
    let text = String::from_utf8_lossy(&body[..body.len().min(2048)]);
    // A role is called so, too.
    let words = text.split_once("\"user\":\"").and_then(|(_, rest)| rest.split('"').next()?.split_once(':'));
    let found = words.map(|(events, pause)| (events.parse().unwrap_or(0), pause.parse().unwrap_or(0)));
    found.unwrap_or((0, 0))
}

fn serve(mut socket: TcpStream) -> Result<(), Failed> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(8 << 10, socket.try_clone()?);
    while let Some(head) = head(&mut reader)? {
        let body = body(&mut reader, &head)?;
        if head.first.starts_with("GET") {
            let page = if head.first.contains("/v1/models") {
                r#"{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"bench","max_model_len":100000}]}"#
            } else {
                r#"{"model_path":"m","served_model_name":"m","is_generation":true,"status":"ok"}"#
            };
            whole(&mut socket, page)?;
            continue;
        }
        let (events, pause) = asked(&body);
        if events == 0 {
            whole(
                &mut socket,
                &format!(r#"{{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"ok"}},"finish_reason":"stop"}}],{USAGE}}}"#),
            )?;
            continue;
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")?;
        for _ in 0..events {
            let event = format!(
                "data: {{\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"t{:020}\"}},\"finish_reason\":null}}]}}\n\n",
                nanos()
            );
            socket.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
            thread::sleep(Duration::from_micros(pause));
        }
        let done = "data: [DONE]\n\n";
        socket.write_all(format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len()).as_bytes())?;
    }
    Ok(())
}

fn whole(socket: &mut TcpStream, page: &str) -> Result<(), Failed> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", page.len());
    socket.write_all((head + page).as_bytes())?;
    Ok(())
}

// === the clients ===

fn connect(address: &str) -> Result<(TcpStream, BufReader<TcpStream>), Failed> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    // Nothing that is measured takes so long.
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let reader = BufReader::with_capacity(8 << 10, socket.try_clone()?);
    Ok((socket, reader))
}

fn post(socket: &mut TcpStream, body: &str) -> Result<(), Failed> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + body).as_bytes())?;
    Ok(())
}

fn chat(number: usize, events: usize, pause: u64, bytes: usize) -> String {
    let text = format!("request {number}: {}", "word ".repeat(bytes / 5));
    let stream = events > 0;
    format!(
        r#"{{"model":"m","user":"{events}:{pause}","stream":{stream},"max_tokens":{},"messages":[{{"role":"user","content":"{text}"}}]}}"#,
        events.max(1)
    )
}

/// Reads a streamed answer, and hands over when each event was sent.
fn events(reader: &mut impl BufRead, mut each: impl FnMut(u128)) -> Result<usize, Failed> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(line.trim().to_owned().into());
    }
    let mut count = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err("the answer has no end".into());
        }
        if line.contains("[DONE]") {
            return Ok(count);
        }
        if let Some((_, rest)) = line.split_once("\"content\":\"t") {
            each(rest.get(..20).unwrap_or_default().parse()?);
            count += 1;
        }
    }
}

fn streams(address: &str, count: usize, wanted: usize, pause: u64) -> Result<(), Failed> {
    let errors = Arc::new(AtomicUsize::new(0));
    let clients: Result<Vec<_>, _> = (0..count)
        .map(|number| {
            let (address, errors) = (address.to_owned(), errors.clone());
            // They begin within one pause, so that events are spread evenly.
            thread::sleep(Duration::from_micros(pause / count.max(1) as u64));
            spawn(move || {
                let mut late = Vec::with_capacity(wanted);
                let mut run = || -> Result<usize, Failed> {
                    let (mut socket, mut reader) = connect(&address)?;
                    post(&mut socket, &chat(number, wanted, pause, 200))?;
                    events(&mut reader, |sent| late.push(nanos().saturating_sub(sent) as u64))
                };
                if !run().is_ok_and(|seen| seen == wanted) {
                    errors.fetch_add(1, Ordering::Relaxed);
                }
                late
            })
        })
        .collect();
    let mut late: Vec<u64> = clients?.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect();
    late.sort_unstable();
    let at = |share: f64| late.get(((late.len() as f64 - 1.0) * share) as usize).map_or(0.0, |late| *late as f64 / 1e3);
    println!(
        r#"{{"events":{},"p50_us":{:.1},"p90_us":{:.1},"p99_us":{:.1},"errors":{}}}"#,
        late.len(), at(0.5), at(0.9), at(0.99), errors.load(Ordering::Relaxed)
    );
    Ok(())
}

fn requests(address: &str, count: usize, clients: usize, bytes: usize) -> Result<(), Failed> {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let errors = Arc::new(AtomicUsize::new(0));
    let all: Result<Vec<_>, _> = (0..clients)
        .map(|_| {
            let (address, next, errors) = (address.to_owned(), next.clone(), errors.clone());
            spawn(move || {
                let mut line = connect(&address);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let mut one = || -> Result<(), Failed> {
                        let (socket, reader) = line.as_mut().map_err(|error| error.to_string())?;
                        post(socket, &chat(number, 0, 0, bytes))?;
                        let head = head(reader)?.ok_or("closed")?;
                        body(reader, &head)?;
                        if head.first.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(head.first.into()) }
                    };
                    if one().is_err() {
                        errors.fetch_add(1, Ordering::Relaxed);
                        line = connect(&address);
                    }
                }
            })
        })
        .collect();
    for client in all? {
        let _ = client.join();
    }
    println!(
        r#"{{"requests":{count},"seconds":{:.3},"errors":{}}}"#,
        begun.elapsed().as_secs_f64(),
        errors.load(Ordering::Relaxed)
    );
    Ok(())
}

fn hold(address: &str, count: usize) -> Result<(), Failed> {
    let mut open = Vec::with_capacity(count);
    for number in 0..count {
        let (mut socket, mut reader) = connect(address)?;
        // One event now, and the next in an hour.
        post(&mut socket, &chat(number, 2, 3_600_000_000, 200))?;
        let mut line = String::new();
        while !line.contains("\"content\":\"t") {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(format!("stream {number} was not opened").into());
            }
        }
        drop(reader);
        open.push(socket);
    }
    println!("{count}");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    Ok(())
}
