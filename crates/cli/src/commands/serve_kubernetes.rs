//! What `serve` takes from a cluster: engines, and the endpoints of a picker.

use std::sync::Arc;

use anyhow::Context as _;
use futures::future::BoxFuture;
use kvplane_inference::{Endpoint, Pool};
use kvplane_kubernetes::watch::{
    Fleet as Found, Pace, PoolSelect, PoolSource, PoolState, Source, follow_pool, run,
};
use kvplane_kubernetes::{Board, Wanted};
use kvplane_picker::{Rewrite, Rewrites, Rules, Target};
use kvplane_server::Fleet;
use kvplane_transport::HttpClient;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::{Watched, way};

/// The fleet, as one source changes it.
struct OfSource {
    fleet: Fleet,
    source: String,
}

impl Found for OfSource {
    fn change(&mut self, changes: Vec<(String, Option<Wanted>)>) -> BoxFuture<'_, Vec<(String, String)>> {
        Box::pin(self.fleet.change_found(&self.source, changes))
    }
}

/// Follows every source until the end.
pub(crate) fn discover(sources: Vec<Source>, board: &Board, fleet: &Fleet, stop: &CancellationToken) {
    for source in sources {
        let of_source = OfSource { fleet: fleet.clone(), source: source.name.clone() };
        let running = run(source, board.clone(), of_source, HttpClient::new(), stop.clone());
        kvplane_runtime::spawn("discover engines", running);
    }
}

/// The rules of a picker whose pool is in the cluster.
pub(crate) fn follow_pool_of(
    watched: Option<Watched>,
    fixed: Vec<Endpoint>,
    stop: &CancellationToken,
) -> anyhow::Result<watch::Receiver<Arc<Rules>>> {
    let (namespace, select) = match watched {
        None => return Ok(watch::channel(Rules::of(fixed)).1),
        Some(Watched::Pool(pool)) => (pool.namespace, PoolSelect::Named(pool.name)),
        Some(Watched::Pods(pods)) => {
            (pods.namespace, PoolSelect::Labels { selector: pods.selector, ports: pods.ports })
        }
    };
    let way = way(None, None).context("picker.pool")?;
    Ok(follow(PoolSource { way, namespace: Some(namespace), select, pace: Pace::default() }, fixed, stop))
}

/// A picker's rules, as the cluster has them. Endpoints that are configured stay besides.
fn follow(source: PoolSource, fixed: Vec<Endpoint>, stop: &CancellationToken) -> watch::Receiver<Arc<Rules>> {
    let (state, mut followed) = watch::channel(PoolState::default());
    let (rules, receiver) = watch::channel(Arc::new(Rules::default()));
    kvplane_runtime::spawn("watch the inference pool", follow_pool(source, state, stop.clone()));
    kvplane_runtime::spawn("serve the inference pool", async move {
        let mut pool = Arc::new(Pool::default());
        while followed.changed().await.is_ok() {
            let state = followed.borrow_and_update().clone();
            let made = Pool::new(fixed.iter().cloned().chain(endpoints(&state)).collect());
            // Who is behind an unchanged pool is not looked for again.
            if *pool != made {
                pool = Arc::new(made);
            }
            let rewrite = |one: kvplane_kubernetes::watch::PoolRewrite| Rewrite {
                model: one.model,
                targets: one.targets.into_iter().map(|(model, weight)| Target { model, weight }).collect(),
            };
            rules.send_replace(Arc::new(Rules {
                pool: pool.clone(),
                objectives: state.objectives.into_iter().collect(),
                rewrites: Rewrites::new(state.rewrites.into_iter().map(rewrite)),
                synced: state.synced,
            }));
        }
    });
    receiver
}

fn endpoints(state: &PoolState) -> Vec<Endpoint> {
    let made = state.endpoints.iter().map(|one| {
        let mut endpoint = Endpoint::at(one.address);
        endpoint.name.clone_from(&one.pod);
        endpoint.rank = one.rank;
        endpoint.ready = one.ready;
        if let Err(reason) = endpoint.read_labels(|name| one.labels.get(name).cloned()) {
            warn!(pod = one.pod, reason, "a label of the pod is not used");
        }
        endpoint
    });
    made.collect()
}
