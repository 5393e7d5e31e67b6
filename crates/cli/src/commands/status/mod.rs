//! `kvplane status`: the fleet on one screen.

pub(super) mod fleet;
pub(super) mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use kvplane_doctor::{PlaneSeen, judge_plane, without_userinfo};

use self::fleet::Fleet;
use super::http_client::{ask, ask_all};
use super::page::print_as_it_is;
use super::{Failure, stop_signal, usage};
use crate::args::{StatusArgs, StatusOutput};

/// The fastest refresh.
const SHORTEST_WATCH: Duration = Duration::from_millis(200);
/// Lines on a terminal that does not say its height.
const USUAL_HEIGHT: usize = 24;
/// Clears the screen and moves the cursor home.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let Some(interval) = args.watch else { return show(&args, "").await };
    if interval.0 < SHORTEST_WATCH {
        return Err(usage(anyhow!("--watch={interval}: at least {} ms", SHORTEST_WATCH.as_millis())));
    }
    let stop = stop_signal(None)?;
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let turn = async {
            show(&args, clear).await?;
            tokio::time::sleep(interval.0).await;
            Ok::<(), Failure>(())
        };
        match stop.run_until_cancelled(turn).await {
            Some(outcome) => outcome?,
            None => return Ok(()),
        }
    }
}

/// Reads both pages and prints the screen once.
async fn show(args: &StatusArgs, before: &str) -> Result<(), Failure> {
    let (server, key) = (&args.server.server, &args.server.key);
    let mut seen = PlaneSeen::looked_at_now(without_userinfo(server));
    seen.status = ask_all(server, key, "/v1/status").await?;
    seen.engines = ask(server, key, Method::GET, "/v1/engines", None).await?;
    let mut problems = judge_plane(&seen);
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    let fleet = Fleet::of(&seen.status);
    let page = match args.output {
        StatusOutput::Json => format!("{}\n", view::json(&fleet, &problems)),
        StatusOutput::Wide => view::page(&fleet, &problems, true, usize::MAX, is_coloured()),
        StatusOutput::Table => view::page(&fleet, &problems, false, height(), is_coloured()),
    };
    // Every name in the page was made harmless.
    print_as_it_is(&format!("{before}{page}"))
}

pub(super) fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Lines that fit on the terminal; all of them where the output is not a terminal.
fn height() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map_or(USUAL_HEIGHT, |size| usize::from(size.ws_row))
        .max(USUAL_HEIGHT)
}
