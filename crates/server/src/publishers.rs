//! How many publishers there should be, and how many are heard.

use std::collections::BTreeMap;

use kvplane_core::Continuity;
use kvplane_ingest::{Engine, Plane};
use schemars::JsonSchema;
use serde::Serialize;

/// Of one engine, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "PublisherCount")]
pub(crate) struct Count {
    /// Ranks that are configured, or that the engine reports.
    pub(crate) expected: u64,
    /// … that are connected and have a verdict.
    pub(crate) heard: u64,
}

impl Count {
    pub(crate) fn of(engine: &Engine) -> Self {
        let live = engine.streams.iter().filter(|stream| stream.glance().continuity == Continuity::Live);
        Self { expected: engine.streams.len() as u64, heard: live.count() as u64 }
    }
}

/// Every engine's.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Publishers {
    #[serde(flatten)]
    pub(crate) all: Count,
    pub(crate) engines: BTreeMap<String, Count>,
}

impl Publishers {
    pub(crate) fn of(plane: &Plane) -> Self {
        let mut publishers = Self::default();
        for engine in plane.engines().iter() {
            let count = Count::of(engine);
            publishers.all.expected += count.expected;
            publishers.all.heard += count.heard;
            publishers.engines.insert(engine.spec.id.to_string(), count);
        }
        publishers
    }
}
