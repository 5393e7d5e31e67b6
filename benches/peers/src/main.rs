//! kvplane's index beside its peers: the same events and the same prompts, in one process, in turn, as one table.

mod alloc;
mod broom;
mod clock;
mod machine;
mod measure;
mod scaling;
mod subjects;
mod table;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use measure::{Effort, Race};
use scaling::Scaling;
use subjects::Name;
use table::Results;
use workload::{BadTrace, DEPTHS, Shape, World};

/// Compares kvplane's index with its peers and prints the results as Markdown.
#[derive(Debug, Parser)]
struct Options {
    /// Small fleets and few rounds: shows that everything works, in less than a minute. The figures mean nothing.
    #[arg(long)]
    quick: bool,

    /// Mooncake's conversation trace, for the workload conv8. Without it, conv8 is left out.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Workloads to run.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Workload::value_variants().iter().copied())]
    workloads: Vec<Workload>,

    /// Subjects to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::value_variants().iter().copied())]
    subjects: Vec<Name>,

    /// Leaves out how lookups grow with engines and depth.
    #[arg(long)]
    no_scaling: bool,

    /// Where the load begins. The same seed gives the same events and prompts.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Also writes the results to a file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Mooncake's conversation trace on 8 engines.
    Conv8,
    /// Made-up conversations on 8 engines.
    Syn8,
    /// Made-up conversations on 64 engines.
    Syn64,
    /// Made-up conversations on 512 engines.
    Syn512,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Conv8 => "conv8",
            Self::Syn8 => "syn8",
            Self::Syn64 => "syn64",
            Self::Syn512 => "syn512",
        }
    }

    /// Engines, and blocks in the cache of each.
    fn size(self, quick: bool) -> (usize, usize) {
        match (self, quick) {
            (Self::Conv8, false) => (8, 65_536),
            (Self::Syn8, false) => (8, 131_072),
            (Self::Syn64, false) => (64, 32_768),
            (Self::Syn512, false) => (512, 16_384),
            // The longest requests must fit.
            (Self::Conv8 | Self::Syn8, true) => (8, 16_384),
            (Self::Syn64, true) => (64, 4096),
            (Self::Syn512, true) => (128, 4096),
        }
    }

    /// `None` if what it needs was not given.
    fn world(self, options: &Options) -> Option<Result<World, BadTrace>> {
        let (engines, capacity) = self.size(options.quick);
        match (self, &options.trace) {
            (Self::Conv8, None) => None,
            (Self::Conv8, Some(trace)) => Some(World::of_trace(engines, capacity, trace, options.seed)),
            _ => {
                let shape = Shape { engines, capacity, depths: DEPTHS.to_vec() };
                Some(Ok(World::of_conversations(&shape, options.seed)))
            }
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let (effort, scaling) =
        if options.quick { (Effort::QUICK, Scaling::quick()) } else { (Effort::FULL, Scaling::full()) };
    let mut results = Results::default();
    for workload in &options.workloads {
        let Some(world) = workload.world(options) else {
            eprintln!("{}: left out, it needs --trace", workload.name());
            continue;
        };
        Race::new(workload.name(), world?, &options.subjects, effort, &mut results).run();
    }
    let mut text = format!("{}\n", machine::describe());
    if !results.is_empty() {
        text.push_str(&format!("\n{}\n{}", results.notes(), results.markdown()));
    }
    if !options.no_scaling {
        text.push('\n');
        text.push_str(&scaling.run(&options.subjects, options.seed));
    }
    print!("{text}");
    if let Some(output) = &options.output {
        std::fs::write(output, &text)?;
    }
    Ok(())
}
