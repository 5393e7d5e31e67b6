//! An `InferencePool` with everything that a picker goes by: its pods, objectives and rewrites.
//!
//! Requests must not be sent to a pod that is gone, so an endpoint goes with its pod. An error changes nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use kube::Resource;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::client::{Api, Way};
use super::follow::{Failure, Objects, Seen, objects};
use super::object::{
    Extension, Llmd, ObjectiveObject, PodObject, PoolObject, PoolRead, RewriteObject, RewriteRule, identity,
};
use super::source::next;
use crate::pod::Pod;

/// Changes within this are sent together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Kinds that may not be installed are waited for until then.
const OPTIONAL: usize = 4;

/// Which pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSource {
    /// How the API server is reached.
    pub way: Way,
    /// The namespace; the account's when absent.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The first pause after a failure: [`super::PAUSE`].
    pub pause: Duration,
}

/// What a picker goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolState {
    /// One for each pod and port, in the order of their names.
    pub endpoints: Vec<PoolEndpoint>,
    /// Priorities by the names of objectives.
    pub objectives: BTreeMap<String, i32>,
    /// Rules, the oldest object's first.
    pub rewrites: Vec<PoolRewrite>,
    /// All of this was read at least once.
    pub synced: bool,
}

/// A pod's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolEndpoint {
    /// `namespace/pod`.
    pub pod: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its rank, where the pool has a port for each.
    pub rank: Option<u32>,
    /// The pod is ready, and stays.
    pub ready: bool,
    /// Labels of the pod that say something of it.
    pub labels: BTreeMap<String, String>,
}

/// What is asked for in the place of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRewrite {
    /// The model; absent: any.
    pub model: Option<String>,
    /// Models and their weights.
    pub targets: Vec<(String, u32)>,
}

/// Keeps `state` at what the cluster has, until it is stopped.
pub async fn follow_pool(source: PoolSource, state: watch::Sender<PoolState>, stop: CancellationToken) {
    let forever = async {
        loop {
            match source.way.connect(source.pause).await {
                Ok(api) => follow(&source, &api, &state).await,
                Err(error) => {
                    warn!(pool = source.name, %error, "inference pool not watched: no client");
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            }
        }
    };
    stop.run_until_cancelled(forever).await;
}

/// Objects of one kind, as last listed and changed since.
struct Table<K> {
    objects: Option<Objects<K>>,
    /// Of a list that has not ended.
    coming: BTreeMap<String, K>,
    known: BTreeMap<String, K>,
    listed: bool,
}

impl<K> Table<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    fn new(objects: Option<Objects<K>>) -> Self {
        Self { objects, coming: BTreeMap::new(), known: BTreeMap::new(), listed: false }
    }

    async fn next(&mut self) -> Seen<K> {
        next(&mut self.objects).await
    }

    /// Takes what happened. A failure is returned.
    fn take(&mut self, seen: Seen<K>) -> Option<Failure> {
        match seen {
            Seen::Begin => self.coming.clear(),
            Seen::Listed(object) => {
                self.coming.insert(identity(&object), object);
            }
            Seen::End => {
                self.known = std::mem::take(&mut self.coming);
                self.listed = true;
            }
            Seen::Applied(object) => {
                self.known.insert(identity(&object), object);
            }
            Seen::Deleted(object) => {
                self.known.remove(&identity(&object));
            }
            Seen::Failed(failure) => return Some(failure),
        }
        None
    }
}

