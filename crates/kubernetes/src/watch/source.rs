//! One `[[discover]]` entry while it runs: objects in, changes of the fleet out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use kvplane_transport::HttpClient;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ask;
use super::client::{Api, Pace, Way};
use super::follow::{Failure, Objects, Seen, objects};
use super::object::{PodObject, PoolObject, PoolRead, SliceObject, identity};
use crate::board::{Board, SourceState};
use crate::cluster::Cluster;
use crate::group::Verdict;
use crate::pod::Pod;
use crate::settings::Settings;
use crate::wanted::Wanted;

/// Changes are applied together: a rollout changes many pods several times within this.
const TOGETHER: Duration = Duration::from_millis(250);
/// Engines that the fleet did not take are offered again after this.
const AGAIN: Duration = Duration::from_secs(15);
/// The longest pause before another client is made, in first ones.
const LONGEST: u32 = 50;
/// Engines that are asked for their model at the same time.
const ASKED_AT_ONCE: usize = 16;

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// How it is called in reports.
    pub name: String,
    /// How the API server is reached.
    pub way: Way,
    /// The namespace; the account's when absent.
    pub namespace: Option<String>,
    /// Which pods.
    pub select: Select,
    /// Endpoints of slices, where pods may not be read.
    pub slices: bool,
    /// What pods do not say.
    pub settings: Settings,
    /// How long engines of pods that are gone stay: [`crate::LINGER_MS`].
    pub linger_ms: u64,
    /// How patient it is.
    pub pace: Pace,
}

/// Which pods are engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Those with these labels.
    Labels(String),
    /// Those of an `InferencePool`.
    Pool(String),
}

/// Takes what was found. Returns engines that it cannot have, and why.
pub trait Fleet: Send {
    /// Engines by name: as they are wanted now, or gone.
    fn change(&mut self, changes: Vec<(String, Option<Wanted>)>) -> BoxFuture<'_, Vec<(String, String)>>;
}

/// Objects of either kind that are engines.
type Pods = Pin<Box<dyn futures::Stream<Item = Seen<(String, Vec<Pod>)>> + Send>>;

