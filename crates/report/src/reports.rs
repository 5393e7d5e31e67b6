//! Everything that is reported to others: which engines, as whom, and where to.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use kvplane_hints::Note;
use kvplane_ingest::{Engine, Plane};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::feed::{Feeds, Rules, Target, WithheldCounts};
use crate::sender::{Identity, Link, ReplicaReport, ReportSink, ReporterOptions, ServerAddress, begin};
use crate::sink::Sink;
use crate::stats::{StatsNews, StatsOptions, StatsSource, follow_stats};

/// Whose an engine is when nobody says so.
const DEFAULT_TENANT: &str = "default";
/// How long a shutdown may take, whatever there is to tell.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// What is reported to a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportSpec {
    /// The server.
    pub server: ServerAddress,
    /// Which engines; all of them when absent.
    pub engines: Option<Vec<String>>,
    /// Whose they are; the engine's own tenant when absent, or else `default`.
    pub tenant: Option<String>,
    /// What their model is called there; as here when absent.
    pub model: Option<String>,
    /// How hashes are called there; the engine's kind when absent.
    pub scheme: Option<String>,
    /// How the engine is called there; by its id when absent.
    pub replica: Option<String>,
    /// How changes are reported.
    pub reporter: ReporterOptions,
    /// How statistics are read.
    pub stats: StatsOptions,
    /// The page with an engine's statistics; the one of its HTTP server when absent.
    pub metrics_url: Option<String>,
    /// How an engine is reported.
    pub rules: Rules,
}

impl ReportSpec {
    /// Everything as it is by default, for all engines.
    pub fn new(server: ServerAddress) -> Self {
        Self {
            server,
            engines: None,
            tenant: None,
            model: None,
            scheme: None,
            replica: None,
            reporter: ReporterOptions::default(),
            stats: StatsOptions::default(),
            metrics_url: None,
            rules: Rules::default(),
        }
    }

    fn includes(&self, engine: &str) -> bool {
        self.engines.as_ref().is_none_or(|named| named.iter().any(|name| name == engine))
    }

    /// As whom it tells an engine of this id, model and tenant; nobody where it does not include it.
    pub fn replica_name(&self, engine: &str, model: &str, tenant: Option<&str>) -> Option<ReplicaName> {
        let or = |given: &Option<String>, own: &str| given.clone().unwrap_or_else(|| own.to_owned());
        self.includes(engine).then(|| ReplicaName {
            server: self.server.url().to_owned(),
            tenant: or(&self.tenant, tenant.unwrap_or(DEFAULT_TENANT)),
            model: or(&self.model, model),
            replica: or(&self.replica, engine),
        })
    }
}

/// A replica for a server. A clear clears all of it, whatever the scheme: one report only may cover it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaName {
    server: String,
    tenant: String,
    model: String,
    replica: String,
}

impl fmt::Display for ReplicaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, tenant, model, replica } = self;
        write!(f, "replica {replica:?} of model {model:?} and tenant {tenant:?} at {server}")
    }
}

/// What a change of the reports did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportsChanged {
    /// Reports that began.
    pub begun: usize,
    /// Reports that ended: what they reported is withdrawn.
    pub ended: usize,
    /// Reports as before.
    pub unchanged: usize,
}

/// The reports of a plane.
#[derive(Debug, Default)]
pub struct Reports {
    running: Mutex<Vec<Running>>,
    replicas: Arc<Replicas>,
    stop: CancellationToken,
}

/// One report.
#[derive(Debug)]
struct Running {
    spec: ReportSpec,
    feeds: Feeds,
    _leaving: DropGuard,
}

/// Replicas that are being reported, of all reports.
#[derive(Debug, Default)]
struct Replicas {
    links: Mutex<Vec<Weak<Link>>>,
    /// Each is reported by its first; the others wait until those before them have ended.
    by_name: Mutex<HashMap<ReplicaName, Vec<Reported>>>,
    tasks: TaskTracker,
    /// Nothing more is reported, whatever is left.
    give_up: CancellationToken,
}

