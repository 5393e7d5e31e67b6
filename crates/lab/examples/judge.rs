//! Every policy over populations and traces, and what the targets of `work` come to.
//!
//! ```text
//! cargo run --release -p kvplane-lab --example judge -- [--seeds 7,8,9] [--scale 1] [--tune KEY=VALUE]... [--only NAME,...]
//!     [--populations NAME,...] [TRACE SPEED]...
//! ```
//!
//! Means over the seeds. `to affinity` is the mean time to the first token of `work` by that of session
//! affinity, the better of its two forms; `to the best` by that of the best other policy; `end to end` is the
//! same of the mean time to the last token. `foresight` and `shared_cache` are no policies but bounds, which
//! know or have what no router can.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, reason = "a tool")]

use kvplane_lab::{Contender, Fleet, Population, Summary, Workload, read_mooncake, run};
use kvplane_route::Options;

/// What to run.
struct Wanted {
    seeds: Vec<u64>,
    scale: f64,
    options: Options,
    contenders: Vec<Contender>,
    populations: Vec<Population>,
    traces: Vec<(String, f64)>,
}

fn main() {
    let wanted = wanted();
    println!("seeds {:?}, scale {}, {:?}", wanted.seeds, wanted.scale, wanted.options.weights);
    println!("mean seconds to the first token\n");
    print!("{:<30}", "");
    for contender in &wanted.contenders {
        print!(" {:>12}", contender.name());
    }
    println!(" {:>12} {:>12} {:>12}", "to affinity", "to the best", "end to end");
    if wanted.traces.is_empty() {
        for population in &wanted.populations {
            let fleet = |seed| {
                let fleet = population.fleet(seed, wanted.scale);
                (population.workload(seed, wanted.scale), Fleet { options: wanted.options.clone(), ..fleet })
            };
            line(
                population.as_str(),
                &wanted.seeds.iter().map(|seed| fleet(*seed)).collect::<Vec<_>>(),
                &wanted,
            );
        }
    }
    for (path, speed) in &wanted.traces {
        let text = std::fs::read_to_string(path).expect("the trace");
        let workload = read_mooncake(path, &text, *speed).expect("a trace");
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".jsonl");
        let fleet =
            |seed| (workload.clone(), Fleet { options: wanted.options.clone(), seed, ..Fleet::default() });
        let runs: Vec<_> = wanted.seeds.iter().map(|seed| fleet(*seed)).collect();
        line(&format!("{name} x{speed}"), &runs, &wanted);
    }
}

fn wanted() -> Wanted {
    let mut words = std::env::args().skip(1);
    let mut wanted = Wanted {
        seeds: vec![7, 8, 9],
        scale: 1.0,
        options: Options::default(),
        contenders: Contender::all().into_iter().chain(Contender::bounds()).collect(),
        populations: Population::ALL.to_vec(),
        traces: Vec::new(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value");
        match word.as_str() {
            "--seeds" => {
                wanted.seeds = value().split(',').map(|seed| seed.parse().expect("a number")).collect();
            }
            "--scale" => wanted.scale = value().parse().expect("a number"),
            "--tune" => tune(&mut wanted.options, &value()),
            "--only" => {
                let names = value();
                wanted.contenders.retain(|contender| names.split(',').any(|name| name == contender.name()));
            }
            "--populations" => {
                let names = value();
                wanted
                    .populations
                    .retain(|population| names.split(',').any(|name| name == population.as_str()));
            }
            _ => {
                let speed: f64 = value().parse().expect("a speed");
                wanted.traces.push((word, speed));
            }
        }
    }
    wanted
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

fn line(name: &str, runs: &[(Workload, Fleet)], wanted: &Wanted) {
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
    let means: Vec<(Contender, [f64; 2])> =
        wanted.contenders.iter().map(|contender| (*contender, mean(*contender))).collect();
    let of = |name: &str| means.iter().find(|(other, _)| other.name() == name).map(|(_, means)| *means);
    print!("{name:<30}");
    for (_, [mean, _]) in &means {
        print!(" {mean:>12.4}");
    }
    let Some([work, whole]) = of("work") else { return println!() };
    let affinity = ["session", "session_even"].into_iter().filter_map(of).map(|[mean, _]| mean);
    let best = |at: usize| {
        let others =
            means.iter().filter(|(other, _)| other.name() != "work" && !Contender::bounds().contains(other));
        others.map(|(_, means)| means[at]).fold(f64::INFINITY, f64::min)
    };
    let affinity = affinity.fold(f64::INFINITY, f64::min);
    println!(" {:>12.3} {:>12.3} {:>12.3}", work / affinity, work / best(0), whole / best(1));
}
