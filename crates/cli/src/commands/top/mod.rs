//! `kvplane top`: the fleet, live in the terminal.
//!
//! ```text
//!  task: GET /v1/status every interval ──> watch channel ──> thread: keys and frames
//! ```

mod app;
mod draw;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::Method;
use kvplane_doctor::{PlaneSeen, judge_plane, without_userinfo};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::app::{App, Look, Next};
use super::http_client::{ask, ask_all};
use super::status::fleet::Fleet;
use super::status::is_coloured;
use super::{Failure, stop_signal, usage};
use crate::args::TopArgs;

/// The fastest refresh.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// How long a key waits at most before it is seen.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// What was read last, or why nothing was.
type Read = Result<Arc<Look>, String>;

pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    if args.interval.0 < SHORTEST_INTERVAL {
        return Err(usage(anyhow!(
            "--interval {}: must be at least {} ms",
            args.interval,
            SHORTEST_INTERVAL.as_millis()
        )));
    }
    if !std::io::stdout().is_terminal() {
        return Err(usage(anyhow!("kvplane top needs a terminal; use `kvplane status -o json` in scripts")));
    }
    // Before the screen is taken: a wrong address is said on a line of its own.
    let first = look(&args).await?;
    let stop = stop_signal(None)?;
    let (sender, receiver) = watch::channel(Ok(Arc::new(first)));
    let app = App::new(args.sort, args.filter.clone(), is_coloured());
    let screen_stop = stop.clone();
    let screen = tokio::task::spawn_blocking(move || show(app, receiver, &screen_stop));
    let polling = stop.run_until_cancelled(poll(args, sender));
    let (shown, _) = tokio::join!(
        async {
            let shown = screen.await;
            stop.cancel();
            shown
        },
        polling
    );
    Ok(shown.context("the screen")??)
}

/// Reads the fleet until nobody looks any more.
async fn poll(args: TopArgs, sender: watch::Sender<Read>) {
    loop {
        tokio::time::sleep(args.interval.0).await;
        let read = look(&args).await.map(Arc::new).map_err(|failure| format!("{:#}", failure.error));
        if sender.send(read).is_err() {
            return;
        }
    }
}

async fn look(args: &TopArgs) -> Result<Look, Failure> {
    let (server, key) = (&args.server.server, &args.server.key);
    let mut seen = PlaneSeen::looked_at_now(without_userinfo(server));
    seen.status = ask_all(server, key, "/v1/status").await?;
    seen.engines = ask(server, key, Method::GET, "/v1/engines", None).await?;
    let mut problems = judge_plane(&seen);
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    Ok(Look { at: kvplane_runtime::now(), fleet: Fleet::of(&seen.status), problems })
}

fn show(app: App, looks: watch::Receiver<Read>, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let shown = follow(&mut terminal, app, looks, stop);
    ratatui::restore();
    shown
}

fn follow(
    terminal: &mut DefaultTerminal,
    mut app: App,
    mut looks: watch::Receiver<Read>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    looks.mark_changed();
    while !stop.is_cancelled() {
        if looks.has_changed().unwrap_or(false) {
            app.take(looks.borrow_and_update().clone());
        }
        terminal.draw(|frame| draw::screen(frame, &mut app))?;
        if !event::poll(KEYS_EVERY)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && app.press(key.code, key.modifiers) == Next::Quit
        {
            return Ok(());
        }
    }
    Ok(())
}