#[derive(Debug, Clone)]
struct Reported {
    report: Arc<ReplicaReport>,
    /// Cancelled when it is not to be reported any more: all that is left is to withdraw it.
    leaving: CancellationToken,
    ended: CancellationToken,
}

impl Reports {
    /// Makes these the reports. One that is as before is not touched. Must be called within a tokio runtime.
    pub fn set(&self, plane: &Arc<Plane>, specs: Vec<ReportSpec>) -> ReportsChanged {
        let mut running = self.running.lock();
        let before = running.len();
        running.retain(|report| specs.contains(&report.spec));
        let unchanged = running.len();
        let new: Vec<ReportSpec> =
            specs.into_iter().filter(|spec| running.iter().all(|report| report.spec != *spec)).collect();
        let begun = new.len();
        running.extend(new.into_iter().map(|spec| self.begin(plane, spec)));
        ReportsChanged { begun, ended: before - unchanged, unchanged }
    }

    /// Every replica that is reported now. Of one whose report is replaced, only what comes.
    pub fn replicas(&self) -> Vec<Arc<ReplicaReport>> {
        let of_one = |queue: &Vec<Reported>| {
            let last = queue.len().saturating_sub(1);
            let stay = queue.iter().enumerate().filter(|(at, of)| *at == last || !of.leaving.is_cancelled());
            stay.map(|(_, reported)| reported.report.clone()).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.replicas.by_name.lock().values().flat_map(of_one).collect();
        all.sort_by(|one, other| {
            (one.link.address().url(), &one.engine).cmp(&(other.link.address().url(), &other.engine))
        });
        all
    }

    /// Blocks that are withheld, by server.
    pub fn withheld(&self) -> Vec<(String, Arc<WithheldCounts>)> {
        let of = |report: &Running| (report.spec.server.url().to_owned(), report.feeds.withheld().clone());
        self.running.lock().iter().map(of).collect()
    }

    /// Ends all reports when everything in the ledgers now is reported, or after 5 s.
    pub async fn shutdown(&self) {
        let by = Instant::now() + SHUTDOWN;
        let running = std::mem::take(&mut *self.running.lock());
        let read = join_all(running.iter().map(|report| report.feeds.ready()));
        if timeout_at(by, read).await.is_err() {
            warn!(seconds = SHUTDOWN.as_secs(), "reports ended before everything was read from the journals");
        }
        self.stop.cancel();
        drop(running);
        let tasks = &self.replicas.tasks;
        tasks.close();
        if timeout_at(by, tasks.wait()).await.is_err() {
            for reported in self.replicas.by_name.lock().values().flatten() {
                reported.report.warn_of_rest(SHUTDOWN);
            }
            self.replicas.give_up.cancel();
            tasks.wait().await;
        }
    }

    fn begin(&self, plane: &Arc<Plane>, spec: ReportSpec) -> Running {
        let (replicas, stop, reported_spec) = (self.replicas.clone(), self.stop.clone(), spec.clone());
        let link = replicas.link(&spec.server);
        let leaving = CancellationToken::new();
        let leave = leaving.clone();
        let feeds = Feeds::start(plane, move |engine| {
            let name = reported_spec.replica_name(
                engine.spec.id.as_str(),
                &engine.spec.model,
                engine.spec.tenant.as_deref(),
            )?;
            if name.model.is_empty() {
                warn!(
                    server = reported_spec.server.url(),
                    engine = %engine.spec.id,
                    "not reported: lookups name a model, and the engine has none"
                );
                return None;
            }
            Some(replicas.begin(&reported_spec, engine, name, link.clone(), &leaving, stop.clone()))
        });
        Running { spec, feeds, _leaving: leave.drop_guard() }
    }
}

impl Replicas {
    /// The way to a server: one for all of its reports.
    fn link(&self, address: &ServerAddress) -> Arc<Link> {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        let known = links.iter().filter_map(Weak::upgrade).find(|link| link.address() == address);
        known.unwrap_or_else(|| {
            let link = Link::open(address.clone());
            links.push(Arc::downgrade(&link));
            link
        })
    }

