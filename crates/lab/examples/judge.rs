//! Every policy over populations and traces, and what the targets of `work` come to.
//!
//! ```text
//! cargo run --release -p kvplane-lab --example judge -- [--seeds 7,8,9] [--scale 1] [--tune KEY=VALUE]... [TRACE SPEED]...
//! ```
//!
//! Means over the seeds. `to affinity` is the mean time to the first token of `work` by that of session affinity, the better of its two forms;
//! `to the best` by that of the best other policy; `end to end` is the same of the mean time to the last token.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, reason = "a tool")]

use kvplane_lab::{Contender, Fleet, Population, Summary, Workload, read_mooncake, run};
use kvplane_route::Options;

fn main() {
    let mut words = std::env::args().skip(1);
    let (mut seeds, mut scale, mut options, mut traces) =
        (vec![7u64, 8, 9], 1.0, Options::default(), Vec::new());
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value");
        match word.as_str() {
            "--seeds" => seeds = value().split(',').map(|seed| seed.parse().expect("a number")).collect(),
            "--scale" => scale = value().parse().expect("a number"),
            "--tune" => tune(&mut options, &value()),
            _ => {
                let speed: f64 = value().parse().expect("a speed");
                traces.push((word, speed));
            }
        }
    }
    println!("seeds {seeds:?}, scale {scale}, {:?}", options.weights);
    println!("mean seconds to the first token\n");
    let names: Vec<&str> = Contender::all().into_iter().map(Contender::name).collect();
    print!("{:<30}", "");
    for name in &names {
        print!(" {name:>12}");
    }
    println!(" {:>12} {:>12} {:>12}", "to affinity", "to the best", "end to end");
    if traces.is_empty() {
        for population in Population::ALL {
            let runs: Vec<(Workload, Fleet)> = seeds
                .iter()
                .map(|seed| {
                    let fleet = Fleet { options: options.clone(), ..population.fleet(*seed, scale) };
                    (population.workload(*seed, scale), fleet)
                })
                .collect();
            line(population.as_str(), &runs);
        }
    }
    for (path, speed) in traces {
        let text = std::fs::read_to_string(&path).expect("the trace");
        let workload = read_mooncake(&path, &text, speed).expect("a trace");
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".jsonl");
        let runs: Vec<(Workload, Fleet)> = seeds
            .iter()
            .map(|seed| {
                (workload.clone(), Fleet { options: options.clone(), seed: *seed, ..Fleet::default() })
            })
            .collect();
        line(&format!("{name} x{speed}"), &runs);
    }
}

fn tune(options: &mut Options, words: &str) {
    let (key, value) = words.split_once('=').expect("KEY=VALUE");
    let value: f64 = value.parse().expect("a number");
    let weights = &mut options.weights;
    match key {
        "alpha" => weights.alpha = value,
        "g" => weights.g = value,
        "d" => weights.d = value,
        "e" => weights.e = value,
        "flight_ttl" => options.flight_ttl = value,
        _ => panic!("no such constant: {key}"),
    }
}

fn line(name: &str, runs: &[(Workload, Fleet)]) {
    let mean = |contender: Contender| {
        let sums: [f64; 2] = std::thread::scope(|scope| {
            let runs: Vec<_> = runs
                .iter()
                .map(|(workload, fleet)| scope.spawn(move || run(workload, fleet, contender)))
                .collect();
            let summaries = runs.into_iter().map(|run| -> Summary { run.join().unwrap() });
            summaries.fold([0.0; 2], |[first, whole], one| [first + one.mean, whole + one.whole])
        });
        sums.map(|sum| sum / runs.len() as f64)
    };
    let means: Vec<(&str, [f64; 2])> =
        Contender::all().into_iter().map(|contender| (contender.name(), mean(contender))).collect();
    let of = |wanted: &str| means.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let ([work, whole], affinity) = (of("work"), of("session")[0].min(of("session_even")[0]));
    let best = |at: usize| {
        means
            .iter()
            .filter(|(name, _)| *name != "work")
            .map(|(_, means)| means[at])
            .fold(f64::INFINITY, f64::min)
    };
    print!("{name:<30}");
    for (_, [mean, _]) in &means {
        print!(" {mean:>12.4}");
    }
    println!(" {:>12.3} {:>12.3} {:>12.3}", work / affinity, work / best(0), whole / best(1));
}