async fn follow(source: &PoolSource, api: &Api, state: &watch::Sender<PoolState>) {
    let namespace = source.namespace.clone().unwrap_or_else(|| api.namespace.clone());
    let mut pools = Table::new(Some(objects::<PoolObject>(api, &namespace, None, Some(&source.name))));
    let mut pods = Table::<PodObject>::new(None);
    let mut objectives = Table::new(Some(objects::<ObjectiveObject<Extension>>(api, &namespace, None, None)));
    let mut rewrites = Table::new(Some(objects::<RewriteObject<Extension>>(api, &namespace, None, None)));
    let mut llmd_objectives = Table::new(Some(objects::<ObjectiveObject<Llmd>>(api, &namespace, None, None)));
    let mut llmd_rewrites = Table::new(Some(objects::<RewriteObject<Llmd>>(api, &namespace, None, None)));
    let mut pool: Option<PoolRead> = None;
    let mut optional = [false; OPTIONAL];
    let mut said: Option<Failure> = None;
    let mut send_at: Option<tokio::time::Instant> = None;
    loop {
        let sending = async {
            match send_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let failure = tokio::select! {
            seen = pools.next() => {
                let failure = pools.take(seen);
                let now = pools.known.values().next().map(PoolObject::read).filter(|_| pools.listed);
                if now != pool && pools.listed {
                    let selector = now.as_ref().map(|one| one.selector.clone()).filter(|one| !one.is_empty());
                    info!(pool = source.name, namespace, selector, "inference pool changed");
                    if selector != pool.as_ref().map(|one| one.selector.clone()) {
                        // The pods of the old selector stay until those of the new one are listed.
                        let followed = selector.map(|one| objects::<PodObject>(api, &namespace, Some(&one), None));
                        if followed.is_none() {
                            pods.known.clear();
                        }
                        pods.objects = followed;
                    }
                    pool = now;
                }
                failure
            }
            seen = pods.next() => pods.take(seen),
            seen = objectives.next() => settled(objectives.take(seen), &mut optional[0]),
            seen = rewrites.next() => settled(rewrites.take(seen), &mut optional[1]),
            seen = llmd_objectives.next() => settled(llmd_objectives.take(seen), &mut optional[2]),
            seen = llmd_rewrites.next() => settled(llmd_rewrites.take(seen), &mut optional[3]),
            () = sending => {
                send_at = None;
                let known = [objectives.listed, rewrites.listed, llmd_objectives.listed, llmd_rewrites.listed];
                let all = known.iter().zip(optional).all(|(listed, absent)| *listed || absent);
                let priorities = objectives.known.values().filter_map(|one| one.read(&source.name));
                let priorities = priorities.chain(llmd_objectives.known.values().filter_map(|one| one.read(&source.name)));
                let rules = rewrites.known.values().filter_map(|one| one.read(&source.name));
                let rules = rules.chain(llmd_rewrites.known.values().filter_map(|one| one.read(&source.name)));
                let now = PoolState {
                    endpoints: endpoints(pool.as_ref(), pods.known.values()),
                    objectives: priorities.collect(),
                    rewrites: in_order(rules.collect()),
                    synced: pools.listed && (pods.listed || pool.is_none()) && all,
                };
                state.send_if_modified(|before| {
                    // Once synced, always: an error makes nothing less known.
                    let now = PoolState { synced: now.synced || before.synced, ..now };
                    let changed = *before != now;
                    *before = now;
                    changed
                });
                None
            }
        };
        if let Some(failure) = failure.filter(|failure| *failure != Failure::Expired) {
            if said.as_ref() != Some(&failure) {
                let failed = format!("{failure:?}");
                warn!(
                    pool = source.name,
                    namespace, failed, "inference pool: a request failed; what is known stays"
                );
            }
            if matches!(failure, Failure::Unauthorized(_)) {
                // Files are read again.
                tokio::time::sleep(Duration::from_secs(1)).await;
                return;
            }
            said = Some(failure);
        }
        send_at.get_or_insert_with(|| tokio::time::Instant::now() + TOGETHER);
    }
}

/// A kind that the cluster does not have, or that may not be read, has no objects.
fn settled(failure: Option<Failure>, absent: &mut bool) -> Option<Failure> {
    *absent |= matches!(failure, Some(Failure::Unknown(_) | Failure::Forbidden(_)));
    failure.filter(|failure| !matches!(failure, Failure::Unknown(_)))
}

fn endpoints<'p>(pool: Option<&PoolRead>, pods: impl Iterator<Item = &'p PodObject>) -> Vec<PoolEndpoint> {
    let Some(pool) = pool else { return Vec::new() };
    let mut all = Vec::new();
    let mut pods: Vec<Pod> = pods.cloned().map(PodObject::read).filter(|pod| !pod.over).collect();
    pods.sort_by(|one, other| (&one.name, &one.uid).cmp(&(&other.name, &other.uid)));
    for mut pod in pods {
        let Some(ip) = pod.address else { continue };
        pod.keep(&["kvplane.io/engine", "kvplane.io/rank"]);
        for (rank, port) in pool.ports.iter().enumerate() {
            all.push(PoolEndpoint {
                pod: pod.place(),
                address: SocketAddr::new(ip, *port),
                rank: (pool.ports.len() > 1).then_some(rank as u32),
                ready: pod.ready && !pod.leaving,
                labels: pod.labels.clone(),
            });
        }
    }
    all
}

/// Rules, the oldest object's first.
fn in_order(mut rules: Vec<(String, Vec<RewriteRule>)>) -> Vec<PoolRewrite> {
    rules.sort_by(|one, other| one.0.cmp(&other.0));
    let rules = rules.into_iter().flat_map(|(_, rules)| rules);
    let all = rules.flat_map(|rule| {
        let targets = rule.targets.into_iter().filter(|target| !target.model_rewrite.is_empty());
        let targets: Vec<_> =
            targets.map(|target| (target.model_rewrite, target.weight.unwrap_or(1))).collect();
        let exact = |kind: &Option<String>| kind.as_deref().is_none_or(|kind| kind == "Exact");
        let named = rule.matches.iter().filter_map(|one| one.model.as_ref());
        let named = named.filter(|model| exact(&model.r#type)).map(|model| Some(model.value.clone()));
        let models: Vec<_> = if rule.matches.is_empty() { vec![None] } else { named.collect() };
        models.into_iter().map(move |model| PoolRewrite { model, targets: targets.clone() })
    });
    all.collect()
}
