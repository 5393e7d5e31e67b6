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

use super::client::{Api, Pace, Way};
use super::follow::{Failure, Objects, Seen, objects};
use super::object::{
    Extension, Llmd, ObjectiveObject, PodObject, PoolObject, PoolRead, RewriteObject, RewriteRule, identity,
};
use super::source::next;
use crate::names;
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
    /// Which pods are its endpoints.
    pub select: PoolSelect,
    /// How patient it is.
    pub pace: Pace,
}

/// Which pods a picker serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolSelect {
    /// Those of the `InferencePool` of this name, with its objectives and rewrites.
    Named(String),
    /// Those with these labels, at these ports: without a pool there are neither objectives nor rewrites.
    Labels {
        /// The selector.
        selector: String,
        /// One for each rank.
        ports: Vec<u16>,
    },
}

impl std::fmt::Display for PoolSelect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Labels { selector, .. } => f.write_str(selector),
        }
    }
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
    /// The pod is ready, or the container that listens here, and stays.
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
            match source.way.connect(source.pace).await {
                Ok(api) => follow(&source, &api, &state).await,
                Err(error) => {
                    warn!(pool = %source.select, %error, "inference pool not watched: no client");
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

    /// Of a pool that is named; without one there is nothing to wait for.
    fn of(pool: Option<&str>, objects: impl FnOnce(&str) -> Objects<K>) -> Self {
        Self { listed: pool.is_none(), ..Self::new(pool.map(objects)) }
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
    let (named, mut pool) = match &source.select {
        PoolSelect::Named(name) => (Some(name.as_str()), None),
        PoolSelect::Labels { selector, ports } => {
            (None, Some(PoolRead { selector: selector.clone(), ports: ports.clone() }))
        }
    };
    let name = named.unwrap_or_default();
    let select = |selector: &str| objects::<PodObject>(api, &namespace, Some(selector), None);
    let mut pods = Table::new(pool.as_ref().map(|pool| select(&pool.selector)));
    let mut pools = Table::of(named, |name| objects::<PoolObject>(api, &namespace, None, Some(name)));
    let mut objectives =
        Table::of(named, |_| objects::<ObjectiveObject<Extension>>(api, &namespace, None, None));
    let mut rewrites = Table::of(named, |_| objects::<RewriteObject<Extension>>(api, &namespace, None, None));
    let mut llmd_objectives =
        Table::of(named, |_| objects::<ObjectiveObject<Llmd>>(api, &namespace, None, None));
    let mut llmd_rewrites = Table::of(named, |_| objects::<RewriteObject<Llmd>>(api, &namespace, None, None));
    let mut optional = [named.is_none(); OPTIONAL];
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
                    info!(pool = name, namespace, selector, "inference pool changed");
                    if selector != pool.as_ref().map(|one| one.selector.clone()) {
                        // The pods of the old selector stay until those of the new one are listed.
                        let followed = selector.map(|one| select(&one));
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
                let priorities = objectives.known.values().filter_map(|one| one.read(name));
                let priorities = priorities.chain(llmd_objectives.known.values().filter_map(|one| one.read(name)));
                let rules = rewrites.known.values().filter_map(|one| one.read(name));
                let rules = rules.chain(llmd_rewrites.known.values().filter_map(|one| one.read(name)));
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
                    pool = %source.select,
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
    // Of several pods at one address, one that is ready; then the youngest.
    let mut owners: BTreeMap<SocketAddr, ((bool, String, String), PoolEndpoint)> = BTreeMap::new();
    for object in pods {
        let mut pod = object.clone().read();
        let Some(ip) = pod.address.filter(|_| !pod.over) else { continue };
        pod.keep(&names::ACTIVE_PORTS);
        let active = active_ports(&pod);
        for (rank, port) in pool.ports.iter().enumerate() {
            if active.as_ref().is_some_and(|active| !active.contains(port)) {
                continue;
            }
            let endpoint = PoolEndpoint {
                pod: pod.place(),
                address: SocketAddr::new(ip, *port),
                rank: (pool.ports.len() > 1).then_some(rank as u32),
                ready: object.is_ready_at(*port) && !pod.leaving,
                labels: pod.labels.clone(),
            };
            let claim = (endpoint.ready, pod.created.clone(), pod.uid.clone());
            if owners.get(&endpoint.address).is_none_or(|(known, _)| *known < claim) {
                owners.insert(endpoint.address, (claim, endpoint));
            }
        }
    }
    let mut all: Vec<PoolEndpoint> = owners.into_values().map(|(_, endpoint)| endpoint).collect();
    all.sort_by(|one, other| (&one.pod, one.address).cmp(&(&other.pod, other.address)));
    all
}

/// Ports of the pool's that the pod listens at, where it says so. What is no port is passed over, as by other pickers.
fn active_ports(pod: &Pod) -> Option<Vec<u16>> {
    let text = names::ACTIVE_PORTS.iter().find_map(|name| pod.annotations.get(*name))?;
    Some(text.split(',').filter_map(|port| port.trim().parse().ok()).collect())
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
