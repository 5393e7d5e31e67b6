//! Random faults against a running plane for as long as wanted, and every answer compared with the engines'
//! own word.
//!
//! `soak KVPLANE_BINARY [--seconds N] [--faults N] [--engines N] [--seed N] [--bound-ms N] [--trace 1]
//! [--drained 1]`: `make soak`
//!
//! Runs `kvplane serve` as a process of its own. Engines are simulated in this one, each behind a proxy that
//! can fall silent, and each driven by a thread that injects a fault, serves requests, asks what the plane
//! says of its engine, and checks that. An answer that is credited is wrong
//!
//! - under `exact`, if the engine was in no such state within the last `max_silence` and some slack;
//! - under `lower`, if it claims more than the engine held in any of these states.
//!
//! Ends with 1 if an answer was wrong, a stream did not come back, the plane died or panicked, or its memory
//! grew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test program")]
#![allow(
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test program: it measures, and nothing links to it"
)]

mod engine;
mod fault;
mod plane;
mod proxy;
mod truth;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use engine::Engine;
use plane::Plane;
use worker::{Tally, Worker};

/// Faults after which memory is measured for the first time.
const SETTLED: u64 = 10_000;
/// What the plane's memory may grow by from then on.
const GROWTH: f64 = 1.05;
/// Memory means something only where there were many faults in between.
const FAULTS_FOR_GROWTH: u64 = 1_000_000;

/// What was asked for.
struct Options {
    binary: String,
    seconds: u64,
    faults: u64,
    engines: usize,
    seed: u64,
    /// How old a credited answer may be; `max_silence` and some slack when absent.
    bound: Option<Duration>,
    /// The plane's log is kept, and printed with what was wrong.
    trace: bool,
    /// All engines are drained.
    drained: bool,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut words = std::env::args().skip(1);
        let binary = words.next().ok_or(
            "usage: soak KVPLANE_BINARY [--seconds N] [--faults N] [--engines N] [--seed N] [--bound-ms N] [--trace 1] [--drained 1]",
        )?;
        let mut options = Self {
            binary,
            seconds: 60,
            faults: u64::MAX,
            engines: 64,
            seed: 1,
            bound: None,
            trace: false,
            drained: false,
        };
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name}: a number is missing"))?;
            let value: u64 = value.parse().map_err(|_| format!("{name} {value}: not a number"))?;
            match name.as_str() {
                "--seconds" => options.seconds = value,
                "--faults" => options.faults = value,
                "--engines" => options.engines = value.clamp(1, 1000) as usize,
                "--trace" => options.trace = value > 0,
                "--drained" => options.drained = value > 0,
                "--seed" => options.seed = value,
                "--bound-ms" => options.bound = Some(Duration::from_millis(value)),
                _ => return Err(format!("{name}: unknown option")),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            println!("soak: {error}");
            return ExitCode::from(2);
        }
    };
    let proxies = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engines: Vec<Engine> = (0..options.engines)
        .map(|at| {
            Engine::start(if options.drained { at * 6 + 5 } else { at }, options.seed, proxies.handle())
        })
        .collect();
    let flags: Vec<String> = engines.iter().map(Engine::flag).collect();
    let plane = Arc::new(Plane::start(&options.binary, &flags, options.bound, options.trace));
    println!("{} engines, seed {}, answers within {:?}", options.engines, options.seed, plane.bound);
    let tally = Arc::new(Tally::default());
    let begun = Instant::now();
    let workers: Vec<_> = engines
        .into_iter()
        .map(|engine| {
            let mut worker = Worker::new(engine, plane.clone(), tally.clone());
            thread::spawn(move || worker.run())
        })
        .collect();
    let memory = watch(&options, &plane, &tally, begun);
    tally.ended.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    let died = plane.died();
    summary(&options, &plane, &tally, &memory, begun.elapsed(), died.as_deref())
}

/// The plane's memory after a number of faults.
struct Sample {
    after: Duration,
    faults: u64,
    answers: u64,
    kib: u64,
}

