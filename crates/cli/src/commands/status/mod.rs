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
/// Columns of a terminal that does not say its width.
const USUAL_WIDTH: usize = 80;
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
        StatusOutput::Table => {
            let (width, height) = size();
            view::cut(&view::page(&fleet, &problems, false, height, is_coloured()), width)
        }
    };
    // Every name in the page was made harmless.
    print_as_it_is(&format!("{before}{page}"))
}

pub(super) fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns and lines that fit on the terminal; endless where the output is not a terminal.
fn size() -> (usize, usize) {
    if !std::io::stdout().is_terminal() {
        return (usize::MAX, usize::MAX);
    }
    let said = rustix::termios::tcgetwinsize(std::io::stdout());
    let or = |said: u16, usual: usize| if said == 0 { usual } else { usize::from(said) };
    said.map_or((USUAL_WIDTH, USUAL_HEIGHT), |size| {
        (or(size.ws_col, USUAL_WIDTH), or(size.ws_row, USUAL_HEIGHT).max(USUAL_HEIGHT))
    })
}