/// Runs until it is stopped.
pub async fn run(
    source: Source,
    board: Board,
    fleet: impl Fleet,
    client: HttpClient,
    stop: CancellationToken,
) {
    let at = board.add(source.name.clone(), kvplane_runtime::unix_ms());
    let first = source.pace.pause;
    let mut pause = first;
    let mut running = Running {
        cluster: Cluster::new(source.settings.clone()).lingering(source.linger_ms),
        source,
        board,
        at,
        fleet,
        client,
        wanted: BTreeMap::new(),
        refused: BTreeMap::new(),
        settle_at: None,
        offer_at: None,
        current: Current::default(),
        lists: 0,
    };
    let forever = async {
        loop {
            match running.source.way.connect(running.source.pace).await {
                Ok(api) => {
                    let lists = running.lists;
                    running.follow(api).await;
                    if running.lists > lists {
                        pause = first;
                    }
                }
                Err(error) => running.problem(SourceState::Unreachable, format!("no client: {error}")),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(first * LONGEST);
        }
    };
    stop.run_until_cancelled(forever).await;
}

struct Running<F> {
    cluster: Cluster,
    source: Source,
    board: Board,
    at: usize,
    fleet: F,
    client: HttpClient,
    /// What was passed to the fleet.
    wanted: BTreeMap<String, Wanted>,
    /// What it did not take.
    refused: BTreeMap<String, Wanted>,
    settle_at: Option<Instant>,
    offer_at: Option<Instant>,
    current: Current,
    lists: u64,
}

/// Where the watch stands.
#[derive(Debug, Default)]
struct Current {
    listed: bool,
    failing: Option<(SourceState, String)>,
    no_pool: bool,
    /// The token was refused: files are read again.
    unknown: bool,
}

impl<F: Fleet> Running<F> {
    /// Follows with one client, until the API server does not know it any more.
    async fn follow(&mut self, api: Api) {
        let namespace = self.source.namespace.clone().unwrap_or_else(|| api.namespace.clone());
        let slices = self.source.slices;
        let select = |selector: &str| -> Pods { followed(&api, &namespace, selector, slices) };
        let (mut pods, mut pool): (Option<Pods>, Option<Objects<PoolObject>>) = match &self.source.select {
            Select::Labels(selector) => (Some(select(selector)), None),
            Select::Pool(name) => (None, Some(objects(&api, &namespace, None, Some(name)))),
        };
        let mut known: Option<PoolRead> = None;
        let mut listed: Option<PoolRead> = None;
        let mut answers: FuturesUnordered<BoxFuture<'static, (String, Option<String>)>> =
            FuturesUnordered::new();
        let mut asked: BTreeMap<String, (Instant, u32)> = BTreeMap::new();
        let mut pulse = api.pulse.clone();
        loop {
            let next_pods = async { next(&mut pods).await };
            let next_pool = async { next(&mut pool).await };
            let due = self.due();
            let ask_at = asked.values().map(|(at, _)| *at).filter(|at| *at > Instant::now()).min();
            // Who is to be asked changes with verdicts and answers, not with every word of the watch.
            let mut look = false;
            tokio::select! {
                seen = next_pods => self.pods(seen),
                seen = next_pool => {
                    let pool = match seen {
                        Seen::Begin => { listed = None; continue }
                        Seen::Listed(pool) => { listed = Some(pool.read()); continue }
                        Seen::End => listed.take(),
                        Seen::Applied(pool) => Some(pool.read()),
                        Seen::Deleted(_) => None,
                        Seen::Failed(failure) => {
                            self.failed(&failure);
                            if std::mem::take(&mut self.current.unknown) {
                                return;
                            }
                            continue;
                        }
                    };
                    self.current.no_pool = pool.is_none();
                    if pool != known {
                        let selector = pool.as_ref().map(|pool| pool.selector.clone()).filter(|one| !one.is_empty());
                        let same = selector.is_some() && selector == known.as_ref().map(|pool| pool.selector.clone());
                        let ports = pool.as_ref().map(|pool| pool.ports.clone()).unwrap_or_default();
                        info!(source = self.source.name, selector, ?ports, "inference pool changed");
                        self.cluster.configure(Settings { target_ports: ports, ..self.source.settings.clone() });
                        if !same {
                            pods = selector.map(|selector| select(&selector));
                            if pods.is_none() {
                                self.cluster.nothing_matches(now_ms());
                            }
                        }
                        known = pool;
                        self.soon();
                    }
                    self.healthy();
                }
                Some((uid, model)) = answers.next() => {
                    look = true;
                    if let Some(model) = model {
                        asked.remove(&uid);
                        self.cluster.learn_model(&uid, &model);
                        self.soon();
                    }
                }
                _ = pulse.changed() => {
                    // A watch was accepted: what failed before is over.
                    self.current.failing = None;
                    self.healthy();
                }
                () = sleep_until(due) => {
                    self.settle().await;
                    look = true;
                }
                () = sleep_until(ask_at) => look = true,
            }
            if std::mem::take(&mut self.current.unknown) {
                return;
            }
            if look {
                self.ask(&mut asked, &mut answers);
            }
        }
    }

    fn pods(&mut self, seen: Seen<(String, Vec<Pod>)>) {
        let now = now_ms();
        match seen {
            Seen::Begin => {
                self.cluster.list_begins();
                self.current.listed = false;
                if self.current.failing.is_none() && self.cluster.is_listed() {
                    self.report(SourceState::Listing, None);
                }
                return;
            }
            Seen::Listed((object, pods)) => self.cluster.listed(&object, pods, now),
            Seen::End => {
                self.cluster.list_ends(now);
                self.lists += 1;
                self.count(|counted| counted.lists += 1);
                self.current.listed = true;
                self.current.failing = None;
                self.healthy();
            }
            Seen::Applied((object, pods)) => {
                self.cluster.applied(&object, pods, now);
                self.count(|counted| counted.changes += 1);
            }
            Seen::Deleted((object, _)) => {
                self.cluster.deleted(&object, now);
                self.count(|counted| counted.changes += 1);
            }
            Seen::Failed(failure) => return self.failed(&failure),
        }
        self.soon();
    }

    fn failed(&mut self, failure: &Failure) {
        match failure {
            Failure::Expired => self.count(|counted| counted.expired += 1),
            Failure::Unauthorized(message) => {
                self.count(|counted| counted.forbidden += 1);
                self.current.unknown = true;
                self.problem(
                    SourceState::Forbidden,
                    format!("401 {message}: the token is refused; it is read again"),
                );
            }
            Failure::Forbidden(message) => {
                self.count(|counted| counted.forbidden += 1);
                self.problem(
                    SourceState::Forbidden,
                    format!("403 {message}: grant get, list and watch in a Role"),
                );
            }
            Failure::Unknown(message) => {
                self.count(|counted| counted.failed += 1);
                self.problem(
                    SourceState::Unreachable,
                    format!("{message}: is the custom resource installed?"),
                );
            }
            Failure::Other(message) => {
                self.count(|counted| counted.failed += 1);
                self.problem(SourceState::Unreachable, message.clone());
            }
        }
    }

    fn count(&self, change: impl FnOnce(&mut crate::board::SourceStats)) {
        self.board.report(self.at, now_ms(), |report| change(&mut report.counted));
    }

    /// Something is wrong: said once, for as long as it stays the same. What is known stays.
    fn problem(&mut self, state: SourceState, problem: String) {
        self.current.failing = Some((state, problem.clone()));
        self.report(state, Some(problem));
    }

    fn healthy(&mut self) {
        if self.current.failing.is_some() {
            return;
        }
        if self.current.no_pool {
            let problem = "the InferencePool does not exist: create it, or correct its name".to_owned();
            self.report(SourceState::NoPool, Some(problem));
        } else if self.current.listed {
            self.report(SourceState::Watching, None);
        }
    }

    fn report(&self, state: SourceState, problem: Option<String>) {
        let changed = self.board.report(self.at, now_ms(), |report| {
            report.state = state;
            report.problem.clone_from(&problem);
        });
        if !changed {
            return;
        }
        let source = &self.source.name;
        if let Some(problem) = problem {
            warn!(source, state = state.as_str(), problem, "discovery degraded: known engines stay");
        } else {
            info!(source, state = state.as_str(), "discovery");
        }
    }

    fn soon(&mut self) {
        self.settle_at.get_or_insert_with(|| Instant::now() + TOGETHER);
    }

    /// When something is to be done without anything happening.
    fn due(&self) -> Option<Instant> {
        let lingering = self
            .cluster
            .due_ms()
            .map(|due| Instant::now() + Duration::from_millis(due.saturating_sub(now_ms())));
        [self.settle_at, self.offer_at, lingering].into_iter().flatten().min()
    }

    async fn settle(&mut self) {
        self.settle_at = None;
        let mut changes = Vec::new();
        if self.offer_at.is_some_and(|at| at <= Instant::now()) {
            self.offer_at = None;
            changes
                .extend(std::mem::take(&mut self.refused).into_iter().map(|(id, wanted)| (id, Some(wanted))));
        }
        for (id, verdict) in self.cluster.settle(now_ms()) {
            changes.retain(|(known, _)| *known != id);
            self.refused.remove(&id);
            let wanted = match &verdict {
                Some(Verdict::Engine(wanted)) => Some((**wanted).clone()),
                _ => None,
            };
            self.board.judged(self.at, &id, verdict);
            let before = match &wanted {
                Some(wanted) => self.wanted.insert(id.clone(), wanted.clone()),
                None => self.wanted.remove(&id),
            };
            if wanted.is_some() || before.is_some() {
                changes.push((id, wanted));
            }
        }
        let offered: BTreeMap<String, Option<Wanted>> = changes.iter().cloned().collect();
        if !changes.is_empty() {
            for (id, why) in self.fleet.change(changes).await {
                self.board.not_added(self.at, &id, &why);
                warn!(source = self.source.name, engine = id, error = why, "engine not added");
                if let Some(Some(wanted)) = offered.get(&id) {
                    self.refused.insert(id, wanted.clone());
                    self.offer_at.get_or_insert_with(|| Instant::now() + AGAIN);
                }
            }
        }
        let (pods, refused) = self.cluster.counts();
        let engines = self.wanted.len() - self.refused.len();
        self.board.report(self.at, now_ms(), |report| {
            (report.pods, report.engines, report.counted.refused) = (pods, engines, refused);
        });
    }

    /// Asks engines for their models, some at a time, each again after a pause that grows.
    fn ask(
        &self,
        asked: &mut BTreeMap<String, (Instant, u32)>,
        answers: &mut FuturesUnordered<BoxFuture<'static, (String, Option<String>)>>,
    ) {
        if answers.len() >= ASKED_AT_ONCE {
            return;
        }
        let questions = self.cluster.questions();
        asked.retain(|uid, _| questions.iter().any(|question| question.uid == *uid));
        let now = Instant::now();
        for question in questions {
            let (at, attempts) = asked.get(&question.uid).copied().unwrap_or((now, 0));
            if at > now || answers.len() >= ASKED_AT_ONCE {
                continue;
            }
            let pause = Duration::from_millis(500 * 2_u64.pow(attempts.min(5)));
            asked.insert(question.uid.clone(), (now + ask::DEADLINE + pause, attempts + 1));
            let client = self.client.clone();
            let answer = async move { (question.uid, ask::model(&client, &question.url).await) };
            answers.push(answer.boxed());
        }
    }
}

/// Pods, or the endpoints of slices, with these labels.
fn followed(api: &Api, namespace: &str, selector: &str, slices: bool) -> Pods {
    if slices {
        let all = objects::<SliceObject>(api, namespace, Some(selector), None);
        return Box::pin(all.map(|seen| seen.map(|slice| (identity(&slice), slice.read()))));
    }
    let all = objects::<PodObject>(api, namespace, Some(selector), None);
    Box::pin(all.map(|seen| seen.map(|pod| (identity(&pod), vec![pod.read()]))))
}

impl<K> Seen<K> {
    pub(crate) fn map<T>(self, change: impl FnOnce(K) -> T) -> Seen<T> {
        match self {
            Self::Begin => Seen::Begin,
            Self::Listed(object) => Seen::Listed(change(object)),
            Self::End => Seen::End,
            Self::Applied(object) => Seen::Applied(change(object)),
            Self::Deleted(object) => Seen::Deleted(change(object)),
            Self::Failed(failure) => Seen::Failed(failure),
        }
    }
}

/// The next object; never where nothing is followed.
pub(crate) async fn next<K, S>(stream: &mut Option<S>) -> Seen<K>
where
    S: futures::Stream<Item = Seen<K>> + Unpin,
{
    match stream {
        Some(stream) => match stream.next().await {
            Some(seen) => seen,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Milliseconds that clocks that are set do not change.
fn now_ms() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, unix) = START.get_or_init(|| (Instant::now(), kvplane_runtime::unix_ms()));
    unix + start.elapsed().as_millis() as u64
}
