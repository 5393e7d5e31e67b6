//! The part of `/metrics` that Dynamo's standalone indexer has, under its names: for dashboards that were
//! made for it.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::indexer_routes;
use crate::gauge;
use crate::latencies::LatenciesRead;

/// One of the indexer's routes at one moment.
#[derive(Debug)]
pub struct IndexerRoute {
    /// Its path.
    pub endpoint: &'static str,
    /// Requests by method.
    pub requests: Vec<(&'static str, u64)>,
    /// Error responses by class: `4xx`, `5xx`.
    pub errors: Vec<(&'static str, u64)>,
    /// How long requests took.
    pub took: LatenciesRead,
}

/// The routes of an indexer, and what it listens to.
#[derive(Debug)]
pub struct IndexerRows {
    /// The routes.
    pub routes: Vec<IndexerRoute>,
    /// Models, by routing group.
    pub models: u64,
    /// Instances.
    pub workers: u64,
    /// Listeners by where they stand.
    pub listeners: Vec<(&'static str, u64)>,
}

impl Collector for IndexerRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = indexer_routes::REQUESTS.begin(&mut encoder)?;
        for IndexerRoute { endpoint, requests, .. } in &self.routes {
            for (method, count) in requests {
                let labels = [("endpoint", *endpoint), ("method", *method)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = indexer_routes::ERRORS.begin(&mut encoder)?;
        for IndexerRoute { endpoint, errors, .. } in &self.routes {
            for (class, count) in errors {
                let labels = [("endpoint", *endpoint), ("status_class", *class)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = indexer_routes::DURATION_SECONDS.begin(&mut encoder)?;
        for IndexerRoute { endpoint, took: LatenciesRead { sum, count, buckets }, .. } in &self.routes {
            let labels = [("endpoint", *endpoint)];
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
        }
        gauge(self.models, indexer_routes::MODELS.begin(&mut encoder)?)?;
        gauge(self.workers, indexer_routes::WORKERS.begin(&mut encoder)?)?;
        let mut metric = indexer_routes::LISTENERS.begin(&mut encoder)?;
        for (status, count) in &self.listeners {
            gauge(*count, metric.encode_family(&[("status", *status)])?)?;
        }
        Ok(())
    }
}
