//! What a question or a pick costs when it is served: prompts of 512 blocks over HTTP and gRPC, also beside
//! Dynamo's indexer; and hints, from a million entries that replicas reported.
//!
//! ```text
//! cargo run --release -p kvplane-server --example query_bench KVPLANE_BINARY [SECONDS [ROUNDS [PYTHON]]]
//! ```
//!
//! Servers are processes of their own; callers and simulated engines are in this one. Eight connections ask
//! one question after the other. What counts is the processor time that the kernel adds up for the server's
//! process: unlike the clock, it hardly depends on what else the machine does. Servers take turns, round by
//! round.
//!
//! With a Python that has `ai-dynamo` installed, `dynamo.indexer` gets the same engines' events, must give the
//! same answers as kvplane's route of the same name, and is measured with the same bodies.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark"
)]

mod callers;
mod engines;
mod hints;
mod servers;

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use callers::{CONNECTIONS, HttpCaller, Questions};
use engines::{BLOCK_SIZE, BLOCKS, ENGINES, Engines, MODEL, blocks_held, prompts};
use servers::Server;

/// How long servers may take to know what the engines hold.
const PATIENCE: Duration = Duration::from_mins(2);

/// One line of the table.
struct Line<'a> {
    name: &'static str,
    server: &'a Server,
    questions: Questions,
    /// Answers per second of processor time, by round.
    per_cpu: Vec<f64>,
    /// Answers per second, by round.
    per_second: Vec<f64>,
}

impl<'a> Line<'a> {
    fn new(name: &'static str, server: &'a Server, questions: Questions) -> Self {
        Self { name, server, questions, per_cpu: Vec::new(), per_second: Vec::new() }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut words = std::env::args().skip(1);
    let binary = words.next().expect("the path of a kvplane binary");
    let mut number = |otherwise| words.next().map_or(otherwise, |word| word.parse().expect("a number"));
    let (length, rounds) = (Duration::from_secs(number(3)), number(5));
    let python = words.next();

    let engines = Engines::start();
    let (kvplane, grpc) = Server::kvplane(&binary, &[]);
    kvplane.register(&engines).await;
    let dynamo = python.map(|python| Server::dynamo(&python));
    if let Some(dynamo) = &dynamo {
        dynamo.register(&engines).await;
    }
    let (known, unknown) = (prompts(0), prompts(1));
    until_known(&engines, [Some(&kvplane), dynamo.as_ref()].into_iter().flatten(), &known).await;
    if let Some(dynamo) = &dynamo {
        check_same_answers(&kvplane, dynamo, &known).await;
        check_same_answers(&kvplane, dynamo, &unknown).await;
    }

    println!(
        "{BLOCKS} blocks of {BLOCK_SIZE} tokens ({} bytes of JSON), {CONNECTIONS} connections, {ENGINES} engines, \
         {rounds} rounds of {} s in turn",
        peer_body(&known[0]).len(),
        length.as_secs()
    );
    for (title, prompts, deepest) in [("held by engines", known, BLOCKS), ("held by nobody", unknown, 0)] {
        let ours: Vec<Bytes> = prompts.iter().map(|prompt| own_body(prompt)).collect();
        let peers: Vec<Bytes> = prompts.iter().map(|prompt| peer_body(prompt)).collect();
        let mut lines = Vec::new();
        if let Some(dynamo) = &dynamo {
            let questions = Questions::http(dynamo.http, "/query", &peers).await;
            lines.push(Line::new("dynamo.indexer POST /query", dynamo, questions));
        }
        let questions = Questions::http(kvplane.http, "/v1/query", &ours).await;
        lines.push(Line::new("kvplane POST /v1/query", &kvplane, questions));
        let questions = Questions::http(kvplane.http, "/query", &peers).await;
        lines.push(Line::new("kvplane POST /query", &kvplane, questions));
        let questions = Questions::changing(kvplane.http, "/v1/pick", &ours);
        lines.push(Line::new("kvplane POST /v1/pick", &kvplane, questions));
        lines.push(Line::new("kvplane gRPC Query", &kvplane, Questions::grpc(grpc, prompts, deepest as u32)));
        for _ in 0..rounds {
            for line in &mut lines {
                let (per_cpu, per_second) = line.questions.measure(line.server, length).await;
                line.per_cpu.push(per_cpu);
                line.per_second.push(per_second);
            }
        }
        print_table(title, &lines);
    }
    engines.stop();
    hints::run(&binary, length, rounds).await;
}

fn own_body(prompt: &[u32]) -> Bytes {
    json!({ "model": MODEL, "token_ids": prompt }).to_string().into()
}

fn peer_body(prompt: &[u32]) -> Bytes {
    json!({ "model_name": MODEL, "token_ids": prompt }).to_string().into()
}

/// Waits until every server says of every prompt what the engines hold of it.
async fn until_known<'s>(engines: &Engines, servers: impl Iterator<Item = &'s Server>, prompts: &[Vec<u32>]) {
    let tokens = |engine| blocks_held(engine) * BLOCK_SIZE;
    let held = |engine: usize| (engine.to_string(), json!({ "0": tokens(engine) }));
    let expected: Value = (0..ENGINES).map(held).collect();
    let deadline = Instant::now() + PATIENCE;
    for server in servers {
        let mut caller = HttpCaller::connect_patiently(server.http).await;
        let mut round = 0;
        for prompt in prompts {
            loop {
                let (_, answer) = caller.post("/query", peer_body(prompt)).await;
                if serde_json::from_str::<Value>(&answer).is_ok_and(|answer| answer["scores"] == expected) {
                    break;
                }
                assert!(Instant::now() < deadline, "a server never knew what the engines hold: {answer}");
                engines.publish_something(round);
                round += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Nothing differs but the order of keys.
async fn check_same_answers(kvplane: &Server, dynamo: &Server, prompts: &[Vec<u32>]) {
    let mut ours = HttpCaller::connect_patiently(kvplane.http).await;
    let mut theirs = HttpCaller::connect_patiently(dynamo.http).await;
    for prompt in prompts {
        let [our, their] =
            [ours.post("/query", peer_body(prompt)).await, theirs.post("/query", peer_body(prompt)).await]
                .map(|(_, answer)| serde_json::from_str::<Value>(&answer).expect("answers are JSON"));
        assert_eq!(our, their, "kvplane and Dynamo's indexer say different things");
    }
}

/// Medians, and the least and the most of all rounds. Ratios are to the first line, round by round.
fn print_table(title: &str, lines: &[Line<'_>]) {
    println!("\n{title}:");
    println!("{:>28} {:>12} {:>24} {:>22}", "", "requests/s", "requests/cpu second", "to the first line");
    for line in lines {
        let ratios = line.per_cpu.iter().zip(&lines[0].per_cpu).map(|(this, first)| this / first);
        let ([second, ..], [cpu, cpu_least, cpu_most]) = (spread(&line.per_second), spread(&line.per_cpu));
        let [ratio, least, most] = spread(&ratios.collect::<Vec<f64>>());
        println!(
            "{:>28} {second:>12.0} {:>24} {:>22}",
            line.name,
            format!("{cpu:.0} ({cpu_least:.0}-{cpu_most:.0})"),
            format!("{ratio:.2} ({least:.2}-{most:.2})"),
        );
    }
}

/// Median, least and most.
pub(crate) fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1]]
}
