//! What is counted of the routes of an indexer, for `dynamo_kvindexer_*`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use kvplane_ingest::Plane;
use kvplane_metrics::{IndexerRoute, IndexerRows, Latencies};

use super::indexer::Listening;

/// The routes that are counted.
const ROUTES: [&str; 11] = [
    "/register",
    "/unregister",
    "/workers",
    "/query",
    "/query_by_hash",
    "/dump",
    "/register_peer",
    "/deregister_peer",
    "/peers",
    "/health",
    "/reopen_logs",
];
const METHODS: [&str; 3] = ["GET", "POST", "OTHER"];
const CLASSES: [&str; 2] = ["4xx", "5xx"];

/// Upper ends of the buckets, in seconds: those of Dynamo's indexer.
const BOUNDS: [f64; 20] = [
    0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048, 0.4096,
    0.8192, 1.6384, 3.2768, 6.5536, 13.1072, 26.2144, 52.4288,
];

#[derive(Debug)]
pub(crate) struct IndexerCounters([Counted; ROUTES.len()]);

#[derive(Debug)]
struct Counted {
    requests: [AtomicU64; METHODS.len()],
    errors: [AtomicU64; CLASSES.len()],
    took: Latencies,
}

impl Default for IndexerCounters {
    fn default() -> Self {
        Self(ROUTES.map(|_| Counted {
            requests: Default::default(),
            errors: Default::default(),
            took: Latencies::new(&BOUNDS),
        }))
    }
}

impl IndexerCounters {
    /// Everything that was counted, beside what the plane listens to now.
    pub(super) fn rows(&self, plane: &Plane) -> IndexerRows {
        let read = |counts: &[AtomicU64], names: &[&'static str]| {
            let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
            names.iter().copied().zip(counts).collect()
        };
        let routes = ROUTES.iter().zip(&self.0).map(|(endpoint, counted)| IndexerRoute {
            endpoint,
            requests: read(&counted.requests, &METHODS),
            errors: read(&counted.errors, &CLASSES),
            took: counted.took.read(),
        });
        let engines = plane.engines();
        let models: BTreeSet<_> =
            engines.iter().map(|engine| (&engine.spec.model, &engine.spec.routing_group)).collect();
        let mut listeners = Listening::ALL.map(|(_, name)| (name, 0));
        for stream in engines.iter().flat_map(|engine| &engine.streams) {
            let standing = Listening::from(stream.glance().continuity);
            if let Some(at) = Listening::ALL.iter().position(|(listening, _)| *listening == standing) {
                listeners[at].1 += 1;
            }
        }
        IndexerRows {
            routes: routes.collect(),
            models: models.len() as u64,
            workers: engines.len() as u64,
            listeners: listeners.into(),
        }
    }
}

/// Counts a request on one of the routes.
pub(super) async fn count(
    State(counters): State<Option<Arc<IndexerCounters>>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let at = ROUTES.iter().position(|route| *route == path.as_str());
    let Some((counters, at)) = counters.zip(at) else { return next.run(request).await };
    let method = match *request.method() {
        Method::GET => 0,
        Method::POST => 1,
        _ => 2,
    };
    let begun = kvplane_runtime::now();
    let response = next.run(request).await;
    let counted = &counters.0[at];
    counted.requests[method].fetch_add(1, Ordering::Relaxed);
    counted.took.record(begun.elapsed());
    if response.status() >= StatusCode::BAD_REQUEST {
        counted.errors[usize::from(response.status().is_server_error())].fetch_add(1, Ordering::Relaxed);
    }
    response
}