    fn begin(
        self: &Arc<Self>,
        spec: &ReportSpec,
        engine: &Engine,
        name: ReplicaName,
        link: Arc<Link>,
        leaving: &CancellationToken,
        stop: CancellationToken,
    ) -> Target {
        let identity = Identity {
            tenant: name.tenant.clone(),
            model: name.model.clone(),
            scheme: spec.scheme.clone().unwrap_or_else(|| engine.spec.kind.as_str().to_owned()),
            replica: name.replica.clone(),
        };
        let (sink, report, reporter) =
            begin(engine.spec.id.to_string(), identity, link, spec.reporter, stop.clone());
        let reported = Reported {
            report: report.clone(),
            leaving: leaving.child_token(),
            ended: CancellationToken::new(),
        };
        let previous = self.queue(&name, &reported);
        let stats = StatsSource::of(&engine.spec, spec.metrics_url.as_deref())
            .map(|source| (source, spec.stats.clone()));
        let this = self.clone();
        let reported_spec = Target {
            rules: spec.rules.clone(),
            sink: Box::new(Leaving { sink, _guard: reported.leaving.clone().drop_guard() }),
        };
        self.tasks.spawn(async move {
            let telling = async {
                // What it still withdraws must not hit what is reported now.
                if let Some(previous) = &previous {
                    previous.ended.cancelled().await;
                }
                // Where all end, the one that reported has said everything.
                if report.is_duplicate() && stop.is_cancelled() {
                    return;
                }
                report.set_duplicate(false);
                tokio::select! {
                    () = reporter.run() => {}
                    () = tell_stats(stats, &report) => {}
                }
            };
            let _ = this.give_up.run_until_cancelled(telling).await;
            this.leave(&name, &report);
            reported.ended.cancel();
        });
        reported_spec
    }

    /// Puts a report behind those of the same replica. Returns the one before it.
    fn queue(&self, name: &ReplicaName, new: &Reported) -> Option<Reported> {
        let mut by_name = self.by_name.lock();
        let queue = by_name.entry(name.clone()).or_default();
        if let Some(reported_spec) = queue.iter().find(|before| !before.leaving.is_cancelled()) {
            new.report.set_duplicate(true);
            warn!(
                server = name.server,
                engine = new.report.engine,
                reported_spec = reported_spec.report.engine,
                "not reported: another report tells {name}, as long as that lasts"
            );
        }
        let previous = queue.last().cloned();
        queue.push(new.clone());
        previous
    }

    fn leave(&self, name: &ReplicaName, report: &Arc<ReplicaReport>) {
        let mut by_name = self.by_name.lock();
        if let Some(queue) = by_name.get_mut(name) {
            queue.retain(|reported| !Arc::ptr_eq(&reported.report, report));
            if queue.is_empty() {
                by_name.remove(name);
            }
        }
    }
}

/// Says that a report leaves as soon as its engine is gone.
struct Leaving {
    sink: ReportSink,
    _guard: DropGuard,
}

impl Sink for Leaving {
    fn tell(&mut self, notes: &[Note]) {
        self.sink.tell(notes);
    }
}

/// Hands an engine's statistics to its report, if there are any. Never ends.
async fn tell_stats(from: Option<(StatsSource, StatsOptions)>, report: &ReplicaReport) {
    let Some((source, options)) = from else { return std::future::pending().await };
    follow_stats(source, options, |news| {
        report.set_stats_stale(news == StatsNews::Stale);
        if let StatsNews::Are(stats) = news {
            report.set_stats(stats);
        }
    })
    .await;
}
