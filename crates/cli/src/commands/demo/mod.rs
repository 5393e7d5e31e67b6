//! `kvplane demo`: the tour.
//!
//! Simulated engines of every kind and one plane, with real sockets between them. Conversations are routed by
//! asking the plane (`POST /v1/query`). A second fleet gets the same requests round robin, and a third by a
//! plain consumer of events. In between things go wrong, one after the other.
//!
//! ```text
//!  workload ──┬─> tour ── query ──> plane <── events ── fleet     ledger: predicted = delivered?
//!             │     └── request ────────────────────────> │
//!             ├──────── request, round robin ─────────> second fleet
//!             └─> router ── request ─────────────────> third fleet
//!  story ── fault ──────────────────────────────────────> │       plain consumer: what does one believe who asks nothing?
//! ```
//!
//! - `fleet` is the engines, and the truth about them;
//! - `workload` is what is asked of them;
//! - `plane` serves, asks and compares;
//! - `routing` says where a request goes, and keeps the ledger;
//! - `plain` is a consumer that applies what it hears, and `router` goes by it;
//! - `tour` brings these together, and `story` has the steps;
//! - `view`, `screen` and `summary` show it.

mod fleet;
mod plain;
mod plane;
mod router;
mod routing;
mod screen;
mod story;
mod summary;
mod tour;
mod view;
mod workload;

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use self::fleet::Fleet;
use self::plane::ServedPlane;
use self::router::PlainRouter;
use self::story::{Act, Story};
use self::summary::{EngineSummary, Summary};
use self::tour::Tour;
use self::view::{Style, View};
use self::workload::Workload;
use super::page::print;
use super::{Failure, stop_signal, usage};
use crate::args::{DemoArgs, Output};

/// Requests between two steps, however short the tour is to be.
const FEWEST_REQUESTS: usize = 10;

/// Why the tour does not go on.
enum Halt {
    /// Somebody has seen enough.
    Stopped,
    /// Something did not come as it should.
    Failed(anyhow::Error),
}

impl Halt {
    /// What did not come as it should, in words.
    fn failure(self) -> Option<String> {
        match self {
            Self::Stopped => None,
            Self::Failed(error) => Some(format!("{error:#}")),
        }
    }
}

impl From<anyhow::Error> for Halt {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

pub(crate) async fn run(args: DemoArgs) -> Result<(), Failure> {
    let workload = match &args.trace {
        Some(trace) => Workload::recorded(trace, args.seed).map_err(usage)?,
        None => Workload::made_up(args.seed),
    };
    let stop = stop_signal(None)?;
    let silent = args.output == Output::Json;
    let plane = ServedPlane::start(stop.clone()).await?;
    let style = Style::of(silent, args.plain, args.pause);
    let mut view = View::new(style, &stop)?;
    greet(&mut view, &plane, silent);
    let trace = args.trace.clone();
    let fleets = tokio::task::spawn_blocking(move || {
        let fleets = [Fleet::start(trace.as_deref())?, Fleet::start(trace.as_deref())?];
        anyhow::Ok((fleets, PlainRouter::new(Fleet::start(trace.as_deref())?)?))
    });
    let (fleets, plain) = fleets.await.context("the simulator")??;
    let mut tour = Tour::new(plane, fleets, plain, workload, view, stop);
    let mut story = Story::new()?;
    let halted = go(&args, &mut tour, &mut story).await.err();

    let summary = summarise(&mut tour, halted).await;
    tour.view.close();
    print(&if silent {
        format!("{}\n", serde_json::to_string(&summary).context("cannot print the summary")?)
    } else {
        format!("\n{}", summary.text(style == Style::Lines))
    })?;
    let mut verdict = summary.verdict();
    if args.stay && summary.complete && verdict.is_ok() {
        eprintln!("kvplane keeps running at {} until Ctrl-C", summary.dashboard);
        verdict = match tour.stay().await {
            Err(Halt::Failed(error)) => Err(error),
            Ok(()) | Err(Halt::Stopped) => tour.ledger.verdict(),
        };
    }
    let Tour { plane, fleet, in_turn, plain, .. } = tour;
    plane.shutdown().await?;
    let end = move || {
        story.end();
        fleet.stop();
        in_turn.stop();
        plain.end();
    };
    tokio::task::spawn_blocking(end).await.context("the simulator")?;
    Ok(verdict?)
}

/// Prints where to look. With a JSON summary it goes to stderr, for a person who watches.
fn greet(view: &mut View, plane: &ServedPlane, silent: bool) {
    let dashboard = format!("dashboard  {}/", plane.url());
    if silent {
        eprintln!("{dashboard}");
        return;
    }
    view.dashboard(&format!("{}/", plane.url()));
    view.line("kvplane demo: one simulated engine of each kind, real sockets, three fleets. Ctrl-C ends it.");
    view.line(&dashboard);
    view.line(&format!("follow     kvplane tail --plane http://{}", plane.grpc));
}

/// The story, with load between its steps: each has an equal part of the time.
async fn go(args: &DemoArgs, tour: &mut Tour, story: &mut Story) -> Result<(), Halt> {
    let begun = Instant::now();
    let part = Duration::from_secs(args.seconds) / Act::ALL.len() as u32;
    for (at, act) in Act::ALL.into_iter().enumerate() {
        if args.pause {
            tour.pause().await?;
        }
        tour.goes_on()?;
        story.play(act, tour).await?;
        let share = tour.workload.share(Act::ALL.len() - at);
        tour.load(begun + part * (at as u32 + 1), FEWEST_REQUESTS, share).await?;
    }
    Ok(())
}

/// What came of it, also if it ended early.
async fn summarise(tour: &mut Tour, halted: Option<Halt>) -> Summary {
    let complete = halted.is_none();
    let mut failure = halted.and_then(Halt::failure);
    let mut engines = Vec::new();
    tour.plane.finish();
    for (at, engine) in tour.fleet.engines.iter().enumerate() {
        // The last batch may still be on its way.
        let heard = tour.plane.until_heard(engine).await.err();
        let not_shown = match tour.plane.compare(engine).await {
            Ok(compared) => {
                let known_in_part = tour.known_in_part == Some(engine.name);
                let restarted = tour.restarts[at];
                engines.push(EngineSummary { kind: engine.kind, known_in_part, restarted, compared });
                heard
            }
            Err(halt) => Some(halt),
        };
        // In a tour that ended early the plane may not know of it yet.
        if complete && failure.is_none() {
            failure = not_shown.and_then(Halt::failure);
        }
    }
    Summary {
        complete,
        failure,
        made_up: tour.workload.is_made_up(),
        dashboard: format!("{}/", tour.plane.url()),
        ledger: tour.ledger.clone(),
        steps: std::mem::take(&mut tour.steps),
        engines,
    }
}
