//! Everything that is reported to others: which engines, as whom, and where to.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use kvplane_ingest::{Engine, Plane};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::feed::{Feeds, Rules, Told, WithheldCounts};
use crate::sender::{Identity, Link, ReplicaReport, ReporterOptions, ServerAddress, begin};
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
    /// How changes are told.
    pub reporter: ReporterOptions,
    /// How statistics are read.
    pub stats: StatsOptions,
    /// The page with an engine's statistics; the one of its HTTP server when absent.
    pub metrics_url: Option<String>,
    /// How an engine is told of.
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

    fn identity(&self, engine: &Engine) -> Identity {
        let spec = &engine.spec;
        let or = |given: &Option<String>, own: &str| given.clone().unwrap_or_else(|| own.to_owned());
        Identity {
            tenant: or(&self.tenant, spec.tenant.as_deref().unwrap_or(DEFAULT_TENANT)),
            model: or(&self.model, &spec.model),
            scheme: or(&self.scheme, spec.kind.as_str()),
            replica: or(&self.replica, spec.id.as_str()),
        }
    }
}

/// What a change of the reports did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportsChanged {
    /// Reports that began.
    pub begun: usize,
    /// Reports that ended: what they told is withdrawn.
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
}

/// Replicas that are being reported, of all reports.
#[derive(Debug, Default)]
struct Replicas {
    links: Mutex<Vec<Weak<Link>>>,
    by_name: Mutex<HashMap<(String, Identity), Reported>>,
    tasks: TaskTracker,
    /// Nothing more is told, whatever is left.
    give_up: CancellationToken,
}

#[derive(Debug)]
struct Reported {
    report: Arc<ReplicaReport>,
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

    /// Every replica that is reported now.
    pub fn replicas(&self) -> Vec<Arc<ReplicaReport>> {
        let mut all: Vec<_> =
            self.replicas.by_name.lock().values().map(|reported| reported.report.clone()).collect();
        all.sort_by(|one, other| {
            (one.link.address().url(), &one.engine).cmp(&(other.link.address().url(), &other.engine))
        });
        all
    }

    /// Blocks that are not told, by server.
    pub fn withheld(&self) -> Vec<(String, Arc<WithheldCounts>)> {
        let of = |report: &Running| (report.spec.server.url().to_owned(), report.feeds.withheld().clone());
        self.running.lock().iter().map(of).collect()
    }

    /// Ends all reports when everything is told that journals have now, or after 5 s.
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
            for report in self.replicas() {
                report.warn_of_rest(SHUTDOWN);
            }
            self.replicas.give_up.cancel();
            tasks.wait().await;
        }
    }

    fn begin(&self, plane: &Arc<Plane>, spec: ReportSpec) -> Running {
        let (replicas, stop, told) = (self.replicas.clone(), self.stop.clone(), spec.clone());
        let link = replicas.link(&spec.server);
        let feeds = Feeds::start(plane, move |engine| {
            if !told.includes(engine.spec.id.as_str()) {
                return None;
            }
            let identity = told.identity(engine);
            if identity.model.is_empty() {
                warn!(
                    server = told.server.url(),
                    engine = %engine.spec.id,
                    "not reported: nobody can ask for an engine that has no model"
                );
                return None;
            }
            Some(replicas.begin(&told, engine, identity, link.clone(), stop.clone()))
        });
        Running { spec, feeds }
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
        identity: Identity,
        link: Arc<Link>,
        stop: CancellationToken,
    ) -> Told {
        let name = (link.address().url().to_owned(), identity.clone());
        let (sink, report, reporter) = begin(engine.spec.id.to_string(), identity, link, spec.reporter, stop);
        let ended = CancellationToken::new();
        let reported = Reported { report: report.clone(), ended: ended.clone() };
        let previous = self.by_name.lock().insert(name.clone(), reported);
        let stats = StatsSource::of(&engine.spec, spec.metrics_url.as_deref())
            .map(|source| (source, spec.stats.clone()));
        let this = self.clone();
        self.tasks.spawn(async move {
            let telling = async {
                // What it still withdraws must not hit what is told now.
                if let Some(previous) = previous {
                    previous.ended.cancelled().await;
                }
                tokio::select! {
                    () = reporter.run() => {}
                    () = tell_stats(stats, &report) => {}
                }
            };
            let _ = this.give_up.run_until_cancelled(telling).await;
            let mut by_name = this.by_name.lock();
            if by_name.get(&name).is_some_and(|now| Arc::ptr_eq(&now.report, &report)) {
                by_name.remove(&name);
            }
            ended.cancel();
        });
        Told { rules: spec.rules.clone(), sink: Box::new(sink) }
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