/// Watches until it has been enough, and says how it goes on.
fn watch(options: &Options, plane: &Plane, tally: &Tally, begun: Instant) -> Vec<Sample> {
    let sample = || Sample {
        after: begun.elapsed(),
        faults: tally.faults(),
        answers: tally.answers.load(Ordering::Relaxed),
        kib: plane.rss_kib(),
    };
    println!(
        "{:>8} {:>10} {:>10} {:>7} {:>7} {:>9}",
        "seconds", "faults", "answers", "wrong", "stuck", "RSS MiB"
    );
    let mut samples = vec![sample()];
    let mut next_at = SETTLED;
    let mut line_due = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(options.seconds)
        && tally.faults() < options.faults
        && plane.died().is_none()
    {
        thread::sleep(Duration::from_millis(100));
        let faults = tally.faults();
        if faults >= next_at || begun.elapsed() >= line_due {
            let now = sample();
            println!(
                "{:>8.0} {:>10} {:>10} {:>7} {:>7} {:>9.1}",
                now.after.as_secs_f64(),
                now.faults,
                now.answers,
                tally.wrong.load(Ordering::Relaxed),
                tally.stuck.load(Ordering::Relaxed),
                now.kib as f64 / 1024.0
            );
            line_due = begun.elapsed() + Duration::from_secs(15);
            samples.push(now);
        }
        if faults >= next_at {
            next_at = if next_at < 100_000 { next_at * 10 } else { next_at + 100_000 };
        }
    }
    samples.push(sample());
    samples
}

fn summary(
    options: &Options,
    plane: &Plane,
    tally: &Tally,
    memory: &[Sample],
    took: Duration,
    died: Option<&str>,
) -> ExitCode {
    let (wrong, stuck) = (tally.wrong.load(Ordering::Relaxed), tally.stuck.load(Ordering::Relaxed));
    println!("\nfaults injected, by kind:");
    for (kind, count) in tally.by_kind() {
        println!("{count:>10}  {kind}");
    }
    println!("\nfaults injected    {}", tally.faults());
    println!("answers checked    {}", tally.answers.load(Ordering::Relaxed));
    println!("  of them exact    {}", tally.exact.load(Ordering::Relaxed));
    println!("  of them lower    {}", tally.lower.load(Ordering::Relaxed));
    println!("not credited       {}", tally.uncredited.load(Ordering::Relaxed));
    println!("wrong answers      {wrong}");
    println!("streams stuck      {stuck}");
    println!("seconds            {:.0}", took.as_secs_f64());
    let first = memory.first().map_or(0, |sample| sample.kib);
    let settled = memory.iter().find(|sample| sample.faults >= SETTLED).map(|sample| sample.kib);
    let last = memory.last().map_or(0, |sample| sample.kib);
    let mib = |kib: u64| kib as f64 / 1024.0;
    let growth = settled.map(|settled| last as f64 / settled.max(1) as f64);
    println!("RSS at the start   {:.1} MiB", mib(first));
    if let (Some(settled), Some(growth)) = (settled, growth) {
        println!("RSS after {SETTLED}    {:.1} MiB", mib(settled));
        println!("RSS at the end     {:.1} MiB ({:+.1} %)", mib(last), (growth - 1.0) * 100.0);
    }
    let grew = tally.faults() >= FAULTS_FOR_GROWTH && growth.is_some_and(|growth| growth > GROWTH);
    let reported = tally.wrongs.lock().len();
    if reported > 0 {
        println!("{reported} of them are told above");
    }
    if grew {
        println!("FAILED: memory grew by more than {:.0} %", (GROWTH - 1.0) * 100.0);
    }
    if let Some(died) = died {
        println!("FAILED: {died}");
    }
    if wrong > 0 || stuck > 0 {
        println!("FAILED: run again with --seed {} --engines {}", options.seed, options.engines);
    }
    plane.stop();
    ExitCode::from(u8::from(wrong > 0 || stuck > 0 || grew || died.is_some()))
}
