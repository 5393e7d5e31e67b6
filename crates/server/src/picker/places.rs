//! Which engine is behind an endpoint.

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_core::{EngineKind, StreamId};
use kvplane_inference::{Endpoint, Pool};
use kvplane_ingest::{Engine, Engines};

/// Endpoints by the streams behind them, for one pool and one set of engines.
#[derive(Debug, Default)]
pub(super) struct Places {
    pool: Arc<Pool>,
    engines: Option<Engines>,
    /// Places of an engine's endpoints, with the rank where an endpoint has one.
    by_engine: HashMap<String, Vec<(Option<u32>, usize)>>,
}

impl Places {
    pub(super) fn new(pool: Arc<Pool>, engines: Engines) -> Self {
        let mut by_engine: HashMap<String, Vec<(Option<u32>, usize)>> = HashMap::new();
        let mut unknown = Vec::new();
        for (place, endpoint) in pool.endpoints().iter().enumerate() {
            match engines.iter().find(|engine| is_behind(engine, endpoint)) {
                Some(engine) => {
                    by_engine.entry(engine.spec.id.to_string()).or_default().push((endpoint.rank, place));
                }
                None => unknown.push(endpoint.to_string()),
            }
        }
        if !unknown.is_empty() {
            let endpoints = unknown.join(", ");
            tracing::warn!(endpoints, "endpoints without an engine get requests by round robin only");
        }
        Self { pool, engines: Some(engines), by_engine }
    }

    pub(super) fn is_of(&self, pool: &Arc<Pool>, engines: &Engines) -> bool {
        Arc::ptr_eq(&self.pool, pool)
            && self.engines.as_ref().is_some_and(|known| Arc::ptr_eq(known, engines))
    }

    /// Places where a stream can be reached.
    pub(super) fn of(&self, id: &StreamId) -> impl Iterator<Item = usize> + '_ {
        let rank = id.rank;
        let here = self.by_engine.get(id.engine.as_str()).into_iter().flatten();
        here.filter(move |(only, _)| only.is_none_or(|only| only == rank)).map(|(_, place)| *place)
    }

    /// Whether any endpoint with an engine is wanted.
    pub(super) fn any(&self, mut wanted: impl FnMut(usize) -> bool) -> bool {
        self.by_engine.values().flatten().any(|(_, place)| wanted(*place))
    }

    fn engine(&self, name: &str) -> Option<&Arc<Engine>> {
        self.engines.as_ref()?.iter().find(|engine| engine.spec.id.as_str() == name)
    }

    /// The rank to name in a header, where one endpoint serves several; and the engine's software.
    pub(super) fn header_rank(&self, id: &StreamId, place: usize) -> (Option<u32>, EngineKind) {
        let Some(engine) = self.engine(id.engine.as_str()) else { return (None, EngineKind::Vllm) };
        let all = self.pool.endpoints().get(place).is_some_and(|endpoint| endpoint.rank.is_none());
        ((all && engine.streams.len() > 1).then_some(id.rank), engine.spec.kind)
    }

    /// The engine behind an address, and its rank where the address has one.
    pub(super) fn stream_at(&self, address: &str) -> Option<(&str, Option<u32>)> {
        let endpoint = self.pool.at(address)?;
        let engine = self.engines.as_ref()?.iter().find(|engine| is_behind(engine, endpoint))?;
        Some((engine.spec.id.as_str(), endpoint.rank))
    }
}

/// By the name that the endpoint gives, by its own name, or by where the engine's HTTP server is.
fn is_behind(engine: &Engine, endpoint: &Endpoint) -> bool {
    let id = engine.spec.id.as_str();
    if let Some(named) = &endpoint.engine {
        return named == id;
    }
    let server = engine.spec.http.as_deref().and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
    let server = server.map(|rest| rest.split('/').next().unwrap_or_default());
    endpoint.name == id || server.is_some_and(|server| server == endpoint.address.to_string())
}
