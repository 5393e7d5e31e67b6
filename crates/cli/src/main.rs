//! `kvplane`: the command line. Thin: arguments in, a command run, an exit code out.

mod app;
mod args;
mod commands;
mod config;
mod logging;
mod output;
mod suggest;
mod systemd;
mod version;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command, with_two_dashes};
use commands::Failure;
use commands::page::harmless;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse_from(with_two_dashes(std::env::args_os()));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kvplane: cannot start: {error}");
            return ExitCode::from(1);
        }
    };
    let outcome = runtime.block_on(async {
        match args.command {
            Command::Serve(serve) => Box::pin(commands::serve::run(serve)).await,
            #[cfg(feature = "sim")]
            Command::Sim(sim) => commands::sim::run(sim).await,
            Command::Status(status) => commands::status::run(status).await,
            Command::Top(top) => commands::top::run(top).await,
            Command::Tail(tail) => commands::tail::run(tail).await,
            Command::Dump(dump) => commands::dump::run(dump).await,
            Command::Engines(engines) => commands::engines::run(engines).await,
            Command::Discover(discover) => commands::discover::run(discover).await,
            Command::Ready(ready) => commands::ready::run(ready).await,
            Command::Doctor(doctor) => commands::doctor::run(doctor).await,
            Command::Operate(operation) => commands::operate::run(operation).await,
            Command::Query(query) => commands::query::run(query).await,
            Command::Pick(pick) => commands::pick::pick(pick).await,
            Command::Picker(picker) => commands::picker::run(picker).await,
            Command::Ledger(ledger) => commands::pick::ledger(ledger).await,
            Command::Report(report) => commands::report::run(report).await,
            Command::Journal(journal) => commands::journal::run(journal).await,
            Command::Config(config) => commands::config::run(&config),
            #[cfg(feature = "sim")]
            Command::Demo(demo) => commands::demo::run(demo).await,
            #[cfg(feature = "sim")]
            Command::RouteSim(args) => commands::route_sim::run(&args),
            Command::Completions { shell } => commands::shipped::completions(shell),
            Command::Man { directory } => commands::shipped::manual(&directory),
        }
    });
    // Whatever still blocks (a socket thread, a name look-up) must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            eprintln!("kvplane: {}", harmless(&format!("{error:#}")));
            ExitCode::from(code)
        }
    }
}
