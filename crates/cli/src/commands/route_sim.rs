//! `kvplane route-sim`: routing policies over traces and populations, in virtual time.

use std::path::Path;

use anyhow::Context as _;
use kvplane_lab::{Contender, Fleet, Population, Summary, Workload, read_mooncake, run as run_one, table};
use serde_json::{Value, json};

use super::{Failure, usage};
use crate::args::{Output, RouteSimArgs};

pub(crate) fn run(args: &RouteSimArgs) -> Result<(), Failure> {
    for (name, value) in [("--scale", args.scale), ("--speed", args.speed)] {
        if !(value > 0.0 && value <= 1_000.0) {
            return Err(usage(anyhow::anyhow!("{name} {value} must be more than 0, and 1000 at most")));
        }
    }
    if args.engines == 0 || args.engines > 1_024 {
        return Err(usage(anyhow::anyhow!("--engines {} must be 1 to 1024", args.engines)));
    }
    if args.traces.is_empty() {
        let wanted = |population: &&Population| {
            args.populations.is_empty()
                || args.populations.iter().any(|name| population.as_str().starts_with(name.as_str()))
        };
        let populations: Vec<&Population> = Population::ALL.iter().filter(wanted).collect();
        if populations.is_empty() {
            let known = Population::ALL.map(Population::as_str).join(", ");
            return Err(usage(anyhow::anyhow!("--populations: no such population; there are {known}")));
        }
        for population in populations {
            let workload = population.workload(args.seed, args.scale);
            let fleet = population.fleet(args.seed, args.scale);
            show(args, &workload, fleet, population.assumes());
        }
        return Ok(());
    }
    for path in &args.traces {
        let workload = read(args, path)?;
        let largest = workload.requests.iter().map(|request| request.prompt + request.output).max();
        let largest = largest.unwrap_or(0) + workload.block;
        if largest > args.capacity {
            let capacity = args.capacity;
            let words =
                format!("--capacity {capacity}: the largest request of the trace takes {largest} tokens");
            return Err(usage(anyhow::anyhow!(words)));
        }
        let fleet =
            Fleet { engines: args.engines, capacity: args.capacity, seed: args.seed, ..Fleet::default() };
        let assumes =
            format!("{} times as fast as recorded; sessions are those that prompts show", args.speed);
        show(args, &workload, fleet, &assumes);
    }
    Ok(())
}

fn read(args: &RouteSimArgs, path: &Path) -> Result<Workload, Failure> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let name = path.file_name().map_or_else(|| "trace".into(), |name| name.to_string_lossy());
    let workload = read_mooncake(&name, &text.map_err(usage)?, args.speed);
    let mut workload = workload.with_context(|| path.display().to_string()).map_err(usage)?;
    workload.requests.truncate(args.limit.unwrap_or(usize::MAX).max(1));
    Ok(workload)
}

fn show(args: &RouteSimArgs, workload: &Workload, mut fleet: Fleet, assumes: &str) {
    if let Some(alpha) = args.alpha {
        fleet.options.weights.alpha = alpha;
    }
    let wanted = |contender: &Contender| match contender {
        Contender::Policy(policy) => args.policies.is_empty() || args.policies.contains(policy),
        Contender::EvenSession => args.policies.is_empty(),
        // No policies: the judge of the laboratory has them.
        Contender::Foresight | Contender::SharedCache => false,
    };
    let sessions = workload.requests.iter().any(|request| request.session.is_some());
    let contenders = Contender::all().into_iter().filter(wanted);
    // Without sessions these two are the least work under other names.
    let contenders = contenders.filter(|contender| sessions || !contender.name().starts_with("session"));
    let rows: Vec<(String, Summary)> = contenders
        .map(|contender| (contender.name().to_owned(), run_one(workload, &fleet, contender)))
        .collect();
    match args.output {
        Output::Json => println!("{}", as_json(args, workload, &fleet, assumes, &rows)),
        Output::Text => {
            println!("{}: {assumes}", workload.name);
            println!(
                "seed {}, {} engines with {} KV tokens in blocks of {}, {} router(s){}",
                fleet.seed,
                fleet.engines,
                fleet.capacity,
                workload.block,
                fleet.routers,
                if fleet.routers > 1 && !fleet.shared { " with separate bookings" } else { "" },
            );
            println!("{:?}; events and bookings arrive at once; answers' lengths are not known", fleet.speed);
            println!("{:?}\n\n{}", fleet.options.weights, table(&rows));
        }
    }
}

fn as_json(
    args: &RouteSimArgs,
    workload: &Workload,
    fleet: &Fleet,
    assumes: &str,
    rows: &[(String, Summary)],
) -> Value {
    let row = |(name, row): &(String, Summary)| {
        json!({
            "policy": name, "requests": row.requests, "ttft_mean_s": row.mean, "ttft_p50_s": row.p50,
            "ttft_p99_s": row.p99, "end_to_end_mean_s": row.whole, "cached_share": row.hit_rate, "balance": row.balance,
        })
    };
    json!({
        "workload": workload.name, "assumes": assumes, "seed": args.seed, "engines": fleet.engines,
        "kv_tokens": fleet.capacity, "block": workload.block, "routers": fleet.routers,
        "shared_bookings": fleet.shared, "policies": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
