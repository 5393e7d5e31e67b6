//! Callers who guess, and callers who call while keys are replaced.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::access::rig::{Files, Served, connect, get, request};

const GUESSES: usize = 3000;
/// At most one line in this time.
const LOG_EVERY_SECONDS: u64 = 10;
const ROTATIONS: usize = 10;

#[test]
fn a_flood_of_guesses_is_counted_and_reported_once() {
    let files = Files::new("guesses");
    let served = Served::start(&files.plain_config());
    let began = Instant::now();
    let mut stream = connect(&served.http_port);
    let mut asking = stream.try_clone().unwrap();
    // All at once, over one connection: answers are read meanwhile.
    let guessing = thread::spawn(move || {
        for guess in 1..=GUESSES {
            let connection = if guess == GUESSES { "close" } else { "keep-alive" };
            asking
                .write_all(request("/v1/status", &format!("hush-guess-{guess}"), connection).as_bytes())
                .unwrap();
        }
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    guessing.join().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 401").count(), GUESSES);
    assert!(!answers.contains("hush"));

    let page = get(&served.http_port, "/metrics", "hush-read-1");
    let counted =
        format!("kvplane_auth_refused_total{{listener=\"http\",why=\"unknown_token\"}} {GUESSES}\n");
    assert!(page.contains(&counted), "{page}");
    let log = served.process.stop();
    let lines = log.matches("caller refused").count() as u64;
    assert!((1..=2 + began.elapsed().as_secs() / LOG_EVERY_SECONDS).contains(&lines), "{lines} lines");
    assert!(!log.contains("hush"), "{log}");
}

/// Asks over one connection until `stop`, and returns how often it was let in. Whatever happens to keys,
/// there is an answer, and it is one of two.
fn ask_until(stop: &AtomicBool, mut stream: TcpStream, token: &str) -> usize {
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut let_in = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(request("/v1/engines", token, "keep-alive").as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        answers.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200") || line.starts_with("HTTP/1.1 401"), "{line:?}");
        let_in += usize::from(line.contains("200"));
        while line != "\r\n" {
            line.clear();
            answers.read_line(&mut line).unwrap();
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        answers.read_exact(&mut vec![0; length]).unwrap();
    }
    let_in
}

#[test]
fn callers_are_answered_while_tokens_are_replaced() {
    let files = Files::new("rotation");
    let mut served = Served::start(&files.plain_config());
    let stop = AtomicBool::new(false);
    let let_in = thread::scope(|scope| {
        let callers = ["hush-read-1", "hush-read-2", "hush-admin", "hush-guess"].map(|token| {
            let (stop, stream) = (&stop, connect(&served.http_port));
            scope.spawn(move || ask_until(stop, stream, token))
        });
        for rotation in 0..ROTATIONS {
            // Atomically, as tools that rotate secrets do it.
            let new = files.write("new.token", ["hush-read-2", "hush-read-1"][rotation % 2]);
            std::fs::rename(new, files.at("read.token")).unwrap();
            served.process.hang_up();
            served.process.logged("configuration reloaded");
        }
        stop.store(true, Ordering::Relaxed);
        callers.map(|caller| caller.join().unwrap())
    });
    assert!(let_in[2] > 0, "{let_in:?}");
    assert_eq!(let_in[3], 0);
    let status = |token: &str| {
        let answer = get(&served.http_port, "/v1/engines", token);
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(["hush-read-1", "hush-read-2"].map(status), ["200", "401"]);
}
