//! Brings one replica's outbox to its server.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kvplane_hints::{Note, Stats};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{info, warn};

use super::calls::{Identity, say};
use super::connection::Connection;
use super::link::Link;
use super::tally::{CALL_OUTCOMES, ReplicaReport, SAYINGS, place_of};
use crate::outbox::{Call, Next, Outbox, OutboxOptions, Outcome, Ticket};
use crate::sink::Sink;

/// How long the last changes may take to be reported, when a report ends.
const DRAIN: Duration = Duration::from_secs(5);

/// How one replica is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReporterOptions {
    /// How changes are reported.
    pub outbox: OutboxOptions,
    /// How long a call may take.
    pub deadline: Duration,
}

impl Default for ReporterOptions {
    fn default() -> Self {
        Self { outbox: OutboxOptions::default(), deadline: Duration::from_secs(5) }
    }
}

/// Begins to report an engine, once the reporter runs. It ends after its sink is dropped: with everything
/// withdrawn, because the engine is gone; or after `stop`, with what was still to be reported. Either takes 5
/// s at most.
pub fn begin(
    engine: String,
    identity: Identity,
    link: Arc<Link>,
    options: ReporterOptions,
    stop: CancellationToken,
) -> (ReportSink, Arc<ReplicaReport>, Reporter) {
    let outbox = Outbox::new(options.outbox, options.deadline);
    let connection = link.watch();
    let report = Arc::new(ReplicaReport::new(engine, identity, link, outbox));
    let gone = CancellationToken::new();
    let sink = ReportSink { report: report.clone(), gone: gone.clone(), stop };
    let reporter = Reporter { report: report.clone(), connection, deadline: options.deadline, gone };
    (sink, report, reporter)
}

/// Takes notes about an engine that is reported.
#[derive(Debug)]
pub struct ReportSink {
    report: Arc<ReplicaReport>,
    gone: CancellationToken,
    stop: CancellationToken,
}

impl Sink for ReportSink {
    fn tell(&mut self, notes: &[Note]) {
        self.report.note(notes);
    }
}

impl Drop for ReportSink {
    fn drop(&mut self) {
        // A plane that stops says nothing about its engines: they hold what they held.
        if !self.stop.is_cancelled() {
            self.report.note(&[Note::Nothing]);
        }
        self.gone.cancel();
    }
}

impl ReplicaReport {
    fn note(&self, notes: &[Note]) {
        if self.outbox.lock().note(notes, self.now()) {
            self.wake.notify_one();
        }
    }

    /// It ends after this long, and not everything is reported.
    pub(crate) fn warn_of_rest(&self, after: Duration) {
        let pending = self.pending();
        warn!(
            server = self.link.address().url(),
            engine = self.engine,
            adds = pending.adds,
            evictions = pending.evictions,
            clear = pending.clear,
            seconds = after.as_secs(),
            "a report ended before everything was reported"
        );
    }

    pub(crate) fn set_stats(&self, stats: Stats) {
        self.outbox.lock().set_stats(stats);
        self.wake.notify_one();
    }
}

/// Brings one replica's outbox to its server.
#[derive(Debug)]
pub struct Reporter {
    report: Arc<ReplicaReport>,
    connection: watch::Receiver<Option<Connection>>,
    deadline: Duration,
    gone: CancellationToken,
}

/// What is left of a call when it has ended.
struct Ended {
    ticket: Ticket,
    saying: usize,
    outcome: Outcome,
    status: Option<Status>,
}

type Calls = FuturesUnordered<Pin<Box<dyn Future<Output = Ended> + Send>>>;

impl Reporter {
    /// Reports until the sink is dropped and everything is reported.
    pub async fn run(mut self) {
        let mut calls = Calls::new();
        let mut drained_by: Option<Instant> = None;
        self.reconnect();
        loop {
            let wake_at = self.make_calls(&mut calls);
            if drained_by.is_some() && self.report.outbox.lock().is_settled() {
                return;
            }
            let wake_at = wake_at.map(|at| Instant::from_std(self.report.began + at));
            let draining = drained_by.is_some();
            let wait_until = wake_at.into_iter().chain(drained_by).min();
            tokio::select! {
                Some(ended) = calls.next(), if !calls.is_empty() => self.end(ended),
                changed = self.connection.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.reconnect();
                }
                () = self.report.wake.notified() => {}
                () = sleep_until(wait_until.unwrap_or_else(Instant::now)), if wait_until.is_some() => {
                    if drained_by.is_some_and(|by| Instant::now() >= by) {
                        return self.report.warn_of_rest(DRAIN);
                    }
                }
                // Whichever comes first ends the feed; its sink is dropped in either case.
                () = self.gone.cancelled(), if !draining => drained_by = Some(self.close()),
            }
        }
    }

    /// Hands out every call that is due. Returns when there may be another.
    fn make_calls(&self, calls: &mut Calls) -> Option<Duration> {
        loop {
            let Call { saying, ticket } = match self.report.outbox.lock().next(self.report.now()) {
                Next::Call(call) => call,
                Next::Wait(until) => return until,
            };
            let place = place_of(&saying);
            let connection = self.connection.borrow().clone();
            let (identity, deadline) = (self.report.identity.clone(), self.deadline);
            calls.push(Box::pin(async move {
                let (outcome, status) = match connection {
                    Some(connection) => say(connection, identity, saying, deadline).await,
                    // It was never made.
                    None => (Outcome::Failed, None),
                };
                Ended { ticket, saying: place, outcome, status }
            }));
        }
    }

    fn reconnect(&mut self) {
        let is_up = self.connection.borrow_and_update().is_some();
        let mut outbox = self.report.outbox.lock();
        outbox.disconnected();
        if is_up {
            outbox.connected(self.report.now());
        }
    }

    fn end(&self, ended: Ended) {
        let Ended { ticket, saying, outcome, status } = ended;
        let report = &self.report;
        report.outbox.lock().done(ticket, outcome, report.now());
        if !report.ended(saying, outcome) {
            return;
        }
        let (server, engine) = (report.link.address().url(), report.engine.as_str());
        if outcome == Outcome::Taken {
            info!(server, engine, "reports accepted");
            return;
        }
        let status = status.unwrap_or_else(|| Status::unavailable("no connection"));
        let (call, outcome) =
            (SAYINGS[saying], CALL_OUTCOMES[if outcome == Outcome::Refused { 1 } else { 2 }]);
        let (code, said) = (format!("{:?}", status.code()), status.message());
        warn!(server, engine, call, outcome, code, said, "report rejected; retrying");
    }

    /// Returns until when the last changes may be reported.
    fn close(&self) -> Instant {
        self.report.outbox.lock().close();
        Instant::now() + DRAIN
    }
}
